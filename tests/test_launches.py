"""What hard mode asks of a GPU, counted on CPU: launches of a layer, and waits of the host.

Triton's kernels run by its interpreter; operators that only make views or room launch nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import focus
from focus import ngrams
from focus.attention import operator
from focus.attention.checks import Inputs
from focus.attention.native import call as native
from focus.attention.native import step as native_step
from focus.attention.triton import call, step
from focus.scores import RouterWeights
from tests.attention.rehearsal import routed_by_triton

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2"}
ROOM = {"empty", "empty_like", "new_empty", "empty_strided", "lift_fresh", "detach", "resize_"}
CONFIG = focus.FocusConfig(num_groups=8, top_k=1, window=32)


class Launches(TorchDispatchMode):
    """Counts operators that write a tensor, and Triton's kernels, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.inside = False  # of a kernel, whose interpreter uses torch, too

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if not (self.inside or func.is_view or name in ROOM or name == "_unsafe_view"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))

    def watched(self, kernel: Any, grid: Any, get: Callable[..., Any]) -> Callable[..., None]:
        """A kernel's launcher that counts."""

        def launch(*args: Any, **options: Any) -> None:
            self.counts[kernel.fn.__name__] += 1
            self.inside = True
            get(kernel, grid)(*args, **options)
            self.inside = False

        return launch

    @property
    def waits(self) -> int:
        return sum(self.counts[name] for name in WAITS)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has every choice fall as it would on CUDA in half precision."""
    for each in (Inputs, RouterWeights):
        monkeypatch.setattr(each, "on_cpu", property(lambda x: False))
    monkeypatch.setattr(native, "refusal", lambda x: "is on CUDA")
    monkeypatch.setitem(operator.ON_GPU, "triton", lambda x: None)
    monkeypatch.setattr(native_step, "computes", lambda query: False)
    monkeypatch.setattr(step, "computes", lambda query, groups: query.shape[2] <= step.FEW)
    monkeypatch.setattr(call, "_sizes", lambda *_: (64, 64, {}))
    monkeypatch.setattr(ngrams, "_ranks", ngrams.ranks_by_sorting)
    with routed_by_triton():
        yield


@contextmanager
def counted() -> Iterator[Launches]:
    own, get = Launches(), interpreter.InterpretedFunction.__getitem__
    with pytest.MonkeyPatch.context() as patch, own, torch.no_grad():
        patch.setattr(interpreter.InterpretedFunction, "__getitem__",
                      lambda kernel, grid: own.watched(kernel, grid, get))  # fmt: skip
        yield own


def model_of(config: focus.FocusConfig, layers: int = 1) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
             "num_key_value_heads": 1, "num_hidden_layers": layers}  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**sizes)).bfloat16().eval()
    return focus.attach(model, config, seed=0)


@pytest.mark.usefixtures("on_gpu")
def test_the_recipe_never_waits() -> None:
    model, ids = model_of(focus.FocusConfig.recipe(window=32)), torch.randint(1, 97, (1, 100))
    with focus.mode(model, "hard"), counted() as own:
        model(ids, use_cache=True)
    assert own.waits == 0
    assert {"choose", "masked", "further"} <= own.counts.keys()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("config", "further"),
    [(CONFIG, 0), (CONFIG.replace(num_groups=6, top_k=2, sinks=4, probe="multi_probe",
                                  routers="query_head", heavy_hitters=0.1), 4)],
)  # fmt: skip
def test_a_layer_launches_little_more_than_the_pretrained_models(
    config: focus.FocusConfig, further: int
) -> None:
    """Seven more than full attention in a prompt, five in a step; heavy hitters and keys of their
    own take some more. The host never waits."""
    model, ids = model_of(config), torch.randint(1, 97, (1, 100))
    prompt, one = {}, {}
    for mode in ("full", "hard"):
        with focus.mode(model, mode):
            with counted() as own:
                past = model(ids, use_cache=True).past_key_values
            prompt[mode] = own
            with torch.no_grad():  # the first step also files the prompt
                model(ids[:, :1], past_key_values=past)
            with counted() as own:
                model(ids[:, :1], past_key_values=past)
            one[mode] = own
    for found, most in ((prompt, 7 + further), (one, 5 + further)):
        assert found["hard"].waits == 0, found["hard"].counts
        more = found["hard"].counts.total() - found["full"].counts.total()
        assert more <= most, found["hard"].counts - found["full"].counts
    assert {"choose", "pack", "masked"} <= prompt["hard"].counts.keys()
    assert {"choose", "file", "step", "combine"} <= one["hard"].counts.keys()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("config", [CONFIG, focus.FocusConfig.recipe(window=32)])
def test_a_padded_batch_waits_as_often_with_more_layers(config: focus.FocusConfig) -> None:
    """Of its mask the first layer asks."""
    ids, mask = torch.randint(1, 97, (2, 101)), torch.ones(2, 101, dtype=torch.int64)
    mask[0, :9] = 0
    waits = {}
    for layers in (1, 2):
        model = model_of(config, layers)
        with focus.mode(model, "hard"):
            with counted() as own:
                past = model(ids[:, :99], attention_mask=mask[:, :99], use_cache=True)
            found = [own.waits]
            for seen in (99, 100):
                with counted() as own:
                    model(ids[:, seen : seen + 1], attention_mask=mask[:, : seen + 1],
                          past_key_values=past.past_key_values)  # fmt: skip
                found.append(own.waits)
        waits[layers] = found
    (prompt, _, step), more = waits[1], waits[2]  # the first step also files each layer's prompt
    assert (more[0], more[2]) == (prompt, step)
    assert max(prompt, step) <= 3
