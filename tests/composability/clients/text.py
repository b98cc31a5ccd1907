"""Text in and out: batches, generation, lm-eval."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import torch
from torch import Tensor
from transformers import TextIteratorStreamer

import focus
from tests.composability.clients.made import Found, attached, ids, logits, text, tokenizer
from tests.models import tiny, token_ids


def padded_batch(mode: str) -> Found:
    """Each row of a batch against the row alone."""
    model, rows = attached(), ids(3)
    spans = (slice(9, None), slice(0, -7), slice(0, None))
    mask = torch.zeros_like(rows)
    for row, span in enumerate(spans):
        mask[row, span] = 1
    batch = logits(model, mode, rows, attention_mask=mask)
    alone = [logits(model, mode, rows[row : row + 1, span]) for row, span in enumerate(spans)]
    found = torch.cat([batch[row, span] for row, span in enumerate(spans)])
    return found, torch.cat([each[0] for each in alone])


def pipeline(mode: str) -> Found:
    from transformers import pipeline as make

    model, words = attached(), tokenizer()
    run = make("text-generation", model=model, tokenizer=words)
    with focus.mode(model, mode):
        out = run(text(ids()[0]), max_new_tokens=6, do_sample=False, return_full_text=False)
    found = words(out[0]["generated_text"], return_tensors="pt")["input_ids"]
    return found, _greedy(model, mode, ids()[:1])


def _greedy(model: Any, mode: str, prompt: Tensor, new: int = 6) -> Tensor:
    """New tokens without a cache, each from the whole sequence."""
    seen = prompt
    for _ in range(new):
        step = logits(model, mode, seen)[:, -1].argmax(-1, keepdim=True)
        seen = torch.cat([seen, step], 1)
    return seen[:, prompt.shape[1] :]


def _lm_eval(mode: str, batch: int) -> Found:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = attached()
    run = HFLM(pretrained=model, tokenizer=tokenizer(), batch_size=batch, max_length=128)
    lengths, rows = range(30, 60, 4), token_ids(8, 70, seed=4)
    requests = [
        Instance("loglikelihood", {}, (text(row[:n]), " " + text(row[n : n + 4])), 0)
        for row, n in zip(rows, lengths, strict=True)
    ]
    with focus.mode(model, mode):
        scores = run.loglikelihood(requests, disable_tqdm=True)
    expected = []
    for row, n in zip(rows, lengths, strict=True):
        each = logits(model, mode, row[None, : n + 3]).log_softmax(-1)[0, n - 1 :]
        expected.append(each.gather(1, row[n : n + 4, None]).sum())
    return torch.tensor([score for score, _ in scores]), torch.stack(expected)


def lm_eval_batch_1(mode: str) -> Found:
    return _lm_eval(mode, 1)


def lm_eval_batch_8(mode: str) -> Found:
    return _lm_eval(mode, 8)


def _generated(mode: str, **kwargs: Any) -> Tensor:
    model = attached()
    with focus.mode(model, mode), torch.no_grad():
        return model.generate(ids(), max_new_tokens=8, do_sample=False, **kwargs)


def beams(mode: str) -> Found:
    return (_generated(mode, num_beams=3), _generated(mode, num_beams=3, use_cache=False))


def assisted(mode: str) -> Found:
    model, assistant = attached(), tiny("tiny-llama")
    prompt = ids()[:1]
    with focus.mode(model, mode), torch.no_grad():
        found = model.generate(prompt, max_new_tokens=8, do_sample=False, assistant_model=assistant)
    return found[:, prompt.shape[1] :], _greedy(model, mode, prompt, 8)


def streamer(mode: str) -> Found:
    model, words = attached(), tokenizer()
    prompt = ids()[:1]
    parts = TextIteratorStreamer(words, skip_prompt=True, timeout=60)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            model.generate(prompt, max_new_tokens=6, do_sample=False, streamer=parts)
        except BaseException as error:
            errors.append(error)
            parts.end()

    with focus.mode(model, mode):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
        thread.start()
        out = "".join(parts)
        thread.join()
    if errors:
        raise errors[0]
    return words(out, return_tensors="pt")["input_ids"], _greedy(model, mode, prompt)


def static_cache(mode: str) -> Found:
    found = _generated(mode, cache_implementation="static")
    return found, _generated(mode)
