"""What is refused of a model that is no longer the one that was attached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import focus
from tests.models import tiny, token_ids
from tests.test_modes import CONFIG


def shortened(model: nn.Module) -> None:
    model.model.layers = model.model.layers[:1]


def told_of_fewer(model: nn.Module) -> None:
    model.config.num_hidden_layers = 1


def beheaded(model: nn.Module) -> None:
    del model.model.layers[0]


@pytest.mark.parametrize(("cut", "gone"), [(shortened, 1), (told_of_fewer, 1), (beheaded, 0)])
def test_a_model_without_some_of_its_layers_is_told(
    cut: Callable[[nn.Module], None], gone: int, tmp_path: Path
) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 40)
    cut(model)
    with torch.no_grad():
        model(ids, use_cache=False)
    calls = (focus.density, focus.memberships, focus.pair_counts, focus.trainable_parameters,
             lambda m: focus.save_adapter(m, tmp_path), lambda m: focus.set_adapter(m, "default"),
             lambda m: focus.find_heavy_hitters(m, [token_ids(1, 600)]))  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=rf"^model: layers \[{gone}\] were taken out.*detach"):
            call(model)
    assert not list(tmp_path.iterdir())


def test_what_is_left_can_be_attached_anew() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 40)
    shortened(model)
    focus.detach(model).config.num_hidden_layers = 1
    focus.attach(model, CONFIG, seed=0)
    with torch.no_grad():
        model(ids)
    assert set(focus.density(model)) == {0}
