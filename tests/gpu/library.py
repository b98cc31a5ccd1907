"""The library on a whole model with random weights: checked against itself on CPU and against the
definition, then timed beside the pretrained model that it would be attached to.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import focus
from experiments.kernels import timing
from experiments.kernels.synthetic import relative_error
from focus import FocusConfig

SMALL = {"vocab_size": 997, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
         "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 8192,
         "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
# Llama-3.2 1B's sizes but for its vocabulary, which no attention sees.
LARGE = {**SMALL, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
         "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 262144}  # fmt: skip
PAPER = FocusConfig(num_groups=8, top_k=1)
RECIPE = FocusConfig.recipe()
CONFIGS = {"8 groups": PAPER, "recipe": RECIPE}


def made(sizes: dict[str, Any], dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model with weights from seed 0, drawn on the device that it stays on."""
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    return model.to(dtype).eval()


def attached(model: PreTrainedModel, config: FocusConfig) -> PreTrainedModel:
    """With routers whose groups are about even: potentials are found on random tokens."""
    ours = focus.attach(copy.deepcopy(model), config, seed=0)
    drawn = ids(1, 2048, next(model.parameters()).device, model.config.vocab_size)
    with torch.no_grad(), focus.mode(ours, "soft"):
        ours.train()
        for _ in range(8):
            ours(drawn)
    return ours.eval()


def ids(batch: int, tokens: int, device: torch.device, vocabulary: int = 997) -> Tensor:
    """Random token ids (B, T), of which n-grams come again."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, min(vocabulary, 97), (batch, tokens), generator=generator).to(device)


def check_modes(config: FocusConfig, device: torch.device) -> dict[str, Any]:
    """Logits in float32 in each mode, beside the same on CPU; gradients of routers."""
    on_cpu = attached(made(SMALL, torch.float32, torch.device("cpu")), config)
    found = copy.deepcopy(on_cpu).to(device)
    text, errors = ids(2, 600, torch.device("cpu")), {}
    for name in ("soft", "hard", "full"):
        with torch.no_grad(), focus.mode(on_cpu, name), focus.mode(found, name):
            pair = [m(text.to(m.device), use_cache=False).logits.cpu() for m in (found, on_cpu)]
        errors[name] = share_apart(*pair) if name == "hard" else relative_error(*pair)
    gradients = [router_gradients(model, text.to(model.device)) for model in (found, on_cpu)]
    errors["gradients"] = relative_error(*gradients)
    return {"step": "modes", "errors": list(errors.values()), "names": list(errors),
            "passed": all(each <= 0.01 for each in errors.values())}  # fmt: skip


def share_apart(found: Tensor, exact: Tensor) -> float:
    """Share of tokens whose logits differ by more than 5%: a group may flip on a rounding."""
    norm = (found.float() - exact.float()).norm(dim=-1) / exact.float().norm(dim=-1)
    return (norm > 0.05).float().mean().item()


def router_gradients(model: PreTrainedModel, text: Tensor, **options: Any) -> Tensor:
    """Of the loss, in training, all in a row; on CPU."""
    model.train()
    with (
        focus.mode(model, "soft"),
        torch.autocast(model.device.type, **(options or {"enabled": False})),
    ):
        loss = model(text, labels=text, use_cache=False).loss
    found = torch.autograd.grad(loss, list(focus.trainable_parameters(model)))
    model.eval()
    return torch.cat([each.float().flatten().cpu() for each in found])


def check_half(config: FocusConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """The fast path in half precision beside the definition, in the same model; with padding."""
    model, text = attached(made(SMALL, dtype, device), config), ids(2, 1500, device)
    mask = torch.ones_like(text)
    mask[1, :333] = 0
    pair = []
    for backend in ("auto", "dense"):
        with torch.no_grad(), focus.mode(model, "hard", backend=backend):
            pair.append(model(text, attention_mask=mask, use_cache=False).logits[mask.bool()])
    share = share_apart(*pair)
    return {"step": "half", "dtype": str(dtype), "errors": [share, relative_error(*pair)],
            "passed": share <= 0.1}  # fmt: skip


def check_generation(config: FocusConfig, device: torch.device) -> dict[str, Any]:
    """Greedy tokens from a cache, those of the same calls without one; a padded batch."""
    model = attached(made(SMALL, torch.float32, device), config)
    text = ids(2, 300, device)
    mask = torch.ones_like(text)
    mask[1, :100] = 0
    options = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False}
    with torch.no_grad(), focus.mode(model, "hard"):
        cached = model.generate(text, **options)
        again, known = text, mask
        for _ in range(24):
            positions = (known.cumsum(1) - 1).clamp_min(0)
            logits = model(again, attention_mask=known, position_ids=positions,
                           use_cache=False).logits  # fmt: skip
            again = torch.cat([again, logits[:, -1:].argmax(-1)], 1)
            known = torch.cat([known, known[:, :1] * 0 + 1], 1)
    share = (cached != again)[:, 300:].float().mean().item()
    return {"step": "generation", "errors": [share], "passed": share == 0.0}


def check_training(config: FocusConfig, device: torch.device) -> dict[str, Any]:
    """Gradients under checkpointing, bit for bit; under autocast, about the same."""
    model = attached(made(SMALL, torch.float32, device), config)
    text = ids(1, 700, device)
    plain = router_gradients(model, text)
    half = router_gradients(model, text, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    stored = router_gradients(model, text)
    errors = [relative_error(stored, plain), relative_error(half, plain)]
    return {"step": "trained", "errors": errors, "passed": errors[0] <= 1e-5 and errors[1] <= 0.2}


def check_hard_gradients(config: FocusConfig, device: torch.device) -> dict[str, Any]:
    """Gradients in the embedding through the hard mask, in half precision."""
    model, found = attached(made(SMALL, torch.bfloat16, device), config), []
    text = ids(1, 900, device)
    weight = model.get_input_embeddings().weight.requires_grad_()
    for backend in ("auto", "dense"):
        with focus.mode(model, "hard", backend=backend):
            loss = model(text, labels=text, use_cache=False).loss
        found.append(torch.autograd.grad(loss, weight)[0])
    error = relative_error(*found)
    return {"step": "hard gradients", "errors": [error], "passed": error <= 0.1}


def check_compiled(device: torch.device) -> dict[str, Any]:
    """torch.compile of a model in hard mode gives what it gives without."""
    model, text = attached(made(SMALL, torch.bfloat16, device), PAPER), ids(1, 600, device)
    with torch.no_grad(), focus.mode(model, "hard"):
        plain = model(text, use_cache=False).logits
        compiled = torch.compile(model)(text, use_cache=False).logits
    share = share_apart(compiled, plain)
    return {"step": "compiled", "errors": [share, relative_error(compiled, plain)],
            "passed": share <= 0.1}  # fmt: skip


def rounds(methods: dict[str, Callable[[], Any]], device: torch.device, number: int
           ) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of each, taking turns; a first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(number + 1):
        for name, run in methods.items():
            took = timing.once(lambda *_, run=run: run(), [], False, device)
            if turn:
                found[name].append(took)
    return found


def told(step: str, length: int, found: dict[str, list[float]], count: int = 1) -> dict[str, Any]:
    """A row: seconds (of a token, where ``count`` came), and ratios to the plain model's."""
    plain = found["full"]
    row: dict[str, Any] = {"step": step, "length": length, "repetitions": len(plain)}
    for name, taken in found.items():
        ratios = sorted(a / b for a, b in zip(plain, taken, strict=True))
        row[name] = {"median_s": median(taken) / count, "speedup": median(ratios),
                     "low": ratios[0], "high": ratios[-1]}  # fmt: skip
    return row


class Timing:
    """The large models, made once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.plain: PreTrainedModel | None = None
        self.ours: dict[str, PreTrainedModel] = {}

    def make(self) -> None:
        if self.plain is None:
            self.plain = made(LARGE, torch.bfloat16, self.device)
            self.ours = {name: attached(self.plain, config) for name, config in CONFIGS.items()}

    @torch.no_grad()
    def prefill(self, tokens: int) -> dict[str, Any]:
        """A forward pass over a prompt, of which the last token's logits are asked."""
        self.make()
        text = ids(1, tokens, self.device)

        def run(model: PreTrainedModel) -> None:
            model(text, use_cache=False, logits_to_keep=1)

        return told("prefill", tokens, rounds(self.methods(run), self.device, 3))

    def methods(self, run: Callable[[PreTrainedModel], None]) -> dict[str, Callable[[], None]]:
        """The plain model and ours in hard mode."""

        def hard(model: PreTrainedModel) -> None:
            with focus.mode(model, "hard"):
                run(model)

        ours = {name: partial(hard, model) for name, model in self.ours.items()}
        return {"full": partial(run, self.plain), **ours}

    @torch.no_grad()
    def generation(self, tokens: int, batch: int = 1, count: int = 16) -> dict[str, Any]:
        """Greedy tokens after a context, without the context's own pass. Without cuDNN's attention,
        which torch prefers on Hopper and which plans anew for each length of the cache: left on, it
        makes the plain model's step several times as slow, as ``default`` shows."""
        self.make()
        text, caches = ids(batch, tokens, self.device), {}

        def run(model: PreTrainedModel) -> None:
            out = caches.get(id(model))
            if out is None:  # the first round
                out = model(text, use_cache=True, logits_to_keep=1)
            cache, last = out.past_key_values, out.logits[:, -1:].argmax(-1)
            for _ in range(count):
                out = model(last, past_key_values=cache, use_cache=True, logits_to_keep=1)
                last = out.logits[:, -1:].argmax(-1)
            caches[id(model)] = out

        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            row = told("generation", tokens, rounds(self.methods(run), self.device, 3), count)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)
        usual = rounds({"full": partial(run, self.plain)}, self.device, 1)
        return row | {"batch": batch, "default_s": median(usual["full"]) / count}

    def training(self, tokens: int) -> dict[str, Any]:
        """A step that trains routers through the log gate, and its peak of memory, beside one that
        trains the plain model's norms through full attention."""
        self.make()
        text, row = ids(1, tokens, self.device), {"step": "router training", "length": tokens}
        assert self.plain is not None
        for name, model in (("full", self.plain), *self.ours.items()):
            if name == "full":
                model.requires_grad_(False)
                wanted = [p for n, p in model.named_parameters() if "norm" in n]
                for each in wanted:
                    each.requires_grad_(True)
            model.train()

            def run(model: PreTrainedModel = model, soft: bool = name != "full") -> None:
                with focus.mode(model, "soft") if soft else nullcontext():
                    model(text, labels=text, use_cache=False).loss.backward()
                model.zero_grad(set_to_none=True)

            times = rounds({name: run}, self.device, 2)[name]
            torch.cuda.reset_peak_memory_stats(self.device)
            run()
            peak = torch.cuda.max_memory_allocated(self.device) / 2**30
            row[name] = {"median_s": median(times), "peak_gb": peak}
            model.eval()
        return row


def every(device: torch.device) -> list[partial[dict[str, Any]]]:
    """What is checked, then what is timed (on CUDA alone)."""
    transformers.logging.set_verbosity_error()
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = [partial(check, config, device) for config in CONFIGS.values()
             for check in (check_modes, check_generation, check_training)]  # fmt: skip
    found += [partial(check_half, config, half, device) for config in CONFIGS.values()]
    if device.type != "cuda":
        return found
    found += [partial(check_hard_gradients, config, device) for config in CONFIGS.values()]
    timed = Timing(device)
    found += [partial(timed.prefill, n) for n in (1024, 4096, 16384, 65536)]
    found += [partial(timed.generation, n) for n in (1024, 65536)]
    found += [partial(timed.generation, 32768, 8), partial(timed.training, 4096)]
    return found
