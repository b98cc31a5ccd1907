"""Rules that read timings: Table 6 and its text from GPU reports alone, its shape from the CPU;
what sorting costs, our kernels, the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd

from analysis.paper import Claim, printed
from analysis.results import PAPER_GPU, Results
from analysis.rows import need, only, row_of, with_ends
from analysis.rules.registry import Outcome, Verdict, agree, interval, rule, told
from analysis.words import ranged
from experiments.settings import Tolerances

GPU_COMMAND = "python -m tests.gpu.run"
# The paper's own decomposition is what its Table 6 timed; ours stands in where it was not timed.
METHODS = ("paper_k1", "ours")
NAMES = {"paper_k1": "the paper's decomposition", "ours": "ours (the paper's was not timed)"}
PAPER_GROUPS = (4, 8)  # K of its Table 6
MILLION = 2**20
MODEL = "random weights in the shape of Llama-3.2 1B, bfloat16"
LONG = 65536  # tokens from which our kernels are claimed to be faster


def timings(results: Results, gpu: bool) -> pd.DataFrame:
    """Forward timings of one group a token on GPUs, or on this machine's CPU, the paper's
    decomposition first; speed-ups with an interval over repetitions."""
    frame = only(results.speed, k=1, direction="forward", method=METHODS,
                 device="cuda" if gpu else "cpu")  # fmt: skip
    frame = with_ends(frame.dropna(subset=["speedup"]), results.speed)
    paper = frame["hardware"].astype(str).str.contains(PAPER_GPU)
    rank = frame["method"].map({name: i for i, name in enumerate(METHODS)})
    order = frame.assign(rank=rank, paper=paper)
    return order.sort_values(["paper", "rank"], ascending=[False, True], kind="stable")


def timing(row: Mapping[str, Any], scale: str = "", command: str = GPU_COMMAND) -> dict[str, Any]:
    """Evidence, command, n and scale of a timing, as an Outcome takes them; ends are a range."""
    rounds, scale = int(row["repetitions"]), scale or f"{row['hardware']}; {row['dtype']}"
    return {"n": rounds, "evidence": row["evidence"], "command": command,
            "scale": f"{scale}; low to high: range of {rounds} rounds"}  # fmt: skip


def times(row: Any, value: str = "speedup") -> str:
    """How many times as fast, in words."""
    return ranged(row, value, ".2f", "x")


def _facts(row: pd.Series) -> dict[str, Any]:
    shape = f"H={int(row['heads'])}, Hk={int(row['key_heads'])}, D={int(row['head_dim'])}"
    command = "python -m experiments.stages.speed" if row["device"] == "cpu" else GPU_COMMAND
    scale = f"{row['hardware']}; {shape}, {row['dtype']}"
    return interval(row, "speedup") | timing(row, scale, command)


@rule("table6.t{context}.speedup_K{groups}", refuted="on the paper's GPU another speed-up than its "
      "by more than the limit, of every shape timed and all on one side; on another GPU the other "
      "side of 1x")  # fmt: skip
def speedup(claim: Claim, results: Results, limits: Tolerances, groups: str) -> Outcome:
    """A cell of Table 6 on a GPU; no CPU says anything of it. It names no heads: on its GPU the one
    shape timed that agrees with most of its cells speaks for all of them, and since it was chosen
    for that, and its times are not the paper's, what agrees holds in direction alone."""
    length, paper = claim.keys["context"], claim.figure
    frame = need(only(timings(results, gpu=True), K=int(groups), length=length))
    shapes = only(frame, hardware=frame.iloc[0]["hardware"], method=frame.iloc[0]["method"])
    near = [agree(round(each, 1), paper, limits.speedup) for each in shapes["speedup"]]
    heads = heads_of_table(results, limits.speedup)
    row = shapes.iloc[(shapes["heads"] != heads).argmin()]
    said = " and ".join(f"{each['speedup']:.2f}x for {each['heads']:.0f} heads of "
                        f"{each['head_dim']:.0f}" for _, each in shapes.iterrows())  # fmt: skip
    why = f"{NAMES[row['method']]} {said} on {row['hardware']}, bound {row['bound']:.2f}x"
    if row["paper"]:
        between = bool(shapes["speedup"].min() <= paper <= shapes["speedup"].max())
        own = row["heads"] == heads
        why = (
            f"{why}; the paper names no heads, and {heads:.0f} agree with most of its table"
            f"{'' if own else ', not timed at this length'}"
            f"{'; its figure lies between' * (between and not any(near))}"
            f"{_other_time(results, heads)}{_fastest(results, row)}"
        )
        return Outcome(told(any(near) or between, True), why, **_facts(row))
    verdict, said = Verdict.NOT_REPRODUCED, "another GPU, the other side of 1x"
    if row["low"] <= 1 <= row["high"]:
        verdict, said = Verdict.INCONCLUSIVE, "the interval includes 1x"
    elif (row["speedup"] > 1) == (paper > 1):
        verdict, said = Verdict.DIRECTION, "another GPU, the same side of 1x"
    return Outcome(verdict, f"{said}: {why}", **_facts(row))


@cache
def heads_of_table(results: Results, limit: float) -> float:
    """Of the shapes timed on the paper's GPU, the heads of that which agrees with most cells of its
    Table 6 (relative ``limit``)."""
    frame = timings(results, gpu=True)
    agreed: Counter[float] = Counter()
    for cell in printed("table6"):
        for groups in PAPER_GROUPS:
            own = only(frame, K=groups, length=cell["context"])
            for name in ("hardware", "method"):
                own = only(own, **{name: set(own[name].head(1))})
            for heads, speedup in zip(own["heads"], own["speedup"], strict=True):
                agreed[heads] += agree(round(speedup, 1), cell[f"speedup_K{groups}"], limit)
    return agreed.most_common(1)[0][0]


def _other_time(results: Results, heads: float) -> str:
    """Full attention of so many heads, at the greatest length timed, beside the paper's at 1M."""
    (seconds,) = (row["seconds"] for row in printed("table6.notes") if row["seconds"] is not None)
    frame = only(results.speed, device="cuda", method="full", direction="forward", heads=heads)
    if frame.empty:
        return ""
    row = frame.sort_values("length").iloc[-1]
    return (f"; their full attention takes {row['median_s']:.1f} s at {int(row['length']):,} "
            f"tokens, the paper's {seconds} s at {MILLION:,}")  # fmt: skip


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
    said = ", ".join(f"{int(t)}: {times(row)}" for t, row in fastest.iterrows())
    row = fastest.loc[later[0]] if later else first
    return row, later, f"{NAMES[first['method']]} on {first['hardware']}: {said}", len(slower) > 0


@rule("table6.notes.crossover.slowest_context_with_gain", "ours.speed.crossover",
      refuted="faster, or slower, at every length timed, though lengths on both sides of the "
      "paper's were")  # fmt: skip
def crossover(claim: Claim, results: Results) -> Outcome:
    """The shortest length from which on the decomposition is faster: on a GPU; ours, here."""
    gpu = not claim.id.startswith("ours.")
    frame = need(only(timings(results, gpu), K=PAPER_GROUPS))
    row, later, why, slower = crossing(frame)
    known = _facts(row) | {"ours": float(later[0]) if later else None, "low": None, "high": None,
                           "unit": "tokens"}  # fmt: skip
    if later and slower:
        why = f"not faster at first, faster from {later[0]} on: {why}"
        return Outcome(Verdict.DIRECTION, why, **known)
    lengths, paper = frame["length"], claim.figure or 16384
    both = lengths.min() < paper <= lengths.max()
    why = f"{'always' if later else 'never'} faster: {why}"
    return Outcome(told(False, both), why, **known)


def full_at_a_million(results: Results) -> pd.Series:
    """Full attention at 1M tokens on a GPU, most heads first."""
    frame = only(results.speed, device="cuda", method="full", length=MILLION, direction="forward")
    return need(frame).sort_values("heads").iloc[-1]


def _said(row: pd.Series) -> str:
    shape = f"{row['heads']:.0f} heads of {row['head_dim']:.0f} dimensions"
    speed = f" at {row['tflops']:.0f} TFLOP/s" if pd.notna(row["tflops"]) else ""
    return f"{row['median_s']:.2f} s for {shape} on {row['hardware']}{speed}"


@rule("table6.notes.full-attention-at-1m.seconds", refuted="on the paper's GPU one head alone "
      "takes longer, or 32 heads take less, than the paper's time")  # fmt: skip
def full_seconds(claim: Claim, results: Results) -> Outcome:
    """Time of full attention at 1M tokens: the paper does not say for how many heads, so only a
    time that no number of heads explains refutes it."""
    row = full_at_a_million(results)
    taken, heads, paper = float(row["median_s"]), float(row["heads"]), claim.figure
    why = (f"{_said(row)}; the paper's {paper} s, for which it states no heads, would be "
           f"{heads * paper / taken:.1f} of these")  # fmt: skip
    possible = taken / heads <= paper and taken * 32 / heads >= paper
    verdict = told(False, PAPER_GPU in str(row["hardware"]) and not possible)
    return Outcome(verdict, why, ours=taken, low=float(row["low_s"]), high=float(row["high_s"]),
                   **timing(row))  # fmt: skip


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
    return Outcome(verdict, why, ours=bound, unit="times as fast", **timing(full))


def forward_times(results: Results) -> pd.DataFrame:
    """Forward timings of attention alone on the GPU that comes first, with intervals."""
    frame = need(only(results.speed, device="cuda", direction="forward"))
    return with_ends(only(frame, hardware=frame.iloc[0]["hardware"]), results.speed)


def ratios(frame: pd.DataFrame, ours: str, other: str) -> pd.DataFrame:
    """Times as fast one method is as another, by K, heads and length, by the ends of both."""
    shape = ["length", "heads", "head_dim"]
    by = [*shape, "K"] if only(frame, method=other)["K"].notna().all() else shape
    pairs = only(frame, method=ours).merge(only(frame, method=other), on=by, suffixes=("", "_b"))
    pairs = need(pairs.sort_values(["length", "heads"]))
    return pairs.assign(
        ratio=pairs["median_s_b"] / pairs["median_s"],
        low=pairs["low_s_b"] / pairs["high_s"], high=pairs["high_s_b"] / pairs["low_s"],
    )  # fmt: skip


def _faster(frame: pd.DataFrame, why: str) -> Outcome:
    """Faster everywhere, or slower somewhere, by more than the interval."""
    row = frame.loc[frame["ratio"].idxmin()]
    said = ", ".join(f"{each['length']:.0f} tokens, {each['heads']:.0f} heads: "
                     f"{times(each, 'ratio')}" for _, each in frame.iterrows())  # fmt: skip
    good, bad = bool((frame["low"] > 1).all()), bool((frame["high"] < 1).any())
    return Outcome(told(good, bad, Verdict.REPRODUCED), f"{why}: {said}",
                   **interval(row, "ratio"), **timing(row), same_setting=good)  # fmt: skip


@rule("ours.gpu.attention", refuted="slower at one of these lengths by more than the interval")
def ours_beside_the_fastest(results: Results) -> Outcome:
    """Our kernel, one of eight groups, beside the fastest full attention of torch."""
    frame = forward_times(results)
    frame = frame[(frame["length"] >= LONG) & ((frame["K"] == 8) | frame["K"].isna())]
    kernels = ", ".join(sorted(set(only(frame, method="full_other")["kernel"])))
    return _faster(ratios(frame, "ours", "full_other"), f"beside {kernels}, K = 8")


@rule("ours.gpu.two_calls", refuted="slower at some length by more than the interval")
def ours_beside_two_calls(results: Results) -> Outcome:
    """Our kernel beside the paper's two calls, one of eight groups."""
    frame = forward_times(results)
    frame = frame[frame["K"] == 8]
    return _faster(ratios(frame, "ours", "paper_k1"), "beside the paper's two calls, K = 8")


@rule("ours.gpu.{phase}.recipe", refuted="slower than full attention by more than the interval")
def whole_on_gpu(results: Results, phase: str) -> Outcome:
    """The whole model under the recipe after the longest context timed, one sequence."""
    frame = need(results.gpu_steps({"forward": "prefill"}.get(phase, phase)))
    row = frame.iloc[-1]
    why = "; ".join(f"{each['length']:.0f} tokens: {times(each['recipe'])}"
                    for _, each in frame.iterrows())  # fmt: skip
    if phase == "generation":
        why += "; full attention without torch's cuDNN kernel, which is slower there"
    found = interval(row["recipe"], "speedup")
    good = found["low"] > 1
    return Outcome(told(good, found["high"] < 1, Verdict.REPRODUCED), why, **found,
                   **timing(row, f"{row['hardware']}; {MODEL}"), same_setting=good)  # fmt: skip


@rule("table6.notes.sort-and-gather-at-1m.milliseconds", refuted="on the paper's GPU a share of "
      "full attention's time that differs by more than the limit, and is the larger")  # fmt: skip
def sorting(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """All of our two calls that is not the calls, as a share of full attention's time: the paper
    does not say for how many heads its two figures are, and a share needs no number of them."""
    rows = need(results.gpu_steps("parts"))
    row = need(only(rows, length=MILLION)).iloc[0]
    full = float(full_at_a_million(results)["median_s"])
    taken, paper = float(row["other_s"]), claim.figure
    share, theirs = taken / full, paper / 1500
    why = (f"{1000 * taken:.0f} ms for {row['heads']:.0f} heads of {row['head_dim']:.0f}, "
           f"{100 * share:.2f}% of full attention's time; the paper {100 * theirs:.2f}% (12 ms of "
           f"1.5 s), for heads that it does not name")  # fmt: skip
    close = agree(share, theirs, limits.speedup)
    bad = PAPER_GPU in row["hardware"] and share > theirs and not close
    return Outcome(told(close or share < theirs, bad), why, ours=1000 * taken,
                   low=1000 * row["other_low_s"], high=1000 * row["other_high_s"],
                   **timing(row, f"{row['hardware']}; two calls by variable-length "
                            "kernels"))  # fmt: skip
