"""Rows of a table by the values of its columns, and an interval as a row of a table has it."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from experiments.statistics import Interval

Found = TypeVar("Found")


class Missing(Exception):  # noqa: N818
    """What is asked for has no result files."""


def need(found: Found | None) -> Found:
    """The same; Missing where it is None, or nothing is in it."""
    if found is None or (isinstance(found, Sized) and not len(found)):
        raise Missing
    return found


def only(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rows whose columns have these values; where several are given, any of them."""
    kept = np.ones(len(frame), dtype=bool)
    for name, value in wanted.items():
        several = isinstance(value, list | tuple | set | dict)
        found = frame[name].isin(list(value)) if several else frame[name] == value
        kept &= found.to_numpy(dtype=bool, na_value=False)
    return frame[kept]


def row_of(frame: pd.DataFrame, **wanted: Any) -> pd.Series | None:
    """The first of such rows, None where there is none."""
    own = only(frame, **wanted)
    return None if own.empty else own.iloc[0]


def wide(rows: pd.DataFrame, values: pd.Series, units: list[str]) -> np.ndarray:
    """Values of the rows as (seeds, units): a column a document or question."""
    keys = [rows["seed"], *(rows[name] for name in units)]
    mean = values.groupby(keys).mean()
    return mean.unstack(list(range(1, len(keys)))).to_numpy()  # noqa: PD010 - a third of its time


def with_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Timings with the ends of their speed-ups over full attention, as it took beside them."""
    full = rows["speedup"] * rows["median_s"]
    return rows.assign(low=full / rows["high_s"], high=full / rows["low_s"])


def ends_of(rows: Any, value: str) -> tuple[str, str]:
    """Columns of the interval of a value: its own where there are such, else those of the row."""
    own = f"{value}_low", f"{value}_high"
    return own if own[0] in rows else ("low", "high")


def columns(found: Interval, value: str, prefix: str = "", scale: float = 1) -> dict[str, float]:
    """An interval as columns of a row, by the name of its value and what comes before its ends."""
    return {value: scale * found.value, f"{prefix}low": scale * found.low,
            f"{prefix}high": scale * found.high}  # fmt: skip
