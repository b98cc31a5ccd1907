"""How much of a passage that a window has held before is found again, by mask."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.results import Results
from analysis.rows import columns, only, wide
from experiments import statistics

SAME = ["reading", "texts", "cell", "budget"]
COLUMNS = [
    *SAME, "role", "copied", "copied_low", "copied_high", "nats", "gain", "distant_density", "K",
    "top_k", "probe", "ngram", "seeds", "documents", "evidence",
]  # fmt: skip


def copied(results: Results) -> pd.DataFrame:
    """A row a mask: of what the same model gains under full attention (nats per token) from having
    read the passage before, the share that the mask gains too. 1: copies as full attention does,
    0: as if the passage were new."""
    frame, rows = results.readings["copying"], []
    for key, own in only(frame, condition="hard").groupby(SAME, sort=False):
        found = dict(zip(SAME, key, strict=True))
        same = {name: found[name] for name in ("reading", "texts", "cell")}
        full, new = (by_document(only(frame, **same, condition=name)) for name in ("full", "new"))
        loss = by_document(own)
        if loss.shape != full.shape or loss.shape != new.shape:
            continue  # nothing to measure the mask against
        share = statistics.ratio(new - loss, new - full, results.confidence)
        first = own.iloc[0]
        rows.append(found | {
            "role": results.cells[found["cell"]].role, **columns(share, "copied", "copied_"),
            "seeds": share.seeds, "documents": share.documents,
            "nats": float(loss.mean()), "gain": float((new - full).mean()),
            "distant_density": float(own["distant_density"].mean()),
            **{name: first[name] for name in ("K", "top_k", "probe", "ngram", "evidence")},
        })  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def by_document(rows: pd.DataFrame) -> np.ndarray:
    """Loss a token as (seeds, documents), the mean over distances."""
    loss = rows["nll"].astype(float) / rows["tokens"].astype(float)
    return wide(rows, loss, ["document", "sha"])
