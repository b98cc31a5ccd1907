"""The whole model beside the pretrained one: what is timed is what it claims to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import focus
from experiments.kernels import whole
from experiments.settings import Continuation, Settings
from experiments.stages import continuation, prefill
from focus.cache import FocusCache
from tests.experiments.training import workspace
from tests.models import token_ids


@pytest.fixture
def chosen(tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    short = {"model": "tiny-llama", "calibration": 1, "calibration_context": 64}
    params["prefill"].update(short)
    params["continuation"].update(short)
    monkeypatch.chdir(tmp_path)
    return workspace(tmp_path, params)


@pytest.fixture
def models(chosen: Settings) -> whole.Models:
    return whole.load(chosen, chosen.prefill, "float32")


@pytest.fixture
def ours(models: whole.Models) -> PreTrainedModel:
    return models.routed[whole.UNTRAINED]


def test_both_models_have_the_same_weights_and_only_one_has_routers(
    models: whole.Models, ours: PreTrainedModel
) -> None:
    weights = dict(ours.named_parameters())
    for name, parameter in models.full.named_parameters():
        assert weights[name].data_ptr() == parameter.data_ptr()
    assert "focus_state" not in models.full.__dict__
    routers = ours.focus_state.routers.values()
    assert ours.focus_state.config == focus.FocusConfig.recipe()
    assert all(int(router.batches) == 1 and not router.training for router in routers)


def test_without_attention_is_the_model_less_its_attention(ours: PreTrainedModel) -> None:
    ids = token_ids(1, 40)
    with torch.no_grad():
        before = ours(ids, use_cache=False).logits
        prefill.without_attention(ours, ids)
        assert torch.equal(ours(ids, use_cache=False).logits, before)


def test_generation_from_a_filled_cache_is_generation(ours: PreTrainedModel) -> None:
    """Again and again, since what came after the context is cut off."""
    ids = token_ids(1, 90)
    with torch.no_grad():
        wanted = continuation.generate(ours, ids, FocusCache(), 6)
        cache = continuation.read(ours, ids)
        for _ in range(2):
            continuation.timed(ours, ids, cache, 6)
            assert cache.get_seq_length() == 90 + 5
        cache.crop(89 - cache.get_seq_length())
        assert torch.equal(continuation.generate(ours, ids, cache, 6), wanted)


def short_plan(**changes: Any) -> Continuation:
    return Continuation(model="tiny-llama", texts="letters", contexts=(1,), **changes)


def test_rounds_alternate_and_the_first_warms_up() -> None:
    seen: list[str] = []

    def call(name: str) -> float:
        seen.append(name)
        return float(len(seen))

    taken = whole.take_turns(
        {whole.FULL: lambda: call("a"), "routed": lambda: call("b")},
        short_plan(most_repetitions=2, seconds=60.0),
    )
    assert seen == list("abbaab")
    assert taken == {whole.FULL: [4.0, 5.0], "routed": [3.0, 6.0]}


def test_where_time_is_short_three_rounds_count(chosen: Settings) -> None:
    runs = {whole.FULL: lambda: 2.0, "routed": lambda: 1.0}
    taken = whole.take_turns(runs, short_plan(seconds=1e-9))
    assert taken == {whole.FULL: [2.0] * 3, "routed": [1.0] * 3}
    found = whole.compared(taken, "routed", chosen)
    assert (found["speedup"], found["speedup_low"], found["repetitions"]) == (2.0, 2.0, 3)


def test_too_short_texts_are_named(chosen: Settings) -> None:
    assert whole.text(chosen.prefill, 800, "prefill.lengths", chosen).shape == (1, 800)
    with pytest.raises(ValueError, match=r"^prefill\.lengths: the validation side of letters has"):
        whole.text(chosen.prefill, 801, "prefill.lengths", chosen)
