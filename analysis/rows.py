"""Rows of a table by the values of its columns, and an interval as a row of a table has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis.results import Results
from experiments.statistics import Interval

Found = TypeVar("Found")
Rows = Iterable[Mapping[str, Any]]
Table = Callable[[Results], pd.DataFrame]


class Missing(Exception):  # noqa: N818
    """What is asked for has no result files."""


def need(found: Found | None) -> Found:
    """The same; Missing where it is None, or nothing is in it."""
    if found is None or (isinstance(found, Sized) and not len(found)):
        raise Missing
    return found


def tabled(*columns: str) -> Callable[[Callable[[Results], Rows]], Table]:
    """Makes a function that yields rows one that gives them as a table, made once.

    Args:
        columns: of the table, where no row need have all; else those of the rows, in their order,
            and none where there is no row.
    """

    def decorate(make: Callable[[Results], Rows]) -> Table:
        @cache
        @wraps(make)
        def made(results: Results) -> pd.DataFrame:
            return pd.DataFrame(list(make(results)), columns=list(columns) or None)

        return made

    return decorate


def only(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rows whose columns have these values; where several are given, any of them."""
    if frame.columns.empty:  # of a table without rows
        return frame
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


SHAPE = ["hardware", "device", "length", "heads", "key_heads", "head_dim", "dtype", "direction"]


def with_ends(rows: pd.DataFrame, every: pd.DataFrame | None = None) -> pd.DataFrame:
    """Timings with the ends of their speed-ups over full attention: of their own range, and with
    ``every`` timing, full attention's among them, of its range, too."""
    low = high = rows["speedup"] * rows["median_s"]
    if every is not None and len(every):
        full = only(every, method="full").drop_duplicates(SHAPE)[[*SHAPE, "low_s", "high_s"]]
        beside = rows[SHAPE].merge(full, on=SHAPE, how="left").set_index(rows.index)
        low, high = beside["low_s"].fillna(low), beside["high_s"].fillna(high)
    return rows.assign(low=low / rows["high_s"], high=high / rows["low_s"])


def ends_of(rows: Any, value: str) -> tuple[str, str]:
    """Columns of the interval of a value: its own where there are such, else those of the row."""
    own = f"{value}_low", f"{value}_high"
    return own if own[0] in rows else ("low", "high")


def ends(*values: str) -> list[str]:
    """Columns of values and of their intervals."""
    return [f"{value}{end}" for value in values for end in ("", "_low", "_high")]


def columns(found: Interval, value: str, prefix: str = "", scale: float = 1) -> dict[str, float]:
    """An interval as columns of a row, by the name of its value and what comes before its ends."""
    return {value: scale * found.value, f"{prefix}low": scale * found.low,
            f"{prefix}high": scale * found.high}  # fmt: skip
