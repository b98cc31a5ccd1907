"""Rules that read GPU reports beside Table 6: what sorting costs, our kernels, the whole model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.paper import Claim
from analysis.results import PAPER_GPU, Results
from analysis.rows import need, only, with_ends
from analysis.rules.registry import Outcome, Verdict, agree, rule, told
from analysis.rules.speed import GPU_COMMAND, MILLION, full_at_a_million
from experiments.settings import Tolerances

LONG = 65536  # tokens from which our kernels are claimed to be faster
MODEL = "random weights in the sizes of Llama-3.2 1B, bfloat16"


def forward_times(results: Results) -> pd.DataFrame:
    """Forward timings of attention alone on the GPU that comes first, with intervals."""
    frame = only(results.speed, direction="forward")
    frame = need(frame[frame["device"] != "cpu"])
    return with_ends(only(frame, hardware=frame.iloc[0]["hardware"]))


def ratios(frame: pd.DataFrame, ours: str, other: str) -> pd.DataFrame:
    """How many times as fast one method is as another, by K, heads and length: ``ratio`` of the
    medians, ``low`` and ``high`` by the ends of both."""
    shape = ["length", "heads", "head_dim"]
    by = [*shape, "K"] if only(frame, method=other)["K"].notna().all() else shape
    pairs = only(frame, method=ours).merge(only(frame, method=other), on=by, suffixes=("", "_b"))
    pairs = need(pairs.sort_values(["length", "heads"]))
    return pairs.assign(
        ratio=pairs["median_s_b"] / pairs["median_s"],
        low=pairs["low_s_b"] / pairs["high_s"], high=pairs["high_s_b"] / pairs["low_s"],
    )  # fmt: skip


def _spoken(frame: pd.DataFrame) -> str:
    return ", ".join(f"{row['length']:.0f} tokens, {row['heads']:.0f} heads: {row['ratio']:.2f}x "
                     f"({row['low']:.2f} to {row['high']:.2f})"
                     for _, row in frame.iterrows())  # fmt: skip


def _told_by(frame: pd.DataFrame, why: str) -> Outcome:
    """Faster everywhere, or slower somewhere, by more than the interval."""
    row = frame.loc[frame["ratio"].idxmin()]
    good, bad = bool((frame["low"] > 1).all()), bool((frame["high"] < 1).any())
    return Outcome(
        told(good, bad, Verdict.REPRODUCED), f"{why}: {_spoken(frame)}", ours=float(row["ratio"]),
        low=float(row["low"]), high=float(row["high"]), n=int(row["repetitions"]),
        evidence=row["evidence"], command=GPU_COMMAND,
        scale=f"{row['hardware']}; {row['dtype']}", same_setting=good,
    )  # fmt: skip


@rule("ours.gpu.attention", refuted="slower at one of these lengths by more than the interval")
def ours_beside_the_fastest(results: Results) -> Outcome:
    """Our kernel, one of eight groups, beside the fastest full attention of torch."""
    frame = forward_times(results)
    frame = frame[(frame["length"] >= LONG) & ((frame["K"] == 8) | frame["K"].isna())]
    kernels = ", ".join(sorted(set(only(frame, method="full_other")["kernel"])))
    return _told_by(ratios(frame, "ours", "full_other"), f"beside {kernels}, K = 8")


@rule("ours.gpu.two_calls", refuted="slower at some length by more than the interval")
def ours_beside_two_calls(results: Results) -> Outcome:
    """Our kernel beside the paper's two calls, one of eight groups."""
    frame = forward_times(results)
    frame = frame[frame["K"] == 8]
    return _told_by(ratios(frame, "ours", "paper_k1"), "beside the paper's two calls, K = 8")


@rule("ours.gpu.{phase}.recipe", refuted="slower than full attention by more than the interval")
def whole_on_gpu(results: Results, phase: str) -> Outcome:
    """The whole model under the recipe after the longest context timed, one sequence."""
    frame = need(results.gpu_steps({"forward": "prefill"}.get(phase, phase)))
    if "batch" in frame:
        frame = frame[frame["batch"].fillna(1) == 1]
    row = frame.sort_values("length").iloc[-1]
    found: dict[str, Any] = row["recipe"]
    why = "; ".join(f"{each['length']:.0f} tokens: {each['recipe']['speedup']:.2f}x "
                    f"({each['recipe']['low']:.2f} to {each['recipe']['high']:.2f})"
                    for _, each in frame.sort_values("length").iterrows())  # fmt: skip
    good, bad = found["low"] > 1, found["high"] < 1
    return Outcome(
        told(good, bad, Verdict.REPRODUCED), why, ours=found["speedup"], low=found["low"],
        high=found["high"], n=int(row["repetitions"]), evidence=row["evidence"],
        command=GPU_COMMAND, scale=f"{row['hardware']}; {MODEL}", same_setting=good,
    )  # fmt: skip


@rule("table6.notes.sort-and-gather-at-1m.milliseconds", refuted="on the paper's GPU a share of "
      "full attention's time that differs by more than the limit, and is the larger")  # fmt: skip
def sorting(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """All of our two calls that is not the calls, as a share of full attention's time: the paper
    does not say for how many heads its two figures are, and a share needs no number of them."""
    rows = need(results.gpu_steps("parts"))
    row = need(only(rows, length=MILLION)).iloc[0]
    full = float(full_at_a_million(results)["median_s"])
    taken, paper = float(row["other_s"]), claim.figure or 0.0
    share, theirs = taken / full, paper / 1500
    why = (f"{1000 * taken:.0f} ms for {row['heads']:.0f} heads of {row['head_dim']:.0f}, "
           f"{100 * share:.2f}% of full attention's time; the paper {100 * theirs:.2f}% (12 ms of "
           f"1.5 s), for heads that it does not name")  # fmt: skip
    close = agree(share, theirs, limits.speedup)
    bad = PAPER_GPU in row["hardware"] and share > theirs and not close
    return Outcome(
        told(close or share < theirs, bad), why, ours=1000 * taken, low=1000 * row["other_low_s"],
        high=1000 * row["other_high_s"], n=int(row["repetitions"]), evidence=row["evidence"],
        command=GPU_COMMAND, scale=f"{row['hardware']}; two calls by variable-length kernels",
    )  # fmt: skip
