"""Groups that the page shows are those that the mask goes by."""

from __future__ import annotations

import pytest
import torch

import focus
from experiments.sources import models
from experiments.view.capture import capture, pieces_of, spread

MODEL = "tiny-llama"
CONFIG = focus.FocusConfig(num_groups=4, top_k=2, window=4, sinks=1, routers="query_head",
                           probe="multi_probe")  # fmt: skip


@pytest.fixture(scope="module")
def routed():
    torch.manual_seed(0)
    return focus.attach(models.load(MODEL, device="cpu")[0], CONFIG)


def test_shown_groups_are_the_memberships(routed) -> None:
    tokenizer, ids = models.load_tokenizer(MODEL), torch.arange(40, 64)
    found = capture(routed, tokenizer, ids, "letters", "tiny", top_k=2)
    with focus.mode(routed, "hard", top_k=2), torch.no_grad():
        routed(ids[None], use_cache=False)
        members = focus.memberships(routed)
    for layer in found["layers"]:
        own = members[layer["index"]]
        for shown, real in ((layer["keys"], own.of_keys[0]), (layer["queries"], own.query[0])):
            for groups, masks in zip(shown, real, strict=True):
                assert [set(each) for each in groups] == [
                    set(mask.nonzero()[:, 0].tolist()) for mask in masks
                ]
        assert all(0.25 <= each <= 1 for each in layer["confidence"][0])
    assert [found[name] for name in ("groups", "window", "sinks")] == [4, 4, 1]
    assert "".join(found["pieces"]) == tokenizer.decode(ids)


def test_a_text_that_fits_the_window_has_groups_too(routed) -> None:
    found = capture(routed, models.load_tokenizer(MODEL), torch.tensor([50, 51]), "short", "tiny")
    assert len(found["layers"][0]["keys"][0]) == 2


@pytest.mark.parametrize(("length", "message"), [(0, "is empty"), (5000, "give a shorter text")])
def test_what_cannot_be_shown_is_refused(routed, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        capture(routed, models.load_tokenizer(MODEL), torch.zeros(length).long(), "", "")


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread(list(range(30)), 5) == [0, 7, 14, 22, 29]
    assert spread([1, 2], 5) == [1, 2]
    assert spread([3, 4, 5], 1) == [3]


def test_pieces_join_to_the_text() -> None:
    tokenizer = models.load_tokenizer(MODEL)
    ids = tokenizer("naïve — 日本")["input_ids"]
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)
