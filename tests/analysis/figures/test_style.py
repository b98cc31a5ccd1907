"""Labels that figures share."""

from __future__ import annotations

import pytest

from analysis.figures import style


def test_labels_of_lengths_do_not_touch():
    _, (axis,) = style.axes(1, 4, 3)
    style.lengths(axis, [2**n for n in (10, 12, 14, 15, 16, 18, 20)])
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown == ["1K", "4K", "16K", "64K", "256K", "1M"]


@pytest.mark.parametrize(
    ("tokens", "text"), [(256, "256"), (1024, "1K"), (2**20, "1M"), (1500, "1500")]
)
def test_lengths_are_short(tokens, text):
    assert style.short(tokens) == text
