"""Pairs that belong together, and the mask of a head."""

from __future__ import annotations

from typing import Any

import pytest

from analysis import pairs
from analysis.figures import pairs as drawn
from analysis.rows import Missing
from tests.analysis.group_files import write_affinity, write_induction, write_picture
from tests.analysis.result_files import RECIPE, ROUTERS

OURS: dict[str, Any] = {"method": RECIPE, "regime": ROUTERS, "against": ["adapted"]}


def test_what_copying_needs_is_told_by_layer_with_intervals(results):
    assert pairs.induction(results).empty
    with pytest.raises(Missing):
        drawn.induction(results)
    write_induction(results.root, 0.35, 0.5, **OURS)
    frame = pairs.induction(type(results)(results.base))
    assert set(frame["layer"]) == {"all", "0", "1"}
    row = frame[frame["layer"] == "all"].iloc[0]
    assert row["weight_shared"] == pytest.approx(35.5)
    assert row["weight_more"] == pytest.approx(15.5)
    assert row["more"] == pytest.approx(1)
    assert row["nats"] == pytest.approx(252 / 248)
    assert row["dearer"] == pytest.approx(0.505)
    assert row["dearer_low"] < row["dearer"] < row["dearer_high"]
    assert row["documents"] == 6


def test_links_stand_beside_words_without_one(results):
    write_affinity(results.root, {"name": 0.4, "word": 0.3, "time": 0.2}, wobble=0.0, **OURS)
    frame = pairs.affinity(results)
    own = frame[frame["layer"] == "all"].set_index("link")
    assert own.loc["name", "pairs"] == 2 * sum(20 + n for n in range(6))
    assert own.loc["name", "more"] == pytest.approx(30)
    assert own.loc["name", "beyond"] == pytest.approx(10)
    assert own["beyond"].isna().to_dict() == {"name": False, "word": True, "time": True}


def test_a_document_counts_each_of_its_pairs_alike(results):
    write_affinity(results.root, {"name": 0.4}, wobble=0.0, **OURS)
    path = results.root / "recipe/read/affinity/rows.csv"
    text = path.read_text().splitlines()
    part = text[0].split(",").index("part")
    share, count = (text[0].split(",").index(name) for name in ("shared", "pairs"))
    lines = [line.split(",") for line in text[1:]]
    for line in lines:
        line[share], line[count] = ("0.4", "30") if line[part] == "0" else ("0.8", "10")
    path.write_text("\n".join([text[0], *map(",".join, lines)]) + "\n")
    (row, *_) = pairs.affinity(results).to_dict("records")
    assert row["shared"] == pytest.approx(50)
    assert row["pairs"] == 6 * 40


def test_a_mask_is_drawn_as_it_is(results):
    write_picture(results.root, "abab", "aaba", ";;;1", **OURS)
    row = results.readings["picture"].iloc[0].to_dict()
    near, group, word = drawn.NEAR, drawn.GROUP, drawn.WORD
    assert drawn.sight(row).tolist() == [
        [near, 0, 0, 0],
        [near, near, 0, 0],
        [near, near, near, 0],
        [near, word, near, near],
    ]
    assert drawn.sight(row | {"sinks": 0, "queries": "aaba", "further": ";;;"})[3].tolist() == [
        group, 0, near, near,
    ]  # fmt: skip
    assert len(drawn.picture(results).axes) == 2
