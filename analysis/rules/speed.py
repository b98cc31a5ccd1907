"""Rules that read timings: Table 6 and its text from GPU reports alone, its shape from the CPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.paper import Claim
from analysis.results import PAPER_GPU, Results
from analysis.rows import need, only, row_of, with_ends
from analysis.rules.registry import Outcome, Verdict, agree, interval, rule, told
from experiments.settings import Tolerances

GPU_COMMAND = "python -m tests.gpu.run"
# The paper's own decomposition is what its Table 6 timed; ours stands in where it was not timed.
METHODS = ("paper_k1", "ours")
NAMES = {"paper_k1": "the paper's decomposition", "ours": "ours (the paper's was not timed)"}
PAPER_GROUPS = (4, 8)  # K of its Table 6
MILLION = 2**20


def timings(results: Results, gpu: bool) -> pd.DataFrame:
    """Forward timings of one group a token on GPUs, or on this machine's CPU, the paper's
    decomposition first; speed-ups with an interval over repetitions."""
    frame = only(results.speed, k=1, direction="forward", method=METHODS)
    frame = with_ends(frame[(frame["device"] != "cpu") == gpu].dropna(subset=["speedup"]))
    paper = frame["hardware"].astype(str).str.contains(PAPER_GPU)
    rank = frame["method"].map({name: i for i, name in enumerate(METHODS)})
    order = frame.assign(rank=rank, paper=paper)
    return order.sort_values(["paper", "rank"], ascending=[False, True], kind="stable")


def _layout(row: pd.Series) -> str:
    return f"{int(row['heads'])} heads of {int(row['head_dim'])}"


def _facts(row: pd.Series) -> dict[str, Any]:
    shape = f"H={int(row['heads'])}, Hk={int(row['key_heads'])}, D={int(row['head_dim'])}"
    return {
        **interval(row, "speedup", 1), "n": int(row["repetitions"]), "evidence": row["evidence"],
        "command": "python -m experiments.stages.speed" if row["device"] == "cpu" else GPU_COMMAND,
        "scale": f"{row['hardware']}; {shape}, {row['dtype']}",
    }  # fmt: skip


@rule("table6.t{context}.speedup_K{groups}", refuted="on the paper's GPU another speed-up than its "
      "by more than the limit; on another GPU the other side of 1x")  # fmt: skip
def speedup(claim: Claim, results: Results, limits: Tolerances, groups: str) -> Outcome:
    """A cell of Table 6 on a GPU. A CPU says nothing about it. The paper does not say for how many
    heads: on its GPU the nearest of the shapes timed speaks, or all of them, where it lies between.
    """
    length, paper = claim.keys["context"], claim.figure
    frame = need(only(timings(results, gpu=True), K=int(groups), length=length))
    shapes = only(frame, hardware=frame.iloc[0]["hardware"], method=frame.iloc[0]["method"])
    row = shapes.loc[(shapes["speedup"] - paper).abs().idxmin()]
    spoken = " and ".join(f"{each['speedup']:.2f}x for {_layout(each)}"
                          for _, each in shapes.iterrows())  # fmt: skip
    why = f"{NAMES[row['method']]} {spoken} on {row['hardware']}, bound {row['bound']:.2f}x"
    if row["paper"]:
        between = shapes["speedup"].min() <= paper <= shapes["speedup"].max()
        good = between or agree(round(float(row["speedup"]), 1), paper, limits.speedup)
        verdict = Verdict.REPRODUCED if good else Verdict.NOT_REPRODUCED
        why = f"{why}; the paper names no heads" + ("; its figure lies between" if between else "")
        why += _fastest(results, row)
        return Outcome(verdict, why, **_facts(row), same_setting=True)
    verdict, said = Verdict.NOT_REPRODUCED, "another GPU, the other side of 1x"
    if row["low"] <= 1 <= row["high"]:
        verdict, said = Verdict.INCONCLUSIVE, "the interval includes 1x"
    elif (row["speedup"] > 1) == (paper > 1):
        verdict, said = Verdict.DIRECTION, "another GPU, the same side of 1x"
    return Outcome(verdict, f"{said}: {why}", **_facts(row))


def _fastest(results: Results, row: pd.Series) -> str:
    """The same beside the fastest other kernel of full attention, where one was timed."""
    shape = {name: row[name] for name in ("hardware", "length", "heads", "head_dim")}
    other = only(results.speed, method="full_other", direction="forward", **shape)
    if not len(other):
        return ""
    ratio = float(other.iloc[0]["median_s"]) / float(row["median_s"])
    kernel = str(other.iloc[0]["kernel"]).removesuffix("_attention")
    return f"; beside full attention by {kernel}, the fastest there, {ratio:.2f}x"


def crossing(frame: pd.DataFrame) -> tuple[pd.Series, list[int], str, bool]:
    """Where the decomposition, with the K of the paper's table that suits it best, starts to be
    faster for good, by more than its interval: a row, the lengths from there on, all of them in
    words, and whether any is not."""
    first = frame.iloc[0]
    same = only(frame, hardware=first["hardware"], method=first["method"])
    fastest = same.sort_values("speedup").groupby("length").tail(1).set_index("length")
    fastest = fastest.sort_index()
    slower = fastest.index[fastest["low"] <= 1]
    later = [int(t) for t in fastest.index if not len(slower) or t > slower.max()]
    spoken = ", ".join(f"{int(t)}: {row['speedup']:.2f}x ({row['low']:.2f} to {row['high']:.2f})"
                       for t, row in fastest.iterrows())  # fmt: skip
    row = fastest.loc[later[0]] if later else first
    return row, later, f"{NAMES[first['method']]} on {first['hardware']}: {spoken}", len(slower) > 0


@rule("table6.notes.crossover.slowest_context_with_gain", "ours.speed.crossover",
      refuted="faster, or slower, at every length timed, though lengths on both sides of the "
      "paper's were")  # fmt: skip
def crossover(claim: Claim, results: Results) -> Outcome:
    """The shortest timed length from which on the decomposition is faster than full attention: the
    paper's row on a GPU, the row of our own on this machine."""
    gpu = not claim.id.startswith("ours.")
    frame = need(only(timings(results, gpu), K=PAPER_GROUPS))
    row, later, why, slower = crossing(frame)
    known = _facts(row) | {"ours": float(later[0]) if later else None, "low": None, "high": None}
    if later and slower:
        why = f"not faster at first, faster from {later[0]} on: {why}"
        exact = gpu and bool(row["paper"]) and later[0] == claim.figure
        verdict = Verdict.REPRODUCED if exact else Verdict.DIRECTION
        return Outcome(verdict, why, **known, same_setting=exact)
    lengths, paper = frame["length"], claim.figure or 16384
    both = lengths.min() < paper <= lengths.max()
    why = f"{'always' if later else 'never'} faster: {why}"
    return Outcome(told(False, both), why, **known)


def full_at_a_million(results: Results) -> pd.Series:
    """Full attention at 1M tokens on a GPU, most heads first."""
    frame = only(results.speed, method="full", length=MILLION, direction="forward")
    return need(frame[frame["device"] != "cpu"]).sort_values("heads").iloc[-1]


def _said(row: pd.Series) -> str:
    shape = f"{row['heads']:.0f} heads of {row['head_dim']:.0f} dimensions"
    speed = f" at {row['tflops']:.0f} TFLOP/s" if pd.notna(row["tflops"]) else ""
    return f"{row['median_s']:.2f} s for {shape} on {row['hardware']}{speed}"


def _full_facts(row: pd.Series) -> dict[str, Any]:
    return {"n": int(row["repetitions"]), "evidence": row["evidence"], "command": GPU_COMMAND,
            "scale": f"{row['hardware']}; {row['dtype']}"}  # fmt: skip


@rule("table6.notes.full-attention-at-1m.seconds", refuted="on the paper's GPU one head alone "
      "takes longer, or 32 heads take less, than the paper's time")  # fmt: skip
def full_seconds(claim: Claim, results: Results) -> Outcome:
    """Time of full attention at 1M tokens: the paper does not say for how many heads, so only a
    time that no number of heads explains refutes it."""
    row = full_at_a_million(results)
    taken, heads, paper = float(row["median_s"]), float(row["heads"]), claim.figure
    span = {"low": float(row["low_s"]), "high": float(row["high_s"])}
    why = (f"{_said(row)}; the paper's {paper} s, for which it states no heads, would be "
           f"{heads * paper / taken:.1f} of these")  # fmt: skip
    possible = taken / heads <= paper and taken * 32 / heads >= paper
    theirs = PAPER_GPU in str(row["hardware"])
    verdict = told(False, theirs and not possible)
    return Outcome(verdict, why, ours=taken, **span, **_full_facts(row))


@rule("audit.3", refuted="a bound of the mask, or a measured speed-up, of 8.6x or more")
def above_the_bound(results: Results) -> Outcome:
    """8.6x against the bound of the mask at 1M tokens, with both sides' shape and TFLOP/s."""
    full, claimed = full_at_a_million(results), 8.6
    row = need(row_of(timings(results, gpu=True), K=8, length=MILLION))
    bound = float(row["bound"])
    why = (f"bound of the mask at 1M tokens {bound:.2f}x, the paper has {claimed}x; full attention "
           f"takes {_said(full)}, against the paper's 1.5 s; {NAMES[row['method']]} "
           f"{row['speedup']:.2f}x")  # fmt: skip
    if row["speedup"] > bound:
        why += ", above the bound too, since full attention's kernel does less per second there"
    below = bound < claimed and row["speedup"] < claimed
    verdict = Verdict.ARITHMETIC if below else Verdict.NOT_REPRODUCED
    return Outcome(verdict, why, ours=bound, **_full_facts(full))
