"""Tables from rows, where there are none, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from analysis.results import Results
from analysis.rows import Missing, ends, need, only, row_of, tabled
from analysis.words import ranged


@pytest.mark.parametrize(("named", "columns"), [
    ((), ["a", "b", "c"]), (ends("b"), ["b", "b_low", "b_high"]),
])  # fmt: skip
def test_columns_are_those_of_the_rows_or_those_named(
    results: Results, named: list[str], columns: list[str]
) -> None:
    made = []

    @tabled(*named)
    def table(asked: Results) -> Iterator[dict[str, Any]]:
        made.append(asked)
        yield {"a": 1, "b": 2}
        yield {"a": 1, "b": 3, "c": 4}

    assert list(table(results)) == columns
    assert table(results)["b"].tolist() == [2, 3]
    assert made == [results]


def test_a_table_of_no_rows_can_be_asked_for_any(results: Results) -> None:
    @tabled()
    def table(asked: Results) -> list[dict[str, Any]]:
        return []

    assert only(table(results), a=1).empty
    assert row_of(table(results), a=1) is None
    with pytest.raises(Missing):
        need(only(table(results), a=1))
    with pytest.raises(KeyError):  # a name that no row could have
        only(pd.DataFrame(columns=["a"]), b=1)


@pytest.mark.parametrize("known", [
    {"a": 0.5, "low": 0.25, "high": 1.0}, {"a": 0.5, "a_low": 0.25, "a_high": 1.0, "low": 9},
])  # fmt: skip
def test_an_interval_is_told_in_the_format_of_its_value(known: dict[str, float]) -> None:
    assert ranged(known, "a", ".0%") == "50% (25% to 100%)"
    assert ranged(known, "a", "+.2f", "x") == "+0.50x (+0.25 to +1.00)"
