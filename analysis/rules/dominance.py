"""Tokens in the largest group of the paper's default, which five of its tables print.

The paper names no learning rate, and the share depends on it and on the model. So every run of as
many steps as the paper's is asked, and they decide only where they agree.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import ablations
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import need
from analysis.rules.registry import Outcome, facts, told
from experiments.settings import Tolerances


def of_default(claim: Claim, results: Results, limits: Tolerances, trained: str) -> Outcome:
    """The paper's share beside ours of all runs; Missing where none was as long.

    Args:
        trained: "centroids" or "joint", as in the table of ablations.
    """
    runs, paper, limit = ablations.every_default(results, trained), claim.figure, limits.same_share
    need(None if runs.empty else runs)
    low, high = runs["largest_low"], runs["largest_high"]
    within = ((low >= paper - limit) & (high <= paper + limit)).all()
    beyond = (high < paper - limit).all() or (low > paper + limit).all()
    each = ", ".join(f"{run['largest']:.0f}% ({run['model']}, {run['rate']:g})"
                     for run in runs.to_dict("records"))  # fmt: skip
    why = (f"{each} of the tokens in the largest group, by model and learning rate, after as many "
           f"steps; the paper, which names no rate, {paper:g}% (limit {limit:g})")  # fmt: skip
    if not within and not beyond:
        why += ": our runs do not agree"
    shares = {"ours": float(runs["largest"].iloc[0]), "low": float(low.min()),
              "high": float(high.max())}  # fmt: skip
    return Outcome(told(within, beyond), why, **shares, **groups_facts(runs.iloc[0], results))


def groups_facts(row: pd.Series, results: Results) -> dict[str, Any]:
    """Evidence, command, n and scale, of the reading of groups."""
    return facts({**row, "evidence": row["groups_evidence"]}, results)


def collapsed_elsewhere(rows: pd.DataFrame, limit: float) -> str:
    """Words for trainings whose largest group has more than ``limit`` percent, empty without."""
    found = [f"{row['largest']:.0f}% in {row['cell']} after {row['steps']} steps"
             for row in rows[rows["largest_low"] > limit].to_dict("records")]  # fmt: skip
    return "; but " + ", ".join(found) if found else ""
