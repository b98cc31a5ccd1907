from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from analysis.paper import audit, claims, magnitude, paper, printed

# Cells of each table that hold a figure or a categorical claim, counted by hand from the paper.
FIGURES = {
    "table1": 36,
    "routing_dim": 12,
    "table2": 42,
    "table2.notes": 4,
    "gsm8k": 3,
    "table3": 18,
    "table4": 30,
    "table5": 6,
    "domains": 6,
    "from_scratch": 3,
    "long_context": 12,
    "table6": 14,
    "table6.notes": 3,
    "table7": 32,
    "table8": 24,
    "dominance": 8,
    "groups": 13,
    "groups.notes": 4,
    "table9": 64,
    "table9.notes": 3,
    "table10": 25,
    "figure1": 1,
    "decomposition": 2,
}


KINDS = {"perplexity", "score", "count", "parameters", "speed", "density", "balance", "categorical",
         "identity", "audit"}  # fmt: skip


def figures(entry: dict[str, Any]) -> int:
    return sum(
        value is not None
        for row in printed(entry["id"])
        for column, value in row.items()
        if column not in entry["keys"]
    )


def test_every_table_has_the_figures_of_the_paper():
    assert {entry["id"]: figures(entry) for entry in paper()["tables"]} == FIGURES


def test_every_figure_is_exactly_one_claim():
    ids = Counter(claim.id for claim in claims())
    assert max(ids.values()) == 1
    assert len(ids) == sum(FIGURES.values()) + len(audit())
    for entry in paper()["tables"]:
        for row in printed(entry["id"]):
            name = entry["row"].format(**row)
            for column, value in row.items():
                if column not in entry["keys"] and value is not None:
                    assert ids[f"{entry['id']}.{name}.{column}"] == 1


def test_every_claim_is_of_a_known_kind():
    assert {claim.kind for claim in claims()} == KINDS


def test_ids_that_others_rely_on():
    ids = {claim.id: claim for claim in claims()}
    assert ids["table7.gpt2-124m.k2.ppl"].paper == 41.3
    assert ids["table6.t1048576.speedup_K8"].paper == 8.6
    assert ids["decomposition.subtraction.cosine"].paper == 0.79
    assert [f"audit.{i}" in ids for i in range(1, 13)] == [True] * 12
    assert ids["ours.headline.adapted.0.125"].source == "ours"


def test_statements_name_the_model_and_are_whole():
    for claim in claims():
        assert claim.statement
        assert "{" not in claim.statement, claim.id


@pytest.mark.parametrize(
    ("text", "number"), [("148K", 148e3), ("7.1M", 7.1e6), ("2B", 2e9), (0.79, 0.79), ("no", None)]
)
def test_magnitude(text, number):
    assert magnitude(text) == number


def test_an_unknown_table_is_named():
    with pytest.raises(ValueError, match="table99"):
        printed("table99")
