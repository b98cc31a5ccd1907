"""Answers under masks and after training, paired by question: benchmark scores with their exposure,
long-context tasks, and how far answers are from the original model's (alignment).

A mask reaches a question of a benchmark where its longest prompt has a pair beyond the window and
the sinks. On the others it changes nothing, so that they dilute a score over all questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import paired, quality
from analysis.results import Results
from analysis.rows import columns, need, only, row_of, tabled, wide
from experiments import statistics

QUESTION = ["texts", "document", "sha"]
FOUR = ("hellaswag", "arc_easy", "piqa", "lambada_openai")  # the paper's, by lm-eval's names
ALL_FOUR, ALL_TASKS = "all four", "all tasks"
# Roles in long-context tasks, in README and, as far as an eye keeps lines apart, in the figure.
SHOWN = (
    "ours", "ours_last", "sparq", "quest", "window", "allocated", "allocated_last",
    "longer_allocated", "sparq_groups", "heavy_window", "paper",
)  # fmt: skip
FEWEST = 10  # questions of an interval, of those reached
UNMASKED = ("full", "performer")  # methods that keep every pair: no window bounds what they change
# Of these questions the tokenizers of Mistral and Llama 2 make 8 to 17% more tokens than SmolLM2's,
# GPT-2's as many (docs/log/2026-11-30.md).
MORE_TOKENS = 1.17


@paired
def scores(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    """A row a benchmark (and the paper's four together), cell, budget and base: scores and their
    difference in points, how many answers changed, what the right answer cost more (nats), how far
    a mask of the cell's window reaches at all (``exposed_elsewhere_percent``: in another model's
    tokens, :data:`MORE_TOKENS` as many), and where a method gives every query a number of keys, how
    many it kept in the mean."""
    for known, rows in asked(results, cell, base):
        yield {**known, **_scored(rows, results.confidence)}


def asked(results: Results, cell: Cell,
          base: Cell) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:  # fmt: skip
    """What a row is of, and its questions, each beside the base's answer to it."""
    own, theirs = (results.rows_of(each.name, "benchmarks") for each in (cell, base))
    theirs = only(theirs, condition="full")
    both = own.merge(theirs, on=["reading", "shots", *QUESTION], suffixes=("", "_base"))
    elsewhere = both.assign(tokens=MORE_TOKENS * both["tokens"])
    both = both.assign(exposure=exposed(both, cell), elsewhere=exposed(elsewhere, cell))
    by = ["reading", "shots", "condition", "budget"]
    for (reading, shots, _, budget), same in both.groupby(by, sort=False):
        known = {**named(cell), "model": cell.model, "window": cell.window, "reading": reading,
                 "shots": int(shots), "budget": budget, "against": base.name}  # fmt: skip
        tasks = dict(list(same.groupby("texts", sort=False)))
        if set(FOUR) <= set(tasks):
            tasks[ALL_FOUR] = only(same, texts=FOUR)
        for name, rows in tasks.items():
            if len(rows) > 1:
                yield {**known, "texts": name}, rows


def named(cell: Cell) -> dict[str, Any]:
    """What a row is of."""
    return {"experiment": cell.block, "cell": cell.name, "role": cell.role}


def exposed(both: pd.DataFrame, cell: Cell) -> pd.Series:
    """Share of causal pairs beyond the window and sinks (of a method with a number of keys, beyond
    that number: fewer are all kept); the reading's own where there is none."""
    if "window" not in cell.method and cell.role != "longformer":  # whose sinks are its own
        return both["exposure"]
    near = cell.window + int(cell.method.get("sinks", 0))
    near = int(cell.method.get("keys", near))
    last = (both["tokens"] - near).clip(lower=0)
    return last * (last + 1) / (both["tokens"] * (both["tokens"] + 1))


def _scored(both: pd.DataFrame, confidence: float) -> dict[str, Any]:
    right, base_right = right_answers(both), right_answers(both, "_base")
    points = statistics.two_way(wide(both, right - base_right, QUESTION), confidence)
    nats = both["right_nats"] - both["right_nats_base"]
    return {
        "questions": points.documents, "seeds": points.seeds,
        "score": 100 * right.mean(), "base_score": 100 * base_right.mean(),
        **columns(points, "points", scale=100),
        "changed_percent": 100 * (right != base_right).mean(),
        "nats": nats.mean(), "greatest_nats": nats.abs().max(),
        "exposed_pairs_percent": 100 * both["exposure"].mean(),
        "exposed_questions_percent": 100 * (both["exposure"] > 0).mean(),
        "exposed_elsewhere_percent": 100 * (both["elsewhere"] > 0).mean(),
        "tokens": both["tokens"].mean(), "keys": both["keys"].mean() if "keys" in both else None,
        "evidence": both["evidence"].iloc[0],
    }  # fmt: skip


def right_answers(both: pd.DataFrame, suffix: str = "") -> pd.Series:
    """1 where an answer was right: by length where the task has that, as the paper's scores are."""
    by_length = both[f"correct_norm{suffix}"]
    return by_length.where(by_length.notna(), both[f"correct{suffix}"]).astype(float)


@paired
def within_reach(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    """A row a mask, benchmark (and the paper's four together) and base: scores and their difference
    in points over all questions and over those reached, and how many answers changed among those
    reached and among the others. Nothing where a mask reaches none; no interval where it reaches
    fewer than :data:`FEWEST`."""
    if cell.method.get("name") in UNMASKED:
        return
    for known, rows in asked(results, cell, base):
        far = rows["exposure"] > 0
        inside, outside = rows[far], rows[~far]
        yield {
            **known, "questions": _number(rows), **_lost(rows, results.confidence),
            "reached_questions": _number(inside), **_lost(inside, results.confidence, "reached_"),
            "reached_changed": _changed(inside), "unreached_changed": _changed(outside),
            "evidence": rows["evidence"].iloc[0],
        }  # fmt: skip


def _lost(rows: pd.DataFrame, confidence: float, prefix: str = "") -> dict[str, float]:
    """Scores of some questions, and their difference; without ends of few."""
    right, before = right_answers(rows), right_answers(rows, "_base")
    told = {f"{prefix}score": 100 * right.mean(), f"{prefix}base_score": 100 * before.mean()}
    if _number(rows) < FEWEST:
        few = {f"{prefix}points": 100 * (right - before).mean()}
        return told | few | dict.fromkeys((f"{prefix}low", f"{prefix}high"), math.nan)
    found = statistics.two_way(wide(rows, right - before, QUESTION), confidence)
    return told | columns(found, f"{prefix}points", prefix, scale=100)


def _number(rows: pd.DataFrame) -> int:
    return len(rows.drop_duplicates(QUESTION))


def _changed(rows: pd.DataFrame) -> int:
    return int((right_answers(rows) != right_answers(rows, "_base")).sum())


@paired
def tasks(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    """A row a cell, budget, length, long-context task (and all together) and base: answers found
    (percent) and their difference in points; nats per token of the right answers above the base's.
    A base under a mask is taken at the same budget. Intervals over questions."""
    own, theirs = (results.rows_of(each.name, "ruler") for each in (cell, base))
    for (length, _, budget), ours in own.groupby(["length", "condition", "budget"], sort=False):
        same = only(theirs, length=length)
        same = same[(same["condition"] == "full") | (same["budget"] == budget)]
        both = ours.merge(same, on=QUESTION, suffixes=("", "_base"))
        for task, asked in [(ALL_TASKS, both), *both.groupby("texts", sort=False)]:
            if len(asked) > 1:
                yield {**named(cell), "task": task, "length": int(length), "budget": budget,
                       "against": base.name, **_found(asked, results.confidence)}  # fmt: skip


def _found(both: pd.DataFrame, confidence: float) -> dict[str, Any]:
    nats = both["nll"] / both["tokens"] - both["nll_base"] / both["tokens_base"]
    more = 100 * (both["found"] - both["found_base"])
    points, cost = (statistics.two_way(wide(both, each, QUESTION), confidence)
                    for each in (more, nats))  # fmt: skip
    return {
        "questions": cost.documents, "seeds": cost.seeds, "found": 100 * both["found"].mean(),
        "base_found": 100 * both["found_base"].mean(), **columns(points, "points", "points_"),
        **columns(cost, "nats"), "distant_density": both["distant_density"].mean(),
        "base_distant_density": both["distant_density_base"].mean(),
        "evidence": both["evidence"].iloc[0],
    }  # fmt: skip


@tabled()
def distances(results: Results) -> Iterator[dict[str, Any]]:
    """A row a cell, budget and length of the text before the question: the divergence (nats a
    token, interval over questions), percent of the tokens that both models hold likeliest; and,
    where it was read, the change of the perplexity on plays against the pretrained model."""
    grouped = results.readings["chat"].groupby(["cell", "before", "budget"], sort=False)
    for (name, before, budget), own in grouped:
        cell = results.cells[str(name)]
        found = statistics.two_way(wide(own, own["divergence"], ["document"]), results.confidence)
        yield {
            **named(cell), "rate": cell.regime.get("learning_rate"), "before": int(before),
            "budget": budget,
            "questions": found.documents, **columns(found, "divergence"),
            "agreed": own["agreed"].mean(),
            "distant_density": own["distant_density"].mean(), **gain(results, cell, str(budget)),
            "evidence": own["evidence"].iloc[0],
        }  # fmt: skip


def apart(results: Results, one: str, other: str, before: int) -> statistics.Interval:
    """How much further one cell's answers are than another's, paired by question; or Missing."""
    read = (need(only(results.rows_of(each, "chat"), before=before)) for each in (one, other))
    own, theirs = (wide(rows, rows["divergence"], ["document"]).mean(0) for rows in read)
    return statistics.two_way(own - theirs, results.confidence)


def gain(results: Results, cell: Cell, budget: str) -> dict[str, float]:
    """Change of the perplexity on plays against the pretrained model, of the cell or of what it
    starts from; empty where that was not read."""
    frame = only(quality(results), base_role="pretrained", texts="plays", reading="plays",
                 final=True)  # fmt: skip
    frame = frame[(frame["condition"] == "full") | (frame["budget"] == budget)]
    rows = (row_of(frame, cell=name) for name in (cell.name, cell.start))
    row: Any = next((each for each in rows if each is not None), {})
    found = {"gain": "change", "gain_low": "low", "gain_high": "high"}
    return {column: row.get(name) for column, name in found.items()}
