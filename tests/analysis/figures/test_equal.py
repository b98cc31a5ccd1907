"""A cell far from all others, and an axis that still tells those apart."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.figures import equal, style

CELLS = ["a", "b", "c"]


def cut(far: float) -> tuple[tuple[float, float], list[str]]:
    frame = pd.DataFrame({"cell": CELLS, "change": [0.01, -0.01, far]})
    frame = frame.assign(low=frame["change"] - 0.01, high=frame["change"] + 0.01)
    _, (axis,) = style.axes(1, 4, 3)
    axis.set_xlim(-100, 100)
    equal.cut(axis, frame, CELLS)
    return axis.get_xlim(), [each.get_text() for each in axis.texts]


@pytest.mark.parametrize("far", [0.5, -0.5])
def test_what_lies_far_off_is_written_down(far):
    (low, high), texts = cut(far)
    assert (low, high) == pytest.approx((-2.32, 2.32))
    assert texts == [f"off the axis: {100 * far:+.0f} to {100 * far:+.0f}%"]


def test_what_lies_near_the_others_is_drawn():
    assert cut(0.05) == ((-100, 100), [])


@pytest.mark.parametrize(("budget", "words"), [
    ("0.125", "asked for: 12.5% of the distant pairs"), ("own", "the method's own"),
    ("k1.symmetric.causal", "mask: 1 group per query, causal balance"),
    ("k2.multi_probe.sinkhorn", "mask: 2 groups per query, sinkhorn balance"),
])  # fmt: skip
def test_a_budget_has_words(budget: str, words: str) -> None:
    assert equal._budget(budget) == words


@pytest.mark.parametrize(("kept", "words"), [
    ([0.26, 0.40], "\n(keeps 26% to 40%, not 12%)"), ([0.13, 0.14], ""),
])  # fmt: skip
def test_a_row_that_keeps_far_more_says_so(kept: list[float], words: str) -> None:
    rows = pd.DataFrame({"distant_density": kept, "base_distant_density": 0.12})
    assert equal.apart(rows) == words
