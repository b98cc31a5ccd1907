"""Quality of masks beside the time that their attention takes (the paper's Figure 1)."""

from __future__ import annotations

from functools import cache

import pandas as pd

from analysis.comparisons import headlines, quality
from analysis.results import Results
from analysis.rows import only

COLUMNS = ["role", "method", "K", "k", "budget", "length", "time", "time_low", "time_high",
           "density", "cell", "change", "low", "high", "distant_density", "documents", "seeds",
           "evidence", "read"]  # fmt: skip
RECIPE_GROUPS = 18
PAPER = "paper_adapted"  # on the model that ours start from


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a mask that was both timed and read on the headline's texts: its attention's time as a
    share of full attention's, and the change of perplexity."""
    known, timed = headlines(results), results.table("masks")
    if not known or timed.empty:
        return pd.DataFrame(columns=COLUMNS)
    frame = known[0].family.of(quality(results))
    rows = []
    for mask in timed[timed["method"] != "full"].to_dict("records"):
        own = only(frame, role=roles_of(mask))
        if mask["method"] == "window":
            own = only(own, budget=mask["budget"])
        else:
            own = only(own, K=mask["K"], top_k=mask["k"])
            own = own[(own["balance"] == "sinkhorn") | (own["role"] != PAPER)]
        for read in own.drop_duplicates("role").to_dict("records"):
            told = {name: read[name] for name in COLUMNS if name in read and name not in mask}
            rows.append({**mask, **told, "read": read["evidence"]})
    return pd.DataFrame(rows, columns=COLUMNS)


def roles_of(mask: dict[str, object]) -> tuple[str, ...]:
    """What reads under such a mask."""
    if mask["method"] == "window":
        return ("window",)
    if mask["K"] != RECIPE_GROUPS:
        return (PAPER,)
    if mask.get("allocated") is True:
        return ("allocated", "longer_allocated")
    return ("heavy",) if mask["heavy"] else ("ours",)
