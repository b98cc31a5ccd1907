"""Windows that end in a passage which they have held before, and how well a mask finds it.

A token of the second reading is all but certain to whoever finds the first one; perplexity of
ordinary text hardly asks for it.

Shapes: N distances, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.data import Document
from experiments.evaluation import DocumentScore, Interval, ratio_interval
from experiments.recipe_settings import CopyingSettings
from experiments.settings import BootstrapSettings


def windows(document: Document, how: CopyingSettings) -> tuple[Tensor, Tensor]:
    """A document's first T tokens, of which the last ``passage`` are those that stand ``distance``
    tokens before them.

    Returns:
        (N, T) each: the windows, and the same ones with other text of the document in the place of
        the first reading, so that the passage is new where it stands.

    Raises:
        ValueError: the document has fewer than T + ``passage`` tokens.
    """
    ids, total, length = document.tokens, how.context, how.passage
    if len(ids) < total + length:
        raise ValueError(
            f"copying.context: {total + length} tokens are needed of {document.title}, which has "
            f"{len(ids)}; lower it, or raise corpus.min_tokens"
        )
    seen, new = [], []
    for distance in how.distances:
        window = ids[:total].clone()
        start = total - length - distance
        window[-length:] = window[start : start + length]
        seen.append(window)
        other = window.clone()
        other[start : start + length] = ids[total : total + length]
        new.append(other)
    return torch.stack(seen), torch.stack(new)


def together(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The same masks' rows at several distances as one: losses added up document by document,
    shares of pairs averaged, and None for what differs (groups of random routers)."""
    joined = []
    for rows in zip(*parts, strict=True):
        scores = [
            {**each[0], **{key: sum(score[key] for score in each) for key in ("nll", "tokens")}}
            for each in zip(*(row["scores"] for row in rows), strict=True)
        ]
        means = {key: sum(row[key] for row in rows) / len(rows)
                 for key in ("density", "distant_density")}  # fmt: skip
        same = {key: value if all(row[key] == value for row in rows) else None
                for key, value in rows[0].items()}  # fmt: skip
        joined.append({**same, **means, "scores": scores})
    return joined


def found(masked: Sequence[DocumentScore], seen: Sequence[DocumentScore],
          new: Sequence[DocumentScore], bootstrap: BootstrapSettings,
          seed: int) -> Interval:  # fmt: skip
    """Share of what the pretrained model gains from the first reading that is left under a mask: 1
    where it copies as well, 0 where the passage costs as much as a new one costs the pretrained
    model, paired over documents. What a mask loses on any text counts too.

    Args:
        masked: of the passage read again, under the mask.
        seen: of the same, as pretrained.
        new: of the passage read for the first time, as pretrained.

    Raises:
        ValueError: the three were not scored on the same documents and tokens.
    """
    if len({tuple((s.title, s.tokens) for s in scores) for scores in (masked, seen, new)}) > 1:
        raise ValueError("a paired comparison needs the same documents and tokens on all sides")
    return ratio_interval(
        [n.nll - m.nll for n, m in zip(new, masked, strict=True)],
        [n.nll - s.nll for n, s in zip(new, seen, strict=True)],
        bootstrap, seed,
    )  # fmt: skip
