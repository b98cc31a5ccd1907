"""The clients of the contract: each runs an attached model its own way and gives (found, plain)."""

from __future__ import annotations

import contextvars
import copy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TextIteratorStreamer

import focus
from focus import FocusConfig
from focus.adapter import describe
from tests.composability.distributed import run_two
from tests.models import tiny, token_ids

CONFIG = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
Found = tuple[Tensor, Tensor]


def ids(batch: int = 2, tokens: int = 60) -> Tensor:
    """Token ids in which a passage comes twice, so that n-grams are found."""
    found = token_ids(batch, tokens)
    found[:, -15:] = found[:, 5:20]
    return found


def attached(config: FocusConfig = CONFIG, **changes: Any) -> PreTrainedModel:
    """A tiny model with routers whose groups are of mixed size."""
    return with_potentials(focus.attach(tiny("tiny-llama", **changes), config, seed=0))


def with_potentials(model: Any) -> Any:
    """Gives every router potentials, the same for the same layer."""
    for index, router in focus.state.attached(model).routers.items():
        router.potentials.normal_(generator=torch.Generator().manual_seed(index)).mul_(0.1)
    return model


@torch.no_grad()
def logits(model: Any, mode: str, input_ids: Tensor | None = None, **kwargs: Any) -> Tensor:
    """Logits of a whole sequence."""
    with focus.mode(model, mode):
        return model(ids() if input_ids is None else input_ids, use_cache=False, **kwargs).logits


def gradients(model: Any, mode: str, backward_inside: bool = True) -> Tensor:
    """Of what is trained in that mode, flat: the routers in soft mode, else the first embedding."""
    inner = focus.state.transformers_model(model)
    embedding = inner.get_input_embeddings().weight
    if mode == "soft":
        wanted = list(focus.trainable_parameters(model))
    else:
        wanted = [embedding.requires_grad_()]
    model.zero_grad()
    with focus.mode(model, mode):
        loss = model(ids(), labels=ids(), use_cache=False).loss
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    return torch.cat([p.grad.float().flatten() for p in wanted])


def autocast_bfloat16(mode: str) -> Found:
    return _autocast(mode, torch.bfloat16)


def autocast_float16(mode: str) -> Found:
    return _autocast(mode, torch.float16)


def _autocast(mode: str, dtype: torch.dtype) -> Found:
    """Logits, and gradients of the routers to scale."""
    model = attached().train() if mode == "soft" else attached()
    plain = torch.cat([logits(model, mode).flatten(), _unit(gradients(model, mode))])
    with torch.autocast("cpu", dtype):
        found = torch.cat([logits(model, mode).flatten(), _unit(gradients(model, mode))])
    if mode == "full":  # against the pretrained model under autocast
        with torch.autocast("cpu", dtype):
            return logits(model, mode), tiny("tiny-llama")(ids()).logits.detach()
    return found.float(), plain


def _unit(gradient: Tensor) -> Tensor:
    return gradient / gradient.abs().max()


def weights_bfloat16(mode: str) -> Found:
    return _cast(mode, torch.bfloat16)


def weights_float16(mode: str) -> Found:
    return _cast(mode, torch.float16)


def _cast(mode: str, dtype: torch.dtype) -> Found:
    after = attached().to(dtype)
    before = with_potentials(focus.attach(tiny("tiny-llama").to(dtype), CONFIG, seed=0))
    assert {p.dtype for p in focus.trainable_parameters(after)} == {torch.float32}
    assert {r.potentials.dtype for r in focus.state.attached(after).routers.values()} == {
        torch.float32
    }
    one, other = logits(after, mode), logits(before, mode)
    assert torch.equal(one, other)
    if mode == "full":
        return one, tiny("tiny-llama").to(dtype)(ids()).logits.detach()
    return one.float(), logits(attached(), mode)


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


def checkpointing(mode: str) -> Found:
    return _checkpointed(mode, reentrant=False)


def checkpointing_reentrant(mode: str) -> Found:
    return _checkpointed(mode, reentrant=True)


def compile(mode: str) -> Found:
    model = attached()
    plain = logits(model, mode)
    torch.compiler.reset()
    return logits(torch.compile(model, backend="aot_eager"), mode), plain


def ddp(mode: str) -> Found:
    return run_two("ddp", mode)


def fsdp2(mode: str) -> Found:
    return run_two("fsdp2", mode)


def _lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], r=2))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    return wrapped


def peft_before(mode: str) -> Found:
    wrapped = _lora(tiny("tiny-llama"))
    focus.attach(wrapped, CONFIG, seed=0)
    return _both_adapters(with_potentials(wrapped), mode)


def peft_after(mode: str) -> Found:
    return _both_adapters(_lora(attached()), mode)


def _both_adapters(wrapped: Any, mode: str) -> Found:
    """Logits and generated tokens; that both adapters train, and can be merged and detached."""
    merged = copy.deepcopy(wrapped).merge_and_unload()
    plain = logits(merged, mode)
    found = logits(wrapped, mode)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    routers = list(focus.trainable_parameters(wrapped))
    lora = [p for name, p in wrapped.named_parameters() if "lora_" in name]
    with focus.mode(wrapped.train(), mode):
        wrapped(ids(), labels=ids(), use_cache=False).loss.backward()
    wrapped.eval()
    assert all(p.grad is not None for p in lora)
    if mode == "soft":
        assert all(p.grad is not None and p.grad.any() for p in routers)
    else:
        with focus.mode(wrapped, mode), focus.mode(merged, mode), torch.no_grad():
            tokens = [m.generate(input_ids=ids(), max_new_tokens=6, do_sample=False)
                      for m in (wrapped, merged)]  # fmt: skip
        assert torch.equal(*tokens)
    focus.detach(wrapped)
    assert not any("focus" in name for name, _ in wrapped.named_modules())
    if mode == "full":
        return found, wrapped(ids()).logits.detach()
    focus.attach(wrapped, CONFIG, seed=0)
    _restore(wrapped, merged)
    return logits(wrapped, mode), found


def swapped(mode: str) -> Found:
    """Two LoRA and two Focus adapters on one model, switched between calls."""
    ours = {"first": attached(), "second": attached(CONFIG.replace(num_groups=4, window=8))}
    adapters = {name: describe(model) for name, model in ours.items()}
    one, plain, found = _two_loras(), [], []
    for name, adapter in adapters.items():
        focus.load_adapter(one, adapter, name=name)
    for lora in ("default", "second", "default"):
        for name, adapter in adapters.items():
            one.set_adapter(lora)
            focus.set_adapter(one, name)
            found.append(logits(one, mode))
            alone = _two_loras()
            alone.set_adapter(lora)
            plain.append(logits(focus.load_adapter(alone, adapter), mode))
            with one.disable_adapter():
                found.append(logits(one, mode))
            plain.append(logits(ours[name], mode))
    return torch.stack(found), torch.stack(plain)


def _two_loras() -> Any:
    from peft import LoraConfig

    wrapped = _lora(tiny("tiny-llama"))
    wrapped.add_adapter("second", LoraConfig(target_modules=["k_proj", "o_proj"], r=3))
    for name, parameter in wrapped.named_parameters():
        if ".second." in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(2))
    return wrapped.eval()


def _restore(model: Any, other: Any) -> None:
    here, there = (focus.state.attached(each).routers for each in (model, other))
    for index, router in here.items():
        router.load_state_dict(there[index].state_dict())


def deepcopy(mode: str) -> Found:
    model = attached()
    plain, twin = logits(model, mode), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return logits(twin, mode), plain


LOADER = """
import sys, torch
model = torch.load(sys.argv[1], weights_only=False)
import focus
with torch.no_grad(), focus.mode(model, sys.argv[2]):
    torch.save(model(torch.load(sys.argv[3]), use_cache=False).logits, sys.argv[4])
"""


def new_process(mode: str) -> Found:
    model = attached()
    plain = logits(model, mode)  # what a pass has left on it is no hindrance
    with tempfile.TemporaryDirectory() as folder:
        model_file, ids_file, out = (str(Path(folder) / name) for name in ("m.pt", "i.pt", "o.pt"))
        torch.save(model, model_file)
        torch.save(ids(), ids_file)
        command = [sys.executable, "-c", LOADER, model_file, mode, ids_file, out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return torch.load(out), plain


def save_pretrained(mode: str) -> Found:
    from transformers import AutoModelForCausalLM

    model = attached()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = set(load_file(Path(folder) / "model.safetensors"))
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    base = set(tiny("tiny-llama").state_dict())
    assert set(loaded.state_dict()) == base
    assert all("focus_router" in name for name in written - base)  # so that Trainer can resume
    assert loaded.config._attn_implementation == tiny("tiny-llama").config._attn_implementation
    focus.attach(loaded.eval(), CONFIG, seed=0)
    _restore(loaded, model)
    return logits(loaded, mode), logits(model, mode)


def two_threads(mode: str) -> Found:
    """Beside a thread that runs other text in the other modes."""
    model = attached()
    plain = logits(model, mode)
    others = [each for each in ("soft", "hard", "full") if each != mode]
    stop, failed = threading.Event(), []

    def disturb() -> None:
        while not stop.is_set():
            try:
                for other in others:
                    logits(model, other, token_ids(1, 40, seed=3))
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=disturb)
    thread.start()
    found = [logits(model, mode) for _ in range(12)]
    stop.set()
    thread.join()
    assert not failed, failed
    worst = max(found, key=lambda each: float((each - plain).abs().max()))
    return worst, plain


def offload(mode: str) -> Found:
    from accelerate import cpu_offload

    plain, model = attached(), cpu_offload(attached(), torch.device("cpu"))
    if mode == "soft":
        return logits(model, mode), logits(plain, mode)
    found = []
    for each in (model, plain):
        with focus.mode(each, mode):
            tokens = each.generate(ids(1), max_new_tokens=5, do_sample=False)
        found.append(torch.cat([logits(each, mode).flatten(), tokens.float().flatten()]))
    return found[0], found[1]


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


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for each token id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {**{f"w{i}": i for i in range(256)}, "<end>": 256}
    own = Tokenizer(models.WordLevel(words, unk_token="w0"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>",
                                   pad_token="<end>")  # fmt: skip


def text(tokens: Tensor) -> str:
    return " ".join(f"w{int(token)}" for token in tokens)


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


CLIENTS: dict[str, Callable[[str], Found]] = {
    each.__name__: each
    for each in (
        autocast_bfloat16, autocast_float16, weights_bfloat16, weights_float16, checkpointing,
        checkpointing_reentrant, compile, ddp, fsdp2, peft_before, peft_after, swapped, deepcopy,
        new_process, save_pretrained, two_threads, offload, trainer, padded_batch, pipeline,
        lm_eval_batch_1, lm_eval_batch_8, beams, assisted, streamer, static_cache,
    )
}  # fmt: skip
