"""Tables of the result files as CSV and Markdown. Rows that are the paper's say so in `whose`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from analysis import (
    ablations,
    architectures,
    arithmetic,
    benchmarks,
    chat,
    contents,
    finetuning,
    information,
    ladder,
    lengths,
    positions,
    rivals,
    ruler,
    stability,
    timed,
)
from analysis.comparisons import against_full, headlines, point, quality
from analysis.copied import copied
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import columns, only
from experiments import statistics


def pareto(results: Results) -> pd.DataFrame:
    """Quality against density of the headline's texts, for `dvc plots` and whoever draws: density
    is the share of distant pairs, changes are in percent against ``against``."""
    if not headlines(results):
        return pd.DataFrame()
    known = headlines(results)[0]
    own = known.family.of(quality(results)).sort_values(["cell", "distant_density"])
    above = point(results, known.pretrained, known.family)
    full = [] if above is None else [pd.DataFrame([above])]
    every = pd.concat([own, *full], ignore_index=True)
    names = ["experiment", "cell", "role", "budget", "against", "reading", "texts", "seeds",
             "documents"]  # fmt: skip
    return pd.DataFrame({
        **{name: every[name] for name in names},
        "density": every["distant_density"], "perplexity": every["ppl"],
        **{f"{name}_percent": 100 * every[name] for name in ("change", "low", "high")},
    })  # fmt: skip


def speed(results: Results) -> pd.DataFrame:
    """Timings of this machine and of every GPU report, then the paper's Table 6, marked as the
    paper's."""
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
    """Worst and median agreement of each method, dtype and kind of groups with the float64
    definition."""
    frame = results.table("exactness")
    if frame.empty:
        return frame
    return frame.groupby(["method", "dtype", "groups"], sort=False).agg(
        cases=("passed", "size"), passed=("passed", "sum"),
        worst_cosine=("output_cosine", "min"), median_cosine=("output_cosine", "median"),
        worst_output_error=("output_error", "max"),
        worst_gradient_error=("gradient_error", "max"),
    ).reset_index()  # fmt: skip


LEAK = ["cell", "balance", "changed", "changed_low", "changed_high", "documents", "seeds",
        "max_logit_change", "largest_group", "evidence"]  # fmt: skip


def leak(results: Results) -> pd.DataFrame:
    """A row a cell and balance: earlier assignments that a new suffix changes, with an interval
    over documents, and how evenly the groups fill."""
    rows = []
    for (cell, balance), own in results.readings["leak"].groupby(["cell", "balance"], sort=False):
        by_document = own.groupby("document")[["changed", "largest_group"]].mean()
        found = statistics.mean(by_document["changed"], results.confidence)
        rows.append({
            "cell": cell, "balance": balance, **columns(found, "changed", "changed_"),
            "documents": found.documents, "seeds": own["seed"].nunique(),
            "max_logit_change": own["max_logit_change"].max(),
            "largest_group": by_document["largest_group"].mean(),
            "evidence": own["evidence"].iloc[0],
        })  # fmt: skip
    return pd.DataFrame(rows, columns=LEAK)


def training(results: Results) -> pd.DataFrame:
    """The course of every training in at most twenty steps a seed: the mean loss between two."""
    frame = results.training
    if frame.empty:
        return frame
    key = ["experiment", "cell", "seed"]
    every = frame.groupby(key)["step"].transform(lambda s: max(1, -(-int(s.max()) // 20)))
    grouped = frame.assign(step=-(-frame["step"] // every) * every).groupby([*key, "step"])
    return grouped["loss"].mean().reset_index()


TABLES: dict[str, Callable[[Results], pd.DataFrame]] = {
    "quality": quality,
    "pareto": pareto,
    "rivals": rivals.table,
    "benchmarks": benchmarks.table,
    "architectures": architectures.table,
    "ladder": ladder.table,
    "finetuning": finetuning.table,
    "lengths": lengths.table,
    "chat": chat.table,
    "positions": positions.table,
    "ruler": ruler.table,
    "ablations": ablations.table,
    "stability": stability.table,
    "contents": contents.table,
    "information": information.table,
    "copying": copied,
    "leak": leak,
    "training": training,
    "speed": speed,
    "timed": timed.table,
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
        main = known[0].family.of(own) if known else own.head(0)
        own = main if len(main) else own.sort_values("documents", ascending=False)
        own = only(own, reading=own["reading"].iloc[0], texts=own["texts"].iloc[0])
        row = own.sort_values("distant_density").iloc[(len(own) - 1) // 2]
        values = {"change": row["change"], "low": row["low"], "high": row["high"],
                  "distant_pairs": row["distant_density"]}  # fmt: skip
        found[str(cell)] = {name: round(100 * float(value), 3) for name, value in values.items()
                            if value == value}  # fmt: skip
    return found


def plural(count: float, word: str) -> str:
    """1 seed, 3 seeds."""
    return f"{int(count)} {word}{'s' if count != 1 else ''}"


def number(value: float) -> str:
    """A float for people: four significant digits, whole thousands with separators."""
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def cell(value: object) -> str:
    """A value in Markdown: nothing where there is no value."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    text = number(value) if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> list[str]:
    """Lines of a Markdown table.

    Args:
        align: l or r, for left or right, a letter a column; all but the first are right without it.
    """
    marks = {"l": "---", "r": "---:"}
    align = align or "l" + "r" * (len(head) - 1)
    lines = [head, [marks[each] for each in align], *rows]
    above, *rest = [f"| {' | '.join(line)} |" for line in lines]
    return [above.replace("|  |", "| |"), *rest]


def every(results: Results) -> dict[str, pd.DataFrame]:
    """All tables by name."""
    return {name: make() for name, make in ALWAYS.items()} | {
        name: make(results) for name, make in TABLES.items()
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
