"""FocusCallback: which forward passes of a Trainer run in which mode."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

import focus
from focus import FocusConfig
from focus.call import KEYWORD
from focus.named import state_of
from focus.state import attached
from focus.trainer import FocusCallback
from tests.models import build, logits, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=8)


class Watch:
    """Mode, temperature and whether the model is training, of every forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.seen: list[tuple[str, float, bool]] = []
        self.training: list[FocusConfig] = []
        model.get_decoder().register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        call = kwargs[KEYWORD]
        self.seen.append((call.mode.name, call.config.temperature, module.training))
        if module.training:
            self.training.append(call.config)


def trainer_of(model: PreTrainedModel, folder: Path, *callbacks: TrainerCallback,
               **options: Any) -> Trainer:  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in token_ids(12, 24)]
    options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no",
               **options}  # fmt: skip
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=2, per_device_eval_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=1e-2, **options,
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


@pytest.mark.filterwarnings("error:the routers are as focus.attach made them")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_mixed_precision_trains_as_float32_does(tmp_path: Path, checkpointing: bool) -> None:
    """Routers and potentials stay float32; losses agree to the precision of bfloat16. Evaluation
    does not call the trained routers random, whatever optimiser wrote to them."""
    runs, config = {}, focus.FocusConfig.recipe(num_groups=4, window=8)
    for bf16 in (False, True):
        model = focus.attach(build("llama"), config, seed=0)
        trainer = trainer_of(model, tmp_path, FocusCallback(), bf16=bf16, logging_steps=1,
                             gradient_checkpointing=checkpointing)  # fmt: skip
        trainer.train()
        assert {each.dtype for each in values(model).values() if each.is_floating_point()} == {
            torch.float32
        }
        history = trainer.state.log_history
        runs[bf16] = [each["loss"] for each in history if "loss" in each] + [
            each["eval_loss"] for each in history if "eval_loss" in each
        ]
    assert runs[True] != runs[False]  # so that autocast was on
    assert runs[True] == pytest.approx(runs[False], rel=1e-2)


def test_a_schedule_holds_step_by_step(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    watch = Watch(model)
    schedule = partial(focus.recipe_schedule, start=0.4, top_ks=(1, 2))
    trainer_of(model, tmp_path, FocusCallback(schedule)).train()
    trained = [(round(each.temperature, 4), each.gate, each.top_k) for each in watch.training]
    assert trained == [(0.4, "log", 1), (0.2, "log", 2), (0.1, "straight_through", 1)]
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


def lora(seed: int) -> PreTrainedModel:
    """A model of peft's with routers; the seed is theirs."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(build("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    return focus.attach(model, CONFIG, seed=seed)


def plain(seed: int) -> PreTrainedModel:
    """One without peft, likewise."""
    return focus.attach(build("llama"), CONFIG, seed=seed)


def values(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in state_of(attached(model).routers).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(each, other[name]) for name, each in one.items())


SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}


def test_a_checkpoint_of_a_peft_model_has_the_routers(tmp_path: Path) -> None:
    """They lie beside peft's weights, and training goes on from them."""
    once, again = lora(0), lora(1)
    trainer_of(once, tmp_path, FocusCallback(), **SAVED).train()
    loaded = focus.load_adapter(
        build("llama"), tmp_path / "checkpoint-4/focus/default", check_base=False
    )
    assert same(values(loaded), values(once))
    trainer = trainer_of(again, tmp_path, FocusCallback(), **SAVED)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(values(again), values(once))


def test_a_checkpoint_of_a_peft_model_without_routers_is_refused(tmp_path: Path) -> None:
    trainer_of(lora(0), tmp_path, FocusCallback(), **SAVED).train()
    shutil.rmtree(tmp_path / "checkpoint-2/focus")
    with pytest.raises(ValueError, match=r"resume_from_checkpoint: .*default is not there"):
        trainer_of(lora(1), tmp_path, FocusCallback(), **SAVED).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2"))  # fmt: skip


def test_the_best_peft_model_is_loaded_with_its_routers(tmp_path: Path) -> None:
    how = {**SAVED, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True,
           "metric_for_best_model": "eval_loss", "greater_is_better": True}  # fmt: skip
    model = lora(0)
    trainer = trainer_of(model, tmp_path, FocusCallback(), **how)
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint) / "focus/default"
    assert "checkpoint-2" in best.parts
    assert same(values(focus.load_adapter(build("llama"), best, check_base=False)), values(model))


def test_routers_of_another_run_are_not_taken(tmp_path: Path) -> None:
    trainer_of(lora(0), tmp_path / "a", FocusCallback(), **SAVED).train()
    trainer_of(lora(1), tmp_path / "b", FocusCallback(), **SAVED).train()
    again = trainer_of(lora(0), tmp_path / "b", FocusCallback(), **SAVED)
    with pytest.raises(ValueError, match="peft's weights are not those of"):
        again.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-2"))


@pytest.mark.parametrize("model_of", [lora, plain])
def test_routers_of_another_config_are_not_taken(tmp_path: Path, model_of: Any) -> None:
    trainer_of(model_of(0), tmp_path, FocusCallback(), **SAVED).train()
    again = model_of(1)
    attached(again).reconfigure(CONFIG.replace(window=CONFIG.window + 1))
    with pytest.raises(ValueError, match=rf"window = {CONFIG.window} there, {CONFIG.window + 1} "):
        trainer_of(again, tmp_path, FocusCallback(), **SAVED).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2"))  # fmt: skip


def test_a_schedule_that_cannot_be_kept_is_refused_before_the_first_step(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG.replace(num_groups=3), seed=0)
    before = values(model)
    with pytest.raises(ValueError, match="top_k: must be at most num_groups = 3, got 4"):
        trainer_of(model, tmp_path, FocusCallback(focus.recipe_schedule), max_steps=8).train()
    assert same(values(model), before)


def test_texts_within_the_window_teach_nothing_and_it_is_told(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG.replace(window=24), seed=0)
    with pytest.warns(UserWarning, match="has 24 tokens and the window holds 24"):
        trainer_of(model, tmp_path, FocusCallback(), max_steps=1, eval_strategy="no").train()


@pytest.mark.filterwarnings("ignore:the model is in training mode", "ignore:the routers are as")
def test_a_callback_that_was_forgotten_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(focus.attach(build("llama"), CONFIG, seed=0), tmp_path)
    with pytest.raises(RuntimeError, match=r"^loss: comes from hard mode.*FocusCallback\(\)"):
        trainer.train()


def test_a_lora_that_learns_under_untrained_routers_is_told(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    focus.attach(model, CONFIG, seed=0)
    trainer = trainer_of(model, tmp_path, max_steps=1, eval_strategy="no")
    with pytest.warns(UserWarning, match=r"^the routers are as focus\.attach made them"):
        trainer.train()


def test_an_error_in_a_step_leaves_no_mode(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    trainer = trainer_of(model, tmp_path, FocusCallback())
    head, model.lm_head = model.lm_head, None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        trainer.train()
    assert attached(model).mode.name == "hard"
    model.lm_head = head
    watch = Watch(model)
    trainer.evaluate()
    assert {seen[0] for seen in watch.seen} == {"hard"}


def failing_at(step: int, error: type[BaseException]) -> Any:
    seen: list[int] = []

    def stop(*_: Any) -> None:
        seen.append(1)
        if len(seen) > step:
            raise error

    return stop


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_training_that_failed_leaves_nothing_to_the_next(
    tmp_path: Path, error: type[BaseException]
) -> None:
    config = FocusConfig.recipe(num_groups=4, window=8)
    model = focus.attach(build("llama"), config, seed=0)
    options = {"max_steps": 4, "eval_strategy": "no"}
    handle = model.lm_head.register_forward_hook(failing_at(3, error))
    with pytest.raises(error):
        trainer_of(model, tmp_path, FocusCallback(focus.recipe_schedule), **options).train()
    handle.remove()
    watch = Watch(model.train())
    for name in ("full", "hard"):
        with focus.mode(model, name):
            assert attached(model).runs(model)[1] == config
            model(token_ids(1, 24))
    assert [seen[0] for seen in watch.seen] == ["full", "hard"]
    assert watch.training == [config, config]
    ids = token_ids(1, 24)
    found = logits(model.eval(), ids)
    assert torch.equal(found, logits(model, ids))  # the first outside of any mode, too, is hard
    again = Watch(model)
    trainer_of(model, tmp_path, FocusCallback(focus.recipe_schedule), **options).train()
    wanted = [focus.recipe_schedule(step, 4)["temperature"] for step in range(4)]
    assert [seen[:2] for seen in again.seen] == [("soft", each) for each in wanted]
    assert attached(model).trained is None


def test_a_mode_around_training_is_refused(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    trainer = trainer_of(model, tmp_path, FocusCallback(), eval_strategy="no")
    with focus.mode(model, "soft"), pytest.raises(ValueError, match=r"^focus\.mode: is entered"):
        trainer.train()


def test_other_settings_of_training(tmp_path: Path) -> None:
    model = focus.attach(build("llama"), CONFIG, seed=0)
    watch, callback = Watch(model), FocusCallback(gate="straight_through")
    trainer_of(model, tmp_path, callback, eval_strategy="no").train()
    assert [config.gate for config in watch.training] == ["straight_through"] * 3


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schedule: must be a function"):
        FocusCallback((0.3, 0.1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="topk: unknown field"):
        FocusCallback(topk=3)
    with pytest.raises(ValueError, match="not attached"):
        trainer_of(build("llama"), tmp_path, FocusCallback()).train()
