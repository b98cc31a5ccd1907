"""Methods that give every query a number of keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments import registry
from tests.experiments.selection.ready import NEAR, ready
from tests.experiments.selection.test_layer import layer


def numbered(name: str, **fields: Any) -> Any:
    """A method that gives every query 24 keys, 10 of which are near ones."""
    _, method = ready(name, keys=24, **fields)
    method._centres = {0: torch.zeros(1, 4, 1, 8)}
    return method


@pytest.mark.parametrize(("name", "fields"), [
    ("sparq_keys", {"components": 8}), ("magicpig_keys", {"bits": 2}),
    ("magicpig_keys", {"bits": 1, "most_tables": 12}),
])  # fmt: skip
def test_every_query_has_its_number_of_keys_and_no_more(name: str, fields: Any) -> None:
    own = layer()
    kept = numbered(name, **fields).kept(own, None).sum(-1)
    most = (own.rows + 1).clamp(max=24).expand_as(kept)
    assert kept.equal(most) if name == "sparq_keys" else (kept <= most).all()
    assert kept[..., :24].equal(most[..., :24])  # no query leaves out a key without need


def test_sparq_of_a_number_of_keys_keeps_the_heaviest() -> None:
    """With all components its scores are full attention's own."""
    own = layer()
    kept = numbered("sparq_keys", components=8).kept(own, None)
    distant = own.logits().masked_fill(~own.distant, -torch.inf)
    for row in (30, 59):
        wanted = distant[:, :, row].topk(24 - 10).indices.sort(-1).values
        found = (kept & own.distant)[:, :, row].nonzero()[:, -1].reshape(wanted.shape)
        assert found.equal(wanted)


def test_magicpig_of_a_number_of_keys_looks_into_as_many_tables_as_fit() -> None:
    method, own, room = numbered("magicpig_keys", bits=2, most_tables=12), layer(), 24 - 10
    kept = method.kept(own, None)
    fitting = torch.zeros_like(kept)
    for agree in method.agreements(own, 12):  # one tensor, that counts on
        found = (agree >= 2) & own.distant
        fits = found.sum(-1) <= room
        fitting = torch.where(fits[..., None], found, fitting)
    some = fitting.any(-1) & (own.rows >= 24)
    assert some.any()
    assert (kept & own.distant)[some].equal(fitting[some])


def test_of_too_many_keys_some_count_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables that find every key: as many as there is room for, weighted up to all."""
    method, own = numbered("magicpig_keys"), layer()
    monkeypatch.setattr(method, "_found", lambda own: torch.full((2, 4, 60, 60), 2).short())
    monkeypatch.setattr(method, "weight", lambda own, tables: torch.zeros(2, 4, 60, 60))
    kept = method.kept(own, None)
    assert kept.sum(-1)[..., 59].eq(24).all()
    far = kept[..., 59, :] & own.distant[59]
    counted = (method._bias[..., 59, :].exp() * far).sum(-1)
    torch.testing.assert_close(counted, own.distant[59].sum().float().expand_as(counted))


def test_a_number_of_keys_goes_with_no_share_and_beyond_the_near_ones() -> None:
    kind = registry.find("method", "sparq_keys")
    with pytest.raises(ValueError, match=r"^x\.method\.keys: 10 leaves nothing"):
        kind.check(kind.Settings(**NEAR, keys=10), None, "x.budgets")
    with pytest.raises(ValueError, match=r"^x\.budgets: method sparq_keys has nothing"):
        kind.check(kind.Settings(**NEAR, keys=24), 0.25, "x.budgets")
