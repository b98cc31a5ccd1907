"""What trains and compiles."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

import focus
from tests.composability.clients.made import Found, attached, gradients, ids, logits
from tests.composability.distributed import run_two


def checkpointing(mode: str) -> Found:
    return _checkpointed(mode, reentrant=False)


def checkpointing_reentrant(mode: str) -> Found:
    return _checkpointed(mode, reentrant=True)


def _checkpointed(mode: str, reentrant: bool) -> Found:
    plain = attached().train()
    model = attached().train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    found, expected = (gradients(each, mode, backward_inside=False) for each in (model, plain))
    ours, theirs = (focus.state.attached(each).routers.values() for each in (model, plain))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.potentials, other.potentials)
        assert torch.equal(one.batches, other.batches)  # or it learnt twice from one batch
    return found, expected


def compile(mode: str) -> Found:
    model = attached()
    plain = logits(model, mode)
    torch.compiler.reset()
    return logits(torch.compile(model, backend="aot_eager"), mode), plain


def ddp(mode: str) -> Found:
    return run_two("ddp", mode)


def fsdp2(mode: str) -> Found:
    return run_two("fsdp2", mode)


def trainer(mode: str) -> Found:
    """The evaluation loss that Trainer reports is hard mode's; training is soft mode's, step by
    step as by hand."""
    from transformers import Trainer, TrainingArguments

    from focus.trainer import FocusCallback

    rows = [{"input_ids": row, "labels": row} for row in ids(4)]
    model = attached()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=2, per_device_train_batch_size=1, learning_rate=1e-2, report_to=[],
            weight_decay=0.0, lr_scheduler_type="constant", use_cpu=True, disable_tqdm=True,
            per_device_eval_batch_size=4, save_strategy="no",
        )  # fmt: skip
        run = Trainer(model, arguments, train_dataset=rows[:2], eval_dataset=rows,
                      callbacks=[FocusCallback()])  # fmt: skip
        if mode == "soft":
            order = [row["input_ids"] for row in run.get_train_dataloader()]
            run.train()
            found = torch.cat([p.detach().flatten() for p in focus.trainable_parameters(model)])
            return found, _by_hand(order)
        if mode == "hard":
            found = torch.tensor(run.evaluate()["eval_loss"])
        else:
            with focus.mode(model, "full"):
                found = torch.tensor(Trainer(model, arguments, eval_dataset=rows)
                                     .evaluate()["eval_loss"])  # fmt: skip
    with torch.no_grad(), focus.mode(model, mode):
        return found, model(ids(4), labels=ids(4), use_cache=False).loss


def _by_hand(order: list[Tensor]) -> Tensor:
    model = attached().train()
    parameters = list(focus.trainable_parameters(model))
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)
    for row in order:
        with focus.mode(model, "soft"):
            model(row, labels=row, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in parameters])
