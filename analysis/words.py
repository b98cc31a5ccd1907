"""Words and figures as tables and pages show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from analysis.rows import Missing, ends_of

MINUS = "\N{MINUS SIGN}"
NONE = "–"  # of a cell that was not measured
NOTHING = "Not measured yet: `make reproduce` writes the result files that this is made from."


def or_nothing(told: Callable[[], str]) -> str:
    """What a function tells; :data:`NOTHING` where it has no result files."""
    try:
        return told()
    except Missing:
        return NOTHING


def plain(number: float, digits: int) -> str:
    """A figure as it stands, without a sign before zero."""
    text = f"{number:,.{digits}f}"
    return (text if round(number, digits) else text.removeprefix("-")).replace("-", MINUS)


def between(row: Any, column: str, digits: int = 1, scale: float = 1) -> str:
    """The interval of a figure."""
    low, high = sorted(scale * float(row[name]) for name in ends_of(row, column))
    return f"({plain(low, digits)} to {plain(high, digits)})"


def ranged(row: Any, value: str, form: str, unit: str = "") -> str:
    """A value with its interval, all in one format."""
    found, low, high = (f"{row[name]:{form}}" for name in (value, *ends_of(row, value)))
    return f"{found}{unit} ({low} to {high})"


def percent(row: Any, digits: int = 1) -> str:
    """A change of perplexity with its interval; a dash where there is none."""
    if row is None:
        return NONE
    text = f"{100 * row['change']:+,.{digits}f}% {between(row, 'change', digits, 100)}"
    return text.replace("-", MINUS)


def pointed(row: Any, column: str = "points") -> str:
    """A difference in points with its interval."""
    return f"{row[column]:+.1f} points {between(row, column)}".replace("-", MINUS)


def listed(words: Sequence[str]) -> str:
    """*one, two and three*."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def plural(count: float, word: str) -> str:
    """1 seed, 3 seeds."""
    return f"{int(count)} {word}{'s' if count != 1 else ''}"


def either(counts: Iterable[float], word: str) -> str:
    """1 or 3 seeds: the counts that there are, each once."""
    every = sorted({int(each) for each in counts if each == each})
    return f"{' or '.join(map(str, every))} {word}{'s' * (every != [1])}"


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
    """Lines of a Markdown table; ``align``: l or r, a letter a column, left for the first alone."""
    marks = {"l": "---", "r": "---:"}
    align = align or "l" + "r" * (len(head) - 1)
    lines = [head, [marks[each] for each in align], *rows]
    above, *rest = [f"| {' | '.join(line)} |" for line in lines]
    return [above.replace("|  |", "| |"), *rest]
