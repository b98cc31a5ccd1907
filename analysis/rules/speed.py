"""Rules that read timings: Table 6 and its text. A GPU report counts before a timing on CPU."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import (
    ARITHMETIC,
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
GPU_COMMAND = "python tests/gpu/run.py"
# The paper's own decomposition is what its Table 6 timed; ours stands in where it was not timed.
METHODS = ("paper_k1", "ours")
NAMES = {
    "paper_k1": "the paper's decomposition",
    "ours": "ours (the paper's was not timed)",
}
PAPER_GROUPS = (4, 8)  # K of its Table 6


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
    frame = frame[wanted].dropna(subset=["speedup"]).assign(gpu=lambda f: f["device"] != "cpu")
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
        "command": GPU_COMMAND if gpu else "python -m experiments.stages.speed",
        "scale": f"{row['hardware']}; {shape}",
    }


def _beside(frame: pd.DataFrame, row: pd.Series) -> str:
    """Ours at the same place, where the row is the paper's."""
    same = (frame["length"] == row["length"]) & (frame["hardware"] == row["hardware"])
    ours = frame[same & (frame["method"] == "ours")]
    if row["method"] == "ours" or ours.empty:
        return ""
    return f"; ours at the same place {ours.iloc[0]['speedup']:.2f}x"


@rule("table6.t{context}.speedup_K{groups}")
def speedup(
    claim: Claim, results: Results, settings: LedgerSettings, context: str, groups: str
) -> Outcome | None:
    """A cell of Table 6: the figure on the paper's GPU, the side of 1x anywhere else, where the
    other side refutes nothing."""
    frame = timings(results, int(groups))
    if frame.empty or (frame := frame[frame["length"] == int(context)]).empty:
        return None
    row = frame.iloc[0]
    known, paper = _facts(row, settings), float(claim.paper)
    why = (
        f"{NAMES[row['method']]} {row['speedup']:.2f}x ({row['speed_low']:.2f} to "
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
        INCONCLUSIVE,
        f"the other side of 1x than the paper's, which other hardware cannot refute: {why}",
        **known,
    )


@rule("table6.notes.crossover.slowest_context_with_gain")
def crossover(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """The shortest timed length from which on the decomposition is faster than full attention, with
    the K of the paper's table that suits it best."""
    frame = timings(results)
    if frame.empty or (frame := frame[frame["K"].isin(PAPER_GROUPS)]).empty:
        return None
    first = frame.iloc[0]
    same = (frame["hardware"] == first["hardware"]) & (frame["method"] == first["method"])
    fastest = frame[same].sort_values("speedup").groupby("length").tail(1).set_index("length")
    best = fastest["speedup"].sort_index()
    slower = best[best <= 1].index
    later = [int(t) for t in best.index if not len(slower) or t > slower.max()]
    known = _facts(fastest.loc[later[0]] if later else first, settings) | {
        "ours": float(later[0]) if later else None,
        "low": None,
        "high": None,
    }
    spoken = ", ".join(f"{int(t)}: {s:.2f}x" for t, s in best.items())
    name, theirs = NAMES[first["method"]], first["gpu"] and PAPER_GPU in str(first["hardware"])
    if not later or not len(slower):
        # Other hardware refutes nothing, nor do lengths that are all on one side of the paper's.
        within = best.index.min() < float(claim.paper) <= best.index.max()
        often = "never" if not later else "always"
        return Outcome(
            NOT_REPRODUCED if theirs and within else INCONCLUSIVE,
            f"{name} is {often} faster at the timed lengths on {first['hardware']} ({spoken})",
            **known,
        )
    return Outcome(
        DIRECTION,
        f"slower at short lengths, faster from some length on, as the paper says; that length "
        f"depends on the hardware: {name} from {later[0]} on ({spoken}) on {first['hardware']}",
        **known,
    )


MILLION = 2**20


def full_at_a_million(results: Results) -> pd.Series | None:
    """Full attention at 1M tokens on a GPU, most heads first; None where not timed."""
    frame = results.speed
    if frame.empty:
        return None
    wanted = (frame["method"] == "full") & (frame["length"] == MILLION)
    frame = frame[wanted & (frame["direction"] == "forward") & (frame["device"] != "cpu")]
    return None if frame.empty else frame.sort_values("heads").iloc[-1]


def _said(row: pd.Series) -> str:
    shape = f"{row['heads']:.0f} heads of {row['head_dim']:.0f} dimensions"
    speed = f" at {row['tflops']:.0f} TFLOP/s" if pd.notna(row["tflops"]) else ""
    return f"{row['median_s']:.2f} s for {shape} on {row['hardware']}{speed}"


def _full_facts(row: pd.Series) -> dict[str, object]:
    return {
        "n": int(row["repetitions"]),
        "evidence": row["evidence"],
        "command": GPU_COMMAND,
        "scale": f"{row['hardware']}; {row['dtype']}",
    }


@rule("table6.notes.full-attention-at-1m.seconds")
def full_seconds(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Time of full attention at 1M tokens: the paper does not say for how many heads."""
    row = full_at_a_million(results)
    if row is None:
        return None
    span = {"low": float(row["low_s"]), "high": float(row["high_s"])}
    why = f"{_said(row)}; the paper states neither heads nor head dimension for its {claim.paper} s"
    return Outcome(INCONCLUSIVE, why, ours=float(row["median_s"]), **span, **_full_facts(row))


@rule("audit.3")
def above_the_bound(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """8.6x against the bound of the mask at 1M tokens, with both sides' shape and TFLOP/s."""
    full, frame = full_at_a_million(results), timings(results, 8)
    if full is None or (frame := frame[frame["length"] == MILLION]).empty:
        return None
    row = frame.iloc[0]
    bound, claimed = float(row["bound"]), 8.6
    sparse = f"{row['method']} {row['speedup']:.2f}x"
    sparse += f" at {row['tflops']:.0f} TFLOP/s" if pd.notna(row["tflops"]) else ""
    why = f"bound of the mask at 1M tokens {bound:.2f}x, the paper has {claimed}x; full attention "
    why += f"takes {_said(full)}, against the paper's 1.5 s; measured: {sparse}"
    verdict = ARITHMETIC if bound < claimed else NOT_REPRODUCED
    return Outcome(verdict, why, ours=bound, **_full_facts(full))
