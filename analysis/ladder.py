"""A ladder of models of one type: what a mask costs, and how dense it must be, against size.

Four models of growing width, trained here on the same tokens in the same order, then given the same
routers; and the next rung, which others trained. :mod:`analysis.forecast` fits a law on the first
and says beforehand what the second will show.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pandas as pd

from analysis.comparisons import quality
from analysis.results import Results
from analysis.rows import only

# Parameters by model, embeddings counted once: of the rungs that a law is fitted on, and the next.
RUNGS = {"small-llama-1m": 787_296, "small-llama-2m": 2_361_024, "small-llama-5m": 4_721_184,
         "small-llama-8m": 7_867_776}  # fmt: skip
NEXT = {"smollm2-135m-instruct": 134_515_008}
PARAMETERS = RUNGS | NEXT
# Masks by their name in result files, the sparsest first; a window of near tokens alone is "own".
WINDOW = "own"
MASKS = {
    WINDOW: "near tokens alone",
    "k1.symmetric.sinkhorn": "1 of 4 groups",
    "k2.multi_probe.sinkhorn": "2 of 4 groups, keys in one",
    "k3.multi_probe.sinkhorn": "3 of 4 groups, keys in one",
    "k2.symmetric.sinkhorn": "2 of 4 groups",
}
PLACES = {
    "ladder_paper": "ladder", "ladder_window": "ladder",
    "next_rung_paper": "next rung", "next_rung_window": "next rung",
    "paper": "another window and text", "paper_books": "another window and text",
}  # fmt: skip
SMALL = 0.02  # a small gap: same_ppl of params.yaml
COLUMNS = ["place", "model", "parameters", "mask", "window", "budget", "distant_density", "change",
           "low", "high", "ppl", "base_ppl", "documents", "seeds", "texts", "context", "cell",
           "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a model and mask: change of the perplexity against the same model under full attention,
    with its interval over documents, and the share of distant pairs kept; ``place``: a rung of the
    ladder, the next one, or that model under another window on other texts."""
    own = only(quality(results), experiment=PLACES, model=PARAMETERS, condition="hard",
               budget=MASKS, base_role=["small", "pretrained"])  # fmt: skip
    known = own.assign(
        place=own["experiment"].map(PLACES), parameters=own["model"].map(PARAMETERS),
        mask=own["budget"].map(MASKS), window=own["window"].astype(int),
    )  # fmt: skip
    return known[COLUMNS].sort_values(
        ["place", "parameters", "texts", "distant_density"], kind="stable", ignore_index=True
    )


def of(results: Results, place: str, budget: str | None = None) -> pd.DataFrame:
    """Rows of one place, and of one mask where it is named, by size."""
    own = only(table(results), place=place)
    return own if budget is None else only(own, budget=budget)


@cache
def needed(results: Results) -> pd.DataFrame:
    """A row a model of the ladder and the next rung: the least share of the distant pairs at which
    the gap is :data:`SMALL`, read off between neighbouring masks, and off the ends of their
    intervals. Empty where a model's window alone was not read."""
    frame = table(results)
    rows = []
    for (place, model), own in frame.groupby(["place", "model"], sort=False):
        if WINDOW not in set(own["budget"]):
            continue
        least = {end: share(own, column) for end, column in
                 (("density", "change"), ("low", "low"), ("high", "high"))}  # fmt: skip
        rows.append({"place": place, "model": model, "parameters": PARAMETERS[str(model)], **least})
    return pd.DataFrame(rows, columns=["place", "model", "parameters", "density", "low", "high"])


def share(rows: pd.DataFrame, column: str) -> float:
    """The share of distant pairs from which on a gap stays at :data:`SMALL` or less.

    Args:
        rows: masks of one model; ``column``: the gap that is read. With every pair it is zero.
    """
    known = sorted(zip(rows["distant_density"], rows[column], strict=True))
    points = [*known, (1.0, 0.0)]
    for (sparse, above), (dense, below) in reversed(list(pairwise(points))):
        if above > SMALL:
            return float(dense - (SMALL - below) / (above - below) * (dense - sparse))
    return 0.0
