"""Tables of the result files as CSV and Markdown. Rows that are the paper's say so in `whose`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import (
    ablations,
    answers,
    arithmetic,
    contents,
    evenness,
    ladder,
    models,
    pairs,
    rivals,
)
from analysis.comparisons import above, against_full, headlines, quality
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import Table, columns, ends, only, tabled, wide
from experiments import statistics


def pareto(results: Results) -> pd.DataFrame:
    """Quality against density of the headline's texts, for `dvc plots` and whoever draws: density
    is the share of distant pairs, changes are in percent against ``against``."""
    if not headlines(results):
        return pd.DataFrame()
    known = headlines(results)[0]
    own = known.masks(quality(results)).sort_values(["cell", "distant_density"])
    full = above(results, known)
    every = own if full is None else pd.concat([own, pd.DataFrame([full])], ignore_index=True)
    names = ["experiment", "cell", "role", "budget", "against", "reading", "texts", "seeds",
             "documents"]  # fmt: skip
    return pd.DataFrame({
        **{name: every[name] for name in names},
        "density": every["distant_density"], "perplexity": every["ppl"],
        **{f"{name}_percent": 100 * every[name] for name in ("change", "low", "high")},
    })  # fmt: skip


def speed(results: Results) -> pd.DataFrame:
    """Timings of this machine and of GPU reports, then the paper's Table 6, marked as such."""
    frame = results.speed
    if frame.empty:
        return frame
    theirs = [
        {"whose": "paper (H100)", "length": row["context"], "K": groups, "k": 1,
         "speedup": row[f"speedup_K{groups}"], "method": "paper_k1", "direction": "forward",
         "hardware": "H100-80GB"}
        for groups in (4, 8) for row in printed("table6")
    ]  # fmt: skip
    joined = pd.concat([frame.assign(whose="ours"), pd.DataFrame(theirs)], ignore_index=True)
    return joined[["whose", *(c for c in joined if c != "whose")]]


def exactness(results: Results) -> pd.DataFrame:
    """Worst and median agreement of each method, dtype and kind of groups with float64."""
    frame = results.table("exactness")
    if frame.empty:
        return frame
    return frame.groupby(["method", "dtype", "groups"], sort=False).agg(
        cases=("passed", "size"), passed=("passed", "sum"),
        worst_cosine=("output_cosine", "min"), median_cosine=("output_cosine", "median"),
        worst_output_error=("output_error", "max"),
        worst_gradient_error=("gradient_error", "max"),
    ).reset_index()  # fmt: skip


@tabled()
def leak(results: Results) -> Iterator[dict[str, Any]]:
    """A row a cell and balance: earlier assignments that a new suffix changes, and evenness."""
    for (cell, balance), own in results.readings["leak"].groupby(["cell", "balance"], sort=False):
        by_document = own.groupby("document")[["changed", "largest_group"]].mean()
        found = statistics.mean(by_document["changed"], results.confidence)
        yield {
            "cell": cell, "balance": balance, **columns(found, "changed", "changed_"),
            "documents": found.documents, "seeds": own["seed"].nunique(),
            "max_logit_change": own["max_logit_change"].max(),
            "largest_group": by_document["largest_group"].mean(),
            "evidence": own["evidence"].iloc[0],
        }  # fmt: skip


def training(results: Results) -> pd.DataFrame:
    """The course of every training: the mean loss of at most twenty equal stretches, by the last
    step of each."""
    frame = results.training
    if frame.empty:
        return frame
    key = ["experiment", "cell", "seed"]
    last = frame.groupby(key)["step"].transform("max")
    count = last.clip(upper=20)
    stretch = -(-frame["step"] * count // last)
    grouped = frame.assign(step=stretch * last // count).groupby([*key, "step"])
    return grouped["loss"].mean().reset_index()


@tabled(*pairs.READ, "role", *ends("copied"), "nats", "gain", "distant_density", "K", "top_k",
        "probe", "ngram", "seeds", "documents", "evidence")  # fmt: skip
def copying(results: Results) -> Iterator[dict[str, Any]]:
    """A row a mask: of what the model gains under full attention (nats per token) from having read
    the passage before, the share that the mask gains too (0: as if the passage were new)."""
    frame = results.readings["copying"]
    for key, own in only(frame, condition="hard").groupby(pairs.READ, sort=False):
        found = dict(zip(pairs.READ, key, strict=True))
        same = {name: found[name] for name in ("reading", "texts", "cell")}
        full, new = (_loss(only(frame, **same, condition=name)) for name in ("full", "new"))
        loss = _loss(own)
        if loss.shape != full.shape or loss.shape != new.shape:
            continue  # nothing to measure the mask against
        share = statistics.ratio(new - loss, new - full, results.confidence)
        yield found | {
            **pairs.told(results, own), **columns(share, "copied", "copied_"),
            "seeds": share.seeds, "documents": share.documents,
            "nats": float(loss.mean()), "gain": float((new - full).mean()),
            "distant_density": float(own["distant_density"].mean()),
        }  # fmt: skip


def _loss(rows: pd.DataFrame) -> np.ndarray:
    """Loss a token as (seeds, documents), the mean over distances."""
    loss = rows["nll"].astype(float) / rows["tokens"].astype(float)
    return wide(rows, loss, ["document", "sha"])


TIMED = ["role", "method", "K", "k", "budget", "length", "time", "time_low", "time_high",
           "density", "cell", "change", "low", "high", "distant_density", "documents", "seeds",
           "evidence", "read"]  # fmt: skip
RECIPE_GROUPS = 18
ON_ADAPTED = "paper_adapted"  # on the model that ours start from


@tabled(*TIMED)
def timed(results: Results) -> Iterator[dict[str, Any]]:
    """Masks timed and read on the headline's texts: change, and time as a share of full's."""
    known, clocked = headlines(results), results.table("masks")
    frame = known[0].masks(quality(results)) if known else quality(results).head(0)
    for mask in clocked[clocked["method"] != "full"].to_dict("records"):
        own = only(frame, role=roles_of(mask))
        if mask["method"] == "window":
            own = only(own, budget=mask["budget"])
        else:
            own = only(own, K=mask["K"], top_k=mask["k"])
            own = own[(own["balance"] == "sinkhorn") | (own["role"] != ON_ADAPTED)]
        for read in own.drop_duplicates("role").to_dict("records"):
            told = {name: read[name] for name in TIMED if name in read and name not in mask}
            yield {**mask, **told, "read": read["evidence"]}


def roles_of(mask: dict[str, object]) -> tuple[str, ...]:
    """What reads under such a mask."""
    if mask["method"] == "window":
        return ("window",)
    if mask["K"] != RECIPE_GROUPS:
        return (ON_ADAPTED,)
    if mask.get("allocated") is True:
        return ("allocated", "longer_allocated")
    return ("heavy",) if mask["heavy"] else ("ours",)


TABLES: dict[str, Table] = {
    "quality": quality,
    "pareto": pareto,
    "rivals": rivals.table,
    "benchmarks": answers.scores,
    "exposed": answers.within_reach,
    "architectures": models.types,
    "ladder": ladder.table,
    "finetuning": models.tuned,
    "lengths": models.lengths,
    "chat": answers.distances,
    "positions": models.positions,
    "ruler": answers.tasks,
    "ablations": ablations.table,
    "stability": ablations.mitigations,
    "evenness": evenness.table,
    "contents": contents.table,
    "purest": contents.purest,
    "information": contents.information,
    "copying": copying,
    "induction": pairs.induction,
    "affinity": pairs.affinity,
    "leak": leak,
    "training": training,
    "speed": speed,
    "timed": timed,
    "decode": lambda results: results.table("decode"),
    "whole": lambda results: results.whole,
    "exactness": exactness,
}
ALWAYS: dict[str, Callable[[], pd.DataFrame]] = {
    "parameters": arithmetic.counts,
    "repeated": arithmetic.repeated,
    "confound": arithmetic.confound,
}


def metrics(results: Results) -> dict[str, dict[str, float]]:
    """A handful of numbers an experiment for `dvc metrics diff`: its middle budget on the texts
    that it shares with the headline, or else on those of most documents; all in percent."""
    frame, known = against_full(quality(results)), headlines(results)
    found: dict[str, dict[str, float]] = {}
    for cell, own in frame.groupby("cell", sort=False):
        main = known[0].masks(own) if known else own.head(0)
        own = main if len(main) else own.sort_values("documents", ascending=False)
        own = only(own, reading=own["reading"].iloc[0], texts=own["texts"].iloc[0])
        row = own.sort_values("distant_density").iloc[(len(own) - 1) // 2]
        values = {"change": row["change"], "low": row["low"], "high": row["high"],
                  "distant_pairs": row["distant_density"]}  # fmt: skip
        found[str(cell)] = {name: round(100 * float(value), 3) for name, value in values.items()
                            if value == value}  # fmt: skip
    return found


@cache
def table(results: Results, name: str) -> pd.DataFrame:
    """One of ``TABLES``, made once: pages ask for most of them, too."""
    return TABLES[name](results)


def every(results: Results) -> dict[str, pd.DataFrame]:
    """All tables by name."""
    return {name: make() for name, make in ALWAYS.items()} | {
        name: table(results, name) for name in TABLES
    }


def write(results: Results, folder: Path) -> list[Path]:
    """Write every table that has result files as CSV; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, frame in every(results).items():
        path = folder / f"{name}.csv"
        if frame.empty:  # a table of an older run must not outlive its result files
            path.unlink(missing_ok=True)
            continue
        frame.to_csv(path, index=False)
        written.append(path)
    return written
