"""Rules that read timings: Table 6 and its text. A GPU report counts before a timing on CPU."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import (
    DIRECTION,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Outcome,
    agree,
    rule,
)
from analysis.settings import LedgerSettings

PAPER_GPU = "H100"
# The paper's own decomposition is what its Table 6 timed; ours stands in where it was not timed.
METHODS = ("paper_k1", "ours")


def timings(results: Results, groups: int | None = None) -> pd.DataFrame:
    """Forward timings of one group a token, GPU rows first; speed-ups with an interval over
    repetitions.
    """
    frame = results.speed
    if frame.empty:
        return frame
    wanted = (frame["k"] == 1) & (frame["direction"] == "forward") & frame["method"].isin(METHODS)
    if groups is not None:
        wanted &= frame["K"] == groups
    frame = frame[wanted].assign(gpu=lambda f: f["device"] != "cpu")
    full = frame["speedup"] * frame["median_s"]  # what full attention took beside it
    frame = frame.assign(speed_low=full / frame["high_s"], speed_high=full / frame["low_s"])
    rank = frame["method"].map({name: i for i, name in enumerate(METHODS)})
    return frame.assign(rank=rank).sort_values(
        ["gpu", "rank"], ascending=[False, True], kind="stable"
    )


def _facts(row: pd.Series, settings: LedgerSettings) -> dict[str, object]:
    gpu = bool(row["gpu"])
    shape = (
        f"H={int(row['heads'])}, Hk={int(row['key_heads'])}, D={int(row['head_dim'])}, "
        f"{row['dtype']}"
    )
    return {
        "ours": float(row["speedup"]),
        "low": float(row["speed_low"]),
        "high": float(row["speed_high"]),
        "n": int(row["repetitions"]),
        "evidence": row["evidence"],
        "command": "python tests/gpu/run.py" if gpu else "python -m experiments.stages.speed",
        "scale": f"{row['hardware']}; {shape}",
    }


def _beside(frame: pd.DataFrame, row: pd.Series) -> str:
    """Our decomposition at the same place, where the row is the paper's."""
    same = (frame["length"] == row["length"]) & (frame["hardware"] == row["hardware"])
    ours = frame[same & (frame["method"] == "ours")]
    if row["method"] == "ours" or ours.empty:
        return ""
    return f"; ours at the same place {ours.iloc[0]['speedup']:.2f}x"


@rule("table6.t{context}.speedup_K{groups}")
def speedup(
    claim: Claim, results: Results, settings: LedgerSettings, context: str, groups: str
) -> Outcome | None:
    """A cell of Table 6: the figure on the paper's GPU, the side of 1x anywhere else."""
    frame = timings(results, int(groups))
    if frame.empty or (frame := frame[frame["length"] == int(context)]).empty:
        return None
    row = frame.iloc[0]
    known, paper = _facts(row, settings), float(claim.paper)
    name = (
        "the paper's decomposition"
        if row["method"] == "paper_k1"
        else "our decomposition (the paper's was not timed)"
    )
    why = (
        f"{name} {row['speedup']:.2f}x ({row['speed_low']:.2f} to "
        f"{row['speed_high']:.2f}) on {row['hardware']}, bound "
        f"{row['bound']:.2f}x{_beside(frame, row)}"
    )
    if row["gpu"] and PAPER_GPU in str(row["hardware"]):
        good = agree(float(row["speedup"]), paper, settings.tolerances.speedup)
        return Outcome(REPRODUCED if good else NOT_REPRODUCED, why, **known, same_setting=True)
    if row["speed_low"] <= 1 <= row["speed_high"]:
        return Outcome(INCONCLUSIVE, f"the interval holds 1x: {why}", **known)
    if (row["speedup"] > 1) == (paper > 1):
        side = "faster" if paper > 1 else "slower"
        return Outcome(
            DIRECTION,
            f"{side} than full attention, other hardware than the paper's: {why}",
            **known,
        )
    return Outcome(
        NOT_REPRODUCED, f"the other side of 1x than the paper's, on other hardware: {why}", **known
    )


@rule("table6.notes.crossover.slowest_context_with_gain")
def crossover(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """The shortest timed length from which on the decomposition is faster than full attention."""
    frame = timings(results)
    if frame.empty:
        return None
    first = frame.iloc[0]
    same = (frame["hardware"] == first["hardware"]) & (frame["method"] == first["method"])
    best = frame[same].groupby("length")["speedup"].max().sort_index()
    slower = best[best <= 1].index
    later = [int(t) for t in best.index if not len(slower) or t > slower.max()]
    known = _facts(first, settings) | {
        "ours": float(later[0]) if later else None,
        "low": None,
        "high": None,
    }
    spoken = ", ".join(f"{int(t)}: {s:.2f}x" for t, s in best.items())
    if not later:
        return Outcome(
            NOT_REPRODUCED,
            f"{first['method']} is never faster at the timed lengths ({spoken})",
            **known,
        )
    if not len(slower):
        return Outcome(
            NOT_REPRODUCED, f"{first['method']} is faster at every timed length ({spoken})", **known
        )
    return Outcome(
        DIRECTION,
        f"{first['method']} is slower at short lengths, faster from {later[0]} on ({spoken})",
        **known,
    )
