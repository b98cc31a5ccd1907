"""Benchmarks on the questions that a mask reaches."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.answers import ALL_FOUR, FEWEST, FOUR, within_reach
from analysis.pages import rivals
from analysis.results import Results
from analysis.rows import Missing
from analysis.words import NONE
from tests.analysis.result_files import PAPER, write_read

WINDOW = {"name": "window", "ngram": 0, "sinks": 0}


def write(results: Results, block: str, reached: int, wrong: int, *, shots: int = 0,
          tasks: tuple[str, ...] = ("hellaswag",), **method: Any) -> Results:  # fmt: skip
    """Forty questions of a task, of which a mask of 16 tokens reaches the first few and turns some
    of those wrong."""
    for name, missed in (("answers_pretrained", 0), (block, wrong)):
        for task in tasks:
            rows = [
                {"seed": 0, "condition": "hard" if name == block else "full", "budget": "own",
                 "document": str(n), "sha": f"{n:012x}", "shots": shots,
                 "correct": float(n >= missed), "correct_norm": None, "right_nats": -3.0,
                 "tokens": 20 if n < reached else 16, "exposure": 0.0}
                for n in range(40)
            ]  # fmt: skip
            known = {"method": method, "against": ["answers_pretrained"]} if name == block else {}
            write_read(results.root, name, rows, reading="benchmarks", texts=task,
                       kind="benchmarks", **known)  # fmt: skip
    return Results(results.base)


def test_a_loss_over_all_questions_is_diluted_by_those_out_of_reach(results):
    own = write(results, "answers_window", 20, 4, **WINDOW, window=16)
    row = within_reach(own).iloc[0]
    assert (row["questions"], row["reached_questions"]) == (40, 20)
    assert (row["points"], row["reached_points"]) == (pytest.approx(-10), pytest.approx(-20))
    assert row["reached_low"] < -20 < row["reached_high"] < 0
    assert (row["reached_changed"], row["unreached_changed"]) == (4, 0)
    assert (row["reached_score"], row["reached_base_score"]) == (80, 100)


@pytest.mark.parametrize("reached", [0, 1, FEWEST - 1])
def test_a_few_questions_have_no_interval(results, reached):
    own = write(results, "answers_window", reached, reached, **WINDOW, window=16)
    row = within_reach(own).iloc[0]
    assert row["reached_questions"] == row["reached_changed"] == reached
    assert row["low"] == row["low"]
    assert row["reached_low"] != row["reached_low"]  # not a number


def test_what_changes_out_of_reach_is_counted(results):
    own = write(results, "answers_window", 20, 25, **WINDOW, window=16)
    row = within_reach(own).iloc[0]
    assert (row["reached_changed"], row["unreached_changed"]) == (20, 5)


def test_only_what_a_window_bounds_has_a_reach(results):
    own = write(results, "answers_performer", 20, 4, name="performer", window=16)
    assert within_reach(own).empty


def test_both_masks_stand_in_one_table(results):
    with pytest.raises(Missing):
        rivals.reached(results)
    write(results, "answers_window", 20, 4, tasks=FOUR, **WINDOW, window=16)
    write(results, "answers_paper_window", 20, 0, tasks=FOUR, **PAPER, window=16)
    own = write(results, "answers_ours_window", 20, 0, tasks=FOUR, **PAPER, window=16)
    assert set(within_reach(own)["texts"]) == {*FOUR, ALL_FOUR}
    (line,) = rivals.reached(own).splitlines()[2:]
    start = "| none | 16 | 80 of 160 | \N{MINUS SIGN}10.0 ("
    assert line.startswith(start)
    assert line.endswith("| +0.0 (0.0 to 0.0) | +0.0 (0.0 to 0.0) | +0.0 (0.0 to 0.0) |")


def test_a_dash_stands_where_hardly_a_question_is_reached(results):
    own = write(results, "answers_longformer", 1, 1, tasks=FOUR, **WINDOW, window=16)
    (line,) = rivals.reached(own).splitlines()[2:]
    assert line.endswith(f") | {NONE} | {NONE} | {NONE} | {NONE} |")
