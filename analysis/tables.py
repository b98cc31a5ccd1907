"""Tables of the result files as CSV and Markdown. Rows that are the paper's say so in `whose`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from analysis import arithmetic, paired
from analysis.paper import model_name, table
from analysis.results import COPYING_COLUMNS, LATER, RECIPE_COLUMNS, Results

TOPK = [
    "whose",
    "variant",
    "gate",
    "K",
    "sinks",
    "routers",
    "mode",
    "balance",
    "probe",
    "top_k",
    "ppl",
    "ppl_low",
    "ppl_high",
    "delta",
    "delta_low",
    "delta_high",
    "density",
    "distant_density",
    "n_documents",
    "tokens",
    "seed",
    "max_logit_difference",
]


VERSUS = ("versus_routed", "versus_routed_low", "versus_routed_high")


def topk(results: Results) -> pd.DataFrame:
    """Every setting of the top-k stage; below them the paper's Table 7, marked as the paper's."""
    frame = results.topk
    if frame.empty:
        return pd.DataFrame(columns=TOPK)
    ours = frame.assign(whose="ours").reindex(columns=TOPK)
    return pd.concat([ours, paper_points()], ignore_index=True)


def paper_points() -> pd.DataFrame:
    """Table 7 in the columns of the top-k stage, with the perplexity's change relative to
    pretrained.
    """
    rows = []
    for row in table("table7")["rows"]:
        base = row["ppl"] - row["delta"]
        rows.append(
            {
                "whose": f"paper ({model_name(row['model'])}, PG-19)",
                "K": 4,
                "sinks": 0,
                "mode": "hard",
                "balance": "sinkhorn",
                "top_k": row["k"],
                "ppl": row["ppl"],
                "delta": row["delta"] / base,
                "distant_density": row["pairs_retained"] / 100,
                "gate": "eq2",
                "variant": row["model"],
            }
        )
    return pd.DataFrame(rows).reindex(columns=TOPK)


def speed(results: Results) -> pd.DataFrame:
    """Timings of this machine and of every GPU report, then the paper's Table 6, marked as the
    paper's.
    """
    frame = results.speed
    if frame.empty:
        return frame
    ours = frame.assign(whose="ours")
    theirs = [
        {
            "whose": "paper (H100)",
            "length": row["context"],
            "K": groups,
            "k": 1,
            "speedup": row[f"speedup_K{groups}"],
            "method": "paper_k1",
            "direction": "forward",
            "hardware": "H100-80GB",
        }
        for groups in (4, 8)
        for row in table("table6")["rows"]
    ]
    joined = pd.concat([ours, pd.DataFrame(theirs)], ignore_index=True)
    return joined[["whose", *(c for c in joined if c != "whose")]]


def exactness(results: Results) -> pd.DataFrame:
    """Worst and median agreement of each method, dtype and kind of groups with the float64
    definition.
    """
    frame = results.exactness
    if frame.empty:
        return frame
    grouped = frame.groupby(["method", "dtype", "groups"], sort=False)
    return grouped.agg(
        cases=("passed", "size"),
        passed=("passed", "sum"),
        worst_cosine=("output_cosine", "min"),
        median_cosine=("output_cosine", "median"),
        worst_output_error=("output_error", "max"),
        worst_gradient_error=("gradient_error", "max"),
    ).reset_index()


def leak(results: Results) -> pd.DataFrame:
    """One row a variant and balance: earlier assignments that a new suffix changes, how evenly the
    groups fill, and perplexity at equal density."""
    return results.leak


def controls(results: Results) -> pd.DataFrame:
    """One row a mask: the trained routers, and routings that learnt nothing."""
    return results.controls.drop(columns="evidence")


def recipe(results: Results) -> pd.DataFrame:
    """Trials of the recipe stage, finalists (on test books) first."""
    frame = results.recipe
    wanted = ["trained_on", *RECIPE_COLUMNS, *LATER, *VERSUS]
    ordered = frame.sort_values("final", ascending=False, kind="stable")
    return ordered.reindex(columns=wanted)


def transfer(results: Results) -> pd.DataFrame:
    """The recipe's routers, and controls, on each corpus that they were not trained on."""
    wanted = ["corpus", "trained_on", *RECIPE_COLUMNS, *LATER, *VERSUS]
    return results.transfer.reindex(columns=wanted)


def copying(results: Results) -> pd.DataFrame:
    """One row a mask: what is found again of a passage that the window has held before."""
    return results.copying.reindex(columns=["trained_on", *COPYING_COLUMNS, *LATER])


def decode(results: Results) -> pd.DataFrame:
    """One row a method, context and dtype: a decoding step beside full attention's."""
    return results.decode.drop(columns="evidence")


def whole(results: Results) -> pd.DataFrame:
    """One row a length: a forward pass of the whole model, or tokens generated after a context, by
    the recipe beside the pretrained model."""
    frame = results.whole.drop(columns="evidence")
    return frame[["phase", *(name for name in frame if name != "phase")]]


def generation(results: Results) -> pd.DataFrame:
    """One row a question: how far hard mode goes with the pretrained model, and what the cache
    changes; without the texts themselves."""
    texts = ["evidence", "text_full", "text_hard"]
    return results.generation.drop(columns=texts, errors="ignore")


TABLES: dict[str, Callable[[Results], pd.DataFrame]] = {
    "topk": topk,
    "speed": speed,
    "exactness": exactness,
    "leak": leak,
    "controls": controls,
    "recipe": recipe,
    "transfer": transfer,
    "paired": paired.paired,
    "copying": copying,
    "decode": decode,
    "whole": whole,
    "generation": generation,
}
ALWAYS: dict[str, Callable[[], pd.DataFrame]] = {
    "parameters": arithmetic.counts,
    "repeated": arithmetic.repeated,
}


def number(value: float) -> str:
    """A float for people: four significant digits, whole thousands with separators."""
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def cell(value: object) -> str:
    """A value in Markdown: nothing where there is no value."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    text = number(value) if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def markdown(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table."""
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|" + " --- |" * frame.shape[1]]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def write(results: Results, folder: Path) -> list[Path]:
    """Write every table that has result files as CSV and Markdown; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {name: make() for name, make in ALWAYS.items()}
    frames |= {name: make(results) for name, make in TABLES.items()}
    written = []
    for name, frame in frames.items():
        paths = folder / f"{name}.csv", folder / f"{name}.md"
        if frame.empty:  # a table of an older run must not outlive its result files
            for path in paths:
                path.unlink(missing_ok=True)
            continue
        frame.to_csv(paths[0], index=False)
        paths[1].write_text(markdown(frame), encoding="utf-8")
        written += paths
    return written
