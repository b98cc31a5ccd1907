"""How much of a passage that a window has held before is found again, by mask."""

from __future__ import annotations

import pandas as pd

from analysis.results import Results
from analysis.spread import ratio_interval

SAME = ["reading", "texts", "cell", "budget"]
COLUMNS = [
    *SAME, "role", "against", "copied", "copied_low", "copied_high", "nats", "gain",
    "distant_density", "K", "top_k", "probe", "ngram", "seeds", "documents", "evidence",
]  # fmt: skip


def copied(results: Results) -> pd.DataFrame:
    """A row a mask: of what full attention gains (nats a token) from having read the passage
    before, the share that the mask gains too. Full attention is the first full model of
    ``against`` that was read so; 1: copies as it does, 0: as if the passage were new."""
    frame = results.copying
    if frame.empty:
        return pd.DataFrame(columns=COLUMNS)
    rows = []
    for (reading, texts, cell, budget), own in frame[frame["condition"] == "hard"].groupby(
        SAME, sort=False
    ):
        full = _full(results, results.cells[str(cell)].against, str(reading), str(texts))
        if full is None:
            continue
        name, gain, new = full
        losses = by_document(own)
        both = losses.index.intersection(gain.index)
        part = losses.loc[both].rsub(new.loc[both], axis=0)
        value, low, high = ratio_interval(part, gain.loc[both], results.confidence)
        first = own.iloc[0]
        rows.append({
            "reading": reading, "texts": texts, "cell": cell, "budget": budget,
            "role": results.cells[str(cell)].role, "against": name, "copied": value,
            "copied_low": low, "copied_high": high, "nats": float(losses.to_numpy().mean()),
            "gain": float(gain.loc[both].mean()), "seeds": part.shape[1], "documents": len(both),
            "distant_density": float(own["distant_density"].mean()),
            **{key: first[key] for key in ("K", "top_k", "probe", "ngram", "evidence")},
        })  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def by_document(rows: pd.DataFrame) -> pd.DataFrame:
    """Loss a token: a row a document, a column a seed, the mean over distances."""
    loss = rows.assign(loss=rows["nll"] / rows["tokens"])
    return loss.pivot_table(index="document", columns="seed", values="loss")


def _full(
    results: Results, against: tuple[str, ...], reading: str, texts: str
) -> tuple[str, pd.Series, pd.Series] | None:
    """Name of the full model, its gain by document, and its loss on the passage read first."""
    frame = results.copying
    for block in against:
        own = frame[(frame["experiment"] == block) & (frame["reading"] == reading)]
        own = own[own["texts"] == texts]
        again, new = own[own["condition"] == "full"], own[own["condition"] == "new"]
        if len(again) and len(new):
            first = by_document(new).mean(axis=1)
            return block, (first - by_document(again).mean(axis=1)).dropna(), first
    return None
