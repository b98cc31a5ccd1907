"""FocusCallback: which forward passes of a Trainer run in which mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

import focus
from focus import FocusConfig
from focus.state import attached
from focus.trainer import FocusCallback
from tests.models import build, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=8)


class Watch:
    """Mode, temperature and whether the model is training, of every forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.seen: list[tuple[str, float, bool]] = []
        self.training: list[FocusConfig] = []
        model.get_decoder().register_forward_pre_hook(self)

    def __call__(self, module: Any, args: Any) -> None:
        settings = attached(self.model).settings
        self.seen.append((settings.mode, settings.config.temperature, module.training))
        if module.training:
            self.training.append(settings.config)


def trainer_of(model: PreTrainedModel, folder: Path, *callbacks: TrainerCallback,
               **options: Any) -> Trainer:  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in token_ids(12, 24)]
    options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 2, **options}
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=2, per_device_eval_batch_size=4, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, learning_rate=1e-2, **options,
    )  # fmt: skip
    return Trainer(model, args, train_dataset=data, eval_dataset=data[:4], callbacks=[*callbacks])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_soft_in_training_and_hard_in_evaluation(tmp_path: Path, accumulation: int) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    before = [p.detach().clone() for p in focus.trainable_parameters(model)]
    base = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    watch = Watch(model)
    trainer = trainer_of(model, tmp_path, FocusCallback(), gradient_accumulation_steps=accumulation)
    trainer.train()
    assert [seen[0] for seen in watch.seen if seen[2]] == ["soft"] * 3 * accumulation
    assert {seen[0] for seen in watch.seen if not seen[2]} == {"hard"}
    watch.seen.clear()
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)
    assert {seen[0] for seen in watch.seen} == {"hard"}
    after = list(focus.trainable_parameters(model))
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, base)


def test_a_schedule_holds_step_by_step(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    watch = Watch(model)
    schedule = partial(focus.recipe_schedule, start=0.4, top_ks=(1, 2))
    trainer_of(model, tmp_path, FocusCallback(schedule)).train()
    trained = [(round(each.temperature, 4), each.gate, each.top_k) for each in watch.training]
    assert trained == [(0.4, "log", 1), (0.2, "log", 1), (0.1, "straight_through", 1)]
    assert {temperature for _, temperature, training in watch.seen if not training} == {0.1}
    assert attached(model).config == CONFIG


def test_padded_batches_train(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), focus.FocusConfig.recipe(num_groups=4, window=8), seed=0)
    before = [p.detach().clone() for p in focus.trainable_parameters(model)]
    trainer = trainer_of(model, tmp_path, FocusCallback(), eval_strategy="no")
    mask = torch.ones(24, dtype=torch.long)
    mask[15:] = 0
    trainer.train_dataset = [
        {**row, "attention_mask": mask if number % 2 else torch.ones_like(mask)}
        for number, row in enumerate(trainer.train_dataset)
    ]
    trainer.train()
    after = list(focus.trainable_parameters(model))
    assert all(p.isfinite().all() for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(r.potentials.isfinite().all() for r in attached(model).routers.values())


def test_an_error_in_a_step_leaves_no_mode(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    trainer = trainer_of(model, tmp_path, FocusCallback())
    head, model.lm_head = model.lm_head, None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        trainer.train()
    assert attached(model).settings.mode == "hard"
    model.lm_head = head
    watch = Watch(model)
    trainer.evaluate()
    assert {seen[0] for seen in watch.seen} == {"hard"}


def test_other_settings_of_training(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    gates = []
    model.get_decoder().register_forward_pre_hook(
        lambda *_: gates.append(attached(model).settings.config.gate)
    )
    callback = FocusCallback(gate="straight_through")
    trainer_of(model, tmp_path, callback, eval_strategy="no").train()
    assert gates == ["straight_through"] * 3


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schedule: must be a function"):
        FocusCallback((0.3, 0.1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="topk: unknown field"):
        FocusCallback(topk=3)
    with pytest.raises(ValueError, match="not attached"):
        trainer_of(build("llama"), tmp_path, FocusCallback()).train()
