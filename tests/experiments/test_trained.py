"""Models as they are read: what they start from, with which seed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import trained, training
from tests.experiments.training import CENTROIDS, LORA, ROUTED
from tests.models import tiny, token_ids


def test_an_experiment_starts_from_another_with_its_seed_or_the_first(work: Any) -> None:
    chosen = work(later={"base": "routed", "start": "recipe", "seeds": [0, 2]})
    cell = chosen.cell("later")
    assert [(each.name, seed) for each, seed in trained.before(cell, 2, chosen)] == [
        ("adapted", 0), ("recipe", 2)
    ]  # fmt: skip
    starts = trained.settings_of(cell, 2, chosen)["starts"]
    assert [(each["regime"]["name"], each["seed"]) for each in starts] == [
        ("lora", 0), ("centroids", 2)
    ]  # fmt: skip


def test_the_start_is_merged_before_routers_are_trained(work: Any) -> None:
    chosen = work()
    training.train("recipe", 0, chosen)
    ids = token_ids(1, 50)
    adapted = trained.build(chosen.cell("adapted"), 0, chosen)
    recipe = trained.build(chosen.cell("recipe"), 0, chosen)
    with torch.no_grad():
        wanted = adapted.model(input_ids=ids).logits
        with trained.focus.mode(recipe.model, "full"):
            assert torch.equal(recipe.model(input_ids=ids).logits, wanted)
        assert not torch.allclose(tiny("tiny-llama")(input_ids=ids).logits, wanted, atol=0.01)
    assert not any(p.requires_grad for p in recipe.model.parameters())
    assert not recipe.model.training


def test_a_model_that_starts_from_routers_has_them_under_focus_alone(work: Any) -> None:
    chosen = work(
        plainly={"base": "plain", "start": "routed"},
        wider={"base": "plain", "method": {**ROUTED, "window": 16}, "start": "routed"},
    )
    training.train("routed", 0, chosen)
    plainly, wider, routed = (
        trained.build(chosen.cell(name), 0, chosen) for name in ("plainly", "wider", "routed")
    )
    assert "focus_state" not in plainly.model.__dict__
    ours, theirs = (each.model.focus_state for each in (wider, routed))
    assert torch.equal(ours.routers[1].centroids, theirs.routers[1].centroids)
    assert (ours.config.window, theirs.config.window) == (16, 8)


def test_weights_that_are_missing_or_others_are_refused(work: Any) -> None:
    chosen = work()
    with pytest.raises(ValueError, match=r"experiments\.stages\.train adapted --seed 1"):
        trained.build(chosen.cell("adapted"), 1, chosen)
    training.train("adapted", 0, chosen)
    trained.build(chosen.cell("adapted"), 0, chosen)
    shorter = work(adapted={"base": "plain", "seeds": [0, 1], "regime": {**LORA, "steps": 3}})
    with pytest.raises(ValueError, match="under other settings"):
        trained.build(shorter.cell("adapted"), 0, shorter)
    folder = trained.weights(chosen.cell("adapted"), 0, chosen)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match="is missing"):
        trained.build(chosen.cell("adapted"), 0, chosen)
    training.train("adapted", 0, chosen)
    trained.build(chosen.cell("adapted"), 0, chosen)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match="is missing"):
        trained.begin(chosen.cell("recipe"), 0, chosen)


def test_weights_are_those_that_were_written(work: Any) -> None:
    chosen = work()
    training.train("adapted", 0, chosen)
    cell = chosen.cell("adapted")
    folder = trained.weights(cell, 0, chosen)
    path = folder / "adapter_model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes(20))
    with pytest.raises(ValueError, match="not as it was written"):
        trained.build(cell, 0, chosen)
    record = folder.parent / "run.json"
    record.write_text(record.read_text().replace('"weights"', '"other"'))  # an old record
    path.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"adapter: cannot be read .*train adapted --seed 0"):
        trained.build(cell, 0, chosen)


def test_a_model_of_ones_own_may_be_replaced(work: Any) -> None:
    chosen = work(mine={"base": "plain", "model": "tiny-llama"})
    cell, stamp = chosen.cell("mine"), Path("data/sources/tiny-llama/source.json")
    listed = trained.inputs(cell, 0, chosen)
    assert set(listed) == {"texts", "starts"}
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({"name": "tiny-llama", "from": {"kind": "hub"}}))
    assert trained.inputs(cell, 0, chosen) == listed
    for sha256 in ("one", "two"):
        stamp.write_text(json.dumps({"name": "tiny-llama", "from": "FOCUS_DATA", "sha256": sha256}))
        assert trained.inputs(cell, 0, chosen) == {**listed, "model": sha256}


def test_a_scratch_model_starts_from_nothing(work: Any) -> None:
    how = {"name": "scratch", "steps": 2, "context": 32}
    chosen = work(odd={"base": "plain", "start": "adapted", "regime": how})
    with pytest.raises(ValueError, match=r"experiments\.odd\.start: regime scratch"):
        training.train("odd", 0, chosen)


def test_how_a_cell_is_read_is_no_part_of_its_training(work: Any) -> None:
    cells = [
        work(routed={"base": "plain", "method": ROUTED, "regime": how, "budgets": budgets})
        for how, budgets in (
            (CENTROIDS, []),
            ({**CENTROIDS, "checkpoint_every": 1}, [0.25]),
            ({**CENTROIDS, "steps": 9}, []),
        )
    ]
    first, second, third = (trained.settings_of(c.cell("routed"), 0, c) for c in cells)
    assert first == second
    assert first != third
