"""Chain-of-thought on GSM8K questions with the cache, under the mask and with full attention.

Reported: how often the mask's next token is full attention's, over the latter's own text (forced)
and when each goes on from its own (free); the answers; seconds; and how often a step with the cache
chose another token than the whole sequence at once would have (rounding; of both). The same from
the start of held-out documents, a long prompt.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments import texts
from experiments.readings import gsm8k
from experiments.readings.gsm8k import Question
from experiments.readings.subject import Part, Rows, Subject
from experiments.settings import Budget, Generation

Modes = dict[str, Callable[[], AbstractContextManager[Any]]]


def parts(subject: Subject, reading: Generation) -> Iterator[Part]:
    """A part a budget and batch of questions, or document."""
    for budget in subject.budgets:
        for first in range(0, reading.questions, reading.batch_size):
            yield (f"{budget}.{first}",
                   lambda b=budget, f=first: answered(subject, reading, b, f))  # fmt: skip
        for name in reading.texts if reading.long_tokens else ():
            yield f"{budget}.{name}", lambda b=budget, n=name: continued(subject, reading, b, n)


def _modes(subject: Subject, budget: Budget | None) -> Modes:
    return {"full": subject.full, "hard": lambda: subject.applied(budget)}


def answered(subject: Subject, reading: Generation, budget: Budget | None, first: int) -> Rows:
    """A row a question: agreement, answers and seconds (of the whole batch) of both."""
    batch = gsm8k.load(reading.questions)[first : first + reading.batch_size]
    model, modes = subject.model, _modes(subject, budget)
    ids, mask = padded(subject.tokenizer, [question.prompt for question in batch])
    out, whole, seconds = {}, {}, {}
    for mode, entered in modes.items():
        with entered():
            out[mode], seconds[mode] = generate(model, ids, mask, reading.new_tokens)
            whole[mode] = predictions(model, out[mode], mask, reading.new_tokens)
    with modes["hard"]():
        forced = predictions(model, out["full"], mask, reading.new_tokens)
    start, rows = ids.shape[1], []
    for place, question in enumerate(batch):
        own = {mode: each[place, start:] for mode, each in out.items()}
        row = compared(own, {mode: each[place] for mode, each in whole.items()}, forced[place])
        row |= graded(own, question, subject.tokenizer)
        row |= {f"seconds_{mode}": each / len(batch) for mode, each in seconds.items()}
        which = {"texts": "gsm8k", "document": str(question.number),
                 "prompt_tokens": int(mask[place].sum()), "tokens": reading.new_tokens}  # fmt: skip
        rows.append(subject.row("hard", budget, **which, **row))
    return rows


def compared(own: dict[str, Tensor], whole: dict[str, Tensor], forced: Tensor) -> dict[str, Any]:
    """Agreement of two continuations (T,), and what the cache chose otherwise."""
    same = (own["full"] == own["hard"]).int()
    differs = {f"cache_differs_{m}": int((whole[m] != own[m]).sum()) for m in own}
    return {"agreement_forced": float((forced == own["full"]).float().mean()),
            "agreement_free": float(same.float().mean()),
            "same_until": int(same.cumprod(0).sum()), **differs}  # fmt: skip


def graded(own: dict[str, Tensor], question: Question,
           tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:  # fmt: skip
    """Answers of both, and whether they are right."""
    texts_of = {m: tokenizer.decode(each, skip_special_tokens=True) for m, each in own.items()}
    answers = {m: gsm8k.answer(text) for m, text in texts_of.items()}
    return {f"correct_{m}": float(each == question.answer) for m, each in answers.items()}


def continued(subject: Subject, reading: Generation, budget: Budget | None, name: str) -> Rows:
    """A row a document that is gone on with: what the cache chose otherwise, and seconds."""
    rows = []
    for document, windows in texts.reading_windows(reading, name, subject.cell.model,
                                                   subject.chosen):  # fmt: skip
        ids, row = windows[:1], {}
        mask = torch.ones_like(ids)
        for mode, entered in _modes(subject, budget).items():
            with entered():
                out, row[f"seconds_{mode}"] = generate(subject.model, ids, mask,
                                                       reading.long_tokens)  # fmt: skip
                own = out[:, ids.shape[1] :]
                whole = predictions(subject.model, out, mask, reading.long_tokens)
            row[f"cache_differs_{mode}"] = int((whole != own).sum())
        which = {"texts": name, "document": document.title, "prompt_tokens": ids.shape[1],
                 "tokens": reading.long_tokens}  # fmt: skip
        rows.append(subject.row("hard", budget, **which, **row))
    return rows


def padded(tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, T), padded on the left."""
    tokens = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    longest = max(map(len, tokens))
    ids = torch.zeros(len(tokens), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(tokens):
        ids[row, longest - len(own) :] = torch.tensor(own)
        mask[row, longest - len(own) :] = 1
    return ids, mask


@torch.no_grad()
def generate(model: PreTrainedModel, ids: Tensor, mask: Tensor,
             count: int) -> tuple[Tensor, float]:  # fmt: skip
    """Greedy generation of exactly ``count`` tokens with the cache; ids (B, T + count), seconds."""
    started = time.perf_counter()
    out = model.generate(
        ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=count,
        min_new_tokens=count, do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return out.cpu(), time.perf_counter() - started


@torch.no_grad()
def predictions(model: PreTrainedModel, ids: Tensor, mask: Tensor, count: int) -> Tensor:
    """The most likely next token (B, count) at the last positions, from the whole sequence at
    once; the end of the text is left out, as it is in :func:`generate`."""
    everything = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
    positions = (everything.cumsum(1) - 1).clamp_min(0)
    out = model(
        ids.to(model.device), attention_mask=everything.to(model.device),
        position_ids=positions.to(model.device), use_cache=False, logits_to_keep=count + 1,
    )  # fmt: skip
    logits = out.logits[:, :-1].float()
    ends = model.generation_config.eos_token_id
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None:
            logits[..., end] = -torch.inf
    return logits.argmax(-1).cpu()
