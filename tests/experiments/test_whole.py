"""The whole model beside the pretrained one: what is timed is what it claims to be."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

import focus
from experiments import settings, whole
from experiments.evaluation import median_interval
from experiments.stages import continuation, prefill
from focus.cache import FocusCache
from tests.experiments.test_retrofit import run, workspace
from tests.models import token_ids


@pytest.fixture
def folder(tmp_path: Path, params: dict, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace(tmp_path, params)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def both(folder: Path) -> whole.Both:
    chosen = settings.load()
    return whole.load(chosen, chosen.prefill)


def test_a_pass_stands_beside_what_its_pairs_allow(folder: Path) -> None:
    run(folder, "prefill")
    table = pd.read_csv(folder / "results/prefill/table.csv").set_index("length")
    assert list(table.index) == [96, 600]
    assert (table[["full_s", "ours_s", "outside_s", "speedup"]] > 0).all(axis=None)
    assert table.loc[600, "density"] < table.loc[96, "density"] == 1
    assert table.loc[96, "bound"] == pytest.approx(1)
    assert table.loc[600, "bound"] >= 1
    assert (table["speedup_low"] <= table["speedup"]).all()
    metrics = json.loads((folder / "results/prefill/metrics.json").read_text())
    assert metrics["600.share_of_bound"] == table.loc[600, "share_of_bound"]
    assert json.loads((folder / "results/prefill/run.json").read_text())["dtype"] == "float32"


def test_generation_stands_beside_the_pretrained_models(folder: Path) -> None:
    run(folder, "continuation")
    table = pd.read_csv(folder / "results/continuation/table.csv").set_index("length")
    assert list(table.index) == [40, 300]
    assert (table[["full_s", "ours_s", "speedup"]] > 0).all(axis=None)
    assert (table["new_tokens"] == 4).all()


def test_both_models_have_the_same_weights_and_only_one_has_routers(both: whole.Both) -> None:
    ours = dict(both.ours.named_parameters())
    for name, parameter in both.full.named_parameters():
        assert ours[name].data_ptr() == parameter.data_ptr()
    assert "focus_state" not in both.full.__dict__
    routers = both.ours.focus_state.routers.values()
    assert both.ours.focus_state.config == focus.FocusConfig.recipe()
    assert all(int(router.batches) == 1 and not router.training for router in routers)


def test_without_attention_is_the_model_less_its_attention(both: whole.Both) -> None:
    ids = token_ids(1, 40)
    with torch.no_grad():
        before = both.ours(ids, use_cache=False).logits
        prefill.without_attention(both.ours, ids)
        assert torch.equal(both.ours(ids, use_cache=False).logits, before)


def test_generation_from_a_filled_cache_is_generation(both: whole.Both) -> None:
    """Again and again, since what came after the context is cut off."""
    ids = token_ids(1, 90)
    with torch.no_grad():
        wanted = continuation.generate(both.ours, ids, FocusCache(), 6)
        cache = continuation.read(both.ours, ids)
        for _ in range(2):
            continuation.timed(both.ours, ids, cache, 6)
            assert cache.get_seq_length() == 90 + 5
        cache.crop(89 - cache.get_seq_length())
        assert torch.equal(continuation.generate(both.ours, ids, cache, 6), wanted)


def test_rounds_alternate_and_the_first_warms_up(folder: Path) -> None:
    plan, seen = settings.load().continuation, []

    def call(name: str) -> float:
        seen.append(name)
        return float(len(seen))

    taken = whole.take_turns(
        {whole.FULL: lambda: call("a"), whole.OURS: lambda: call("b")},
        plan.__class__((1,), most_repetitions=2, seconds=60.0),
    )
    assert seen == list("abbaab")
    assert taken == {whole.FULL: [4.0, 5.0], whole.OURS: [3.0, 6.0]}


def test_where_time_is_short_two_rounds_have_to_do(folder: Path) -> None:
    plan = settings.load().continuation.__class__((1,), seconds=1e-9)
    taken = whole.take_turns({whole.FULL: lambda: 2.0, whole.OURS: lambda: 1.0}, plan)
    assert taken == {whole.FULL: [2.0, 2.0], whole.OURS: [1.0, 1.0]}
    found = whole.compared(taken, settings.load())
    assert (found["speedup"], found["speedup_low"], found["repetitions"]) == (2.0, 2.0, 2)


def test_a_median_lies_within_its_interval() -> None:
    found = median_interval([1.0, 1.1, 1.2, 5.0], settings.BootstrapSettings(), 0)
    assert found.value == pytest.approx(1.15)
    assert 1.0 <= found.low < found.value < found.high <= 5.0


def test_too_short_books_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^prefill\.lengths: the test books have only 1200 tok"):
        whole.text(1201, "prefill.lengths")
