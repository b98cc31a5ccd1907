"""Budgets that a method can keep, and those that it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import settings

PLAIN = {"regime": {"name": "none"}}


def control(name: str, *budgets: Any, **fields: Any) -> dict[str, Any]:
    """An untrained experiment of a method."""
    return {"method": {"name": name, **fields}, "budgets": list(budgets), **PLAIN}


TRAINED = {"regime": {"name": "lora", "steps": 2}}


UNKEPT = [
    (control("full", 0.5), "budgets[0]: method full has nothing to spend a budget on"),
    (control("ngram", 0.5), "budgets[0]: method ngram has nothing to spend"),
    (control("window", {"top_k": 1}), "budgets[0]: method window takes a share of the distant"),
    (control("random"), "budgets: method random needs a share of the distant pairs"),
    (control("position"), "budgets: method position needs a share"),
    (control("token"), "budgets: method token needs a share"),
    (control("oracle_heads"), "budgets: method oracle_heads needs a share"),
    (control("oracle_heads", {"top_k": 1}), "budgets[0]: method oracle_heads takes a share"),
    (control("random", 0.5, 0.01), "budgets[1]: a share of 0.01 takes more than 64 groups"),
    (control("position", 0.015), "budgets[0]: a share of 0.015 takes more than 64 groups"),
    (control("token", 0.001), "budgets[0]: a share of 0.001 takes more than 64 groups"),
    (control("window", 0.5, windo=1), "method.windo: unknown field"),
    (control("oracle_heads", 0.5, ngram=3), "method.ngram: unknown field"),
    ({**control("random", 0.5), **TRAINED}, "regime.name: no weights can be trained under method"),
    ({**control("oracle_heads", 0.5), **TRAINED}, "regime.name: no weights can be trained"),
    ({**control("ngram", trained_at=0.5), **TRAINED}, "method.trained_at: method ngram has nothin"),
    ({**control("position", 0.5), **TRAINED}, "method.trained_at: method position needs a share"),
    ({**control("token", 0.5), **TRAINED}, "method.trained_at: method token needs a share"),
]


@pytest.mark.parametrize(("cell", "message"), UNKEPT, ids=[message for _, message in UNKEPT])
def test_a_budget_that_a_method_cannot_keep(file: Any, cell: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        settings.parse(file(one=cell))
    assert str(caught.value).startswith(f"experiments.one.{message}")


KEPT = [control("full"), control("window"), control("window", 0.001, 1.0), control("ngram"),
        control("random", 0.0625, 1.0), control("position", 1 / 64), control("token", 0.5),
        control("oracle_heads", 0.001), control("oracle_heads", 0.5, window=64),
        {**control("window"), **TRAINED}, {**control("window", 0.1, trained_at=0.1), **TRAINED},
        {**control("full"), **TRAINED}]  # fmt: skip


@pytest.mark.parametrize("cell", KEPT, ids=str)
def test_budgets_that_methods_keep(file: Any, cell: dict[str, Any]) -> None:
    assert settings.parse(file(one=cell)).cell("one").method.name == cell["method"]["name"]
