"""What a balance costs: perplexity of one router's hard mask under each, at equal density.

Balances fill groups differently, so the same k keeps more pairs under one than under another. The
window of those that keep fewer is widened until all keep as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation
from experiments.controls import equal_window
from experiments.evaluation import DocumentScore
from experiments.trained import NO_MASK
from focus.density import PairCounts

Documents = list[tuple[str, Tensor]]


def balanced(model: PreTrainedModel, balance: str, window: int | None = None,
             mask: Mapping[str, Any] = NO_MASK) -> focus.mode:  # fmt: skip
    """The attached model in hard mode under a balance of ``leak.balances``.

    Args:
        window: another than the config's.
        mask: further overrides of :class:`focus.mode`.
    """
    return focus.mode(model, "hard", **{**mask, "balance": balance, "window": window})


def costs(
    model: PreTrainedModel,
    balances: Sequence[str],
    documents: Documents,
    score_from: int,
    tick: Callable[[], None],
    mask: Mapping[str, Any] = NO_MASK,
) -> tuple[list[DocumentScore], list[dict[str, Any]]]:
    """Scores of the pretrained model, and a row a balance: ``balance``, ``window``, ``density``
    (share of causal pairs), ``scores``; all at the density of the one that keeps most.

    Args:
        model: attached.
        balances: as in ``leak.balances``.
        documents: titles and windows (n, T), all of one length T.
        score_from: first position scored.
        tick: called after every window that was read: once, and once or twice a balance.
        mask: as in :func:`balanced`.
    """
    with focus.mode(model, "full"):
        baseline = evaluation.score_documents(model, documents, score_from, tick)

    def scored(balance: str, window: int | None = None) -> dict[str, Any]:
        return measured(model, balance, window, documents, score_from, tick, mask)

    own = [scored(balance) for balance in balances]
    most = max(row["density"] for row in own)
    rows = []
    for row in own:
        window = window_for(row, most, documents[0][1].shape[1], model.focus_state.config.sinks)
        if window > row["window"]:
            row = scored(row["balance"], window)
        rows.append(row)
    return baseline, rows


def window_for(row: dict[str, Any], density: float, tokens: int, sinks: int) -> int:
    """The window, in tokens, with which a mask that keeps ``row['distant_density']`` of the pairs
    beyond its window and sinks keeps ``density`` (0 to 1) of all, if it keeps as large a share
    beyond any window."""
    kept = row["distant_density"]
    if density <= row["density"]:
        return row["window"]
    return max(row["window"], equal_window(tokens, sinks, (density - kept) / (1 - kept)))


def measured(model: PreTrainedModel, balance: str, window: int | None, documents: Documents,
             score_from: int, tick: Callable[[], None],
             mask: Mapping[str, Any] = NO_MASK) -> dict[str, Any]:  # fmt: skip
    """Scores and pairs kept of one balance and window (None: the config's), as :func:`costs` gives
    them, and ``distant_density``: the share kept of pairs beyond that window and the sinks."""
    counts: list[PairCounts | None] = []

    def after() -> None:
        counts.extend(focus.pair_counts(model).values())
        tick()

    with balanced(model, balance, window, mask):
        window = model.focus_state.settings.config.window
        scores = evaluation.score_documents(model, documents, score_from, after)
    pairs = PairCounts.total(counts)
    return {
        "balance": balance, "window": window, "density": pairs.density,
        "distant_density": pairs.distant_density, "scores": scores,
    }  # fmt: skip
