"""Words and figures as pages show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.rows import Missing

NONE = "–"  # of a cell that was not measured
NOTHING = "Not measured yet: `make reproduce` writes the result files that this is made from."


def or_nothing(told: Callable[[], str]) -> str:
    """What a function tells; :data:`NOTHING` where it has no result files."""
    try:
        return told()
    except Missing:
        return NOTHING


def percent(row: Any) -> str:
    """A change with its interval; a dash where there is none."""
    if row is None:
        return NONE
    low, high = f"{100 * row['low']:.1f}", f"{100 * row['high']:.1f}"
    return f"{100 * row['change']:+.1f}% ({low} to {high})".replace("-", "−")


def pointed(row: Any) -> str:
    """A difference in points with its interval."""
    low, high = f"{row['points_low']:.1f}", f"{row['points_high']:.1f}"
    return f"{row['points']:+.1f} points ({low} to {high})".replace("-", "−")
