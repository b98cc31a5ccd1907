"""Memory and operations of a step that is run on fake tensors.

Shapes: B batch, T tokens, H query heads, D head dimension, K groups.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, shape_wrapper
from transformers import PreTrainedModel

import focus
from experiments.costs import shapes
from experiments.regimes.base import next_token_loss
from experiments.regimes.tensors import compute_again
from focus.attention.train import blocks

FORWARD = torch.ops.focus.gated_attention
BACKWARD = torch.ops.focus.gated_attention_backward


@dataclass(frozen=True)
class Traced:
    """Bytes and operations of one step on one device.

    Attributes:
        activations: highest sum of bytes of all that the step makes, gradients and cache aside.
        cache: bytes of the key/value cache at the end of the context (0 in training).
        flops: a multiplication and an addition are two.
    """

    activations: int
    cache: int
    flops: int


class Watch(TorchDispatchMode):
    """Bytes of the storages that operators make and that are alive, the most so far, and what the
    operators multiply and add (by torch's own formulas; FlopCounterMode keeps tensors alive).

    Args:
        blocked: the training gate runs block by block in torch, as it does on a GPU, and not in
            the compiled kernel of the CPU: what a block forms is counted while the operator runs.
    """

    def __init__(self, blocked: bool) -> None:
        super().__init__()
        self.blocked, self.alive, self.peak, self.flops = blocked, 0, 0, 0
        self._known: set[int] = set()  # storages that are counted, or need not be
        self._sizes: dict[int, int] = {}  # of those that are counted
        self._within: dict[Any, int] = {}  # of the gate, by its arguments' shapes

    def keep(self, tensors: Any) -> None:
        """Leaves tensors out of the count, from now on: those that were there before, gradients."""
        for tensor in tensors:
            self._known.add(key := tensor.untyped_storage()._cdata)
            self.alive -= self._sizes.pop(key, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:  # fmt: skip
        if func is torch.ops.aten._local_scalar_dense.default:
            return True  # all tokens are real: what masks ask, and fake tensors cannot tell
        if self.blocked and func in (FORWARD.default, BACKWARD.default):
            known = func, *(each.shape for each in args if isinstance(each, Tensor))
            if known not in self._within:
                self._within[known] = within(func, args)
            self.peak = max(self.peak, self.alive + self._within[known])
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        self.peak = max(self.peak, self.alive)
        formula = FLOPS.get(func._overloadpacket)
        self.flops += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=out)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self._sizes[key] = storage.nbytes()
        self.alive += storage.nbytes()
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self._known.discard(key)
        self.alive -= self._sizes.pop(key, 0)


def within(func: Any, args: tuple[Any, ...]) -> int:
    """Most bytes that the gate holds at a time while it runs block by block, its results among
    them: rows of pairs, never all T x T."""
    first = 3 if func is BACKWARD.default else 0
    inputs, rule = blocks.Inputs(*args[first : first + 8]), blocks.Rule(*args[first + 8 :])
    inner = Watch(blocked=False)
    inner.keep(each for each in args if isinstance(each, Tensor))
    with inner:
        if first:
            blocks.backward(inputs, rule, *args[:3])
        else:
            blocks.forward(inputs, rule)
    return inner.peak


def gate_flops(query: Any, key: Any, value: Any, query_groups: Any, *rest: Any, products: int = 2,
               affinities: int = 1, **kwargs: Any) -> int:  # fmt: skip
    """Of all causal pairs, in blocks of rows: products of D for each head and of K for each
    routing of the queries."""
    batch, heads, tokens, dim = query
    pairs = batch * tokens * (tokens + blocks.ROWS) // 2
    routings, groups = query_groups[1], query_groups[3]
    return 2 * pairs * (products * heads * dim + affinities * routings * groups)


ATTENTION = "_scaled_dot_product_flash_attention"
FLOPS = {  # torch's own, those of the CPU's attention by the GPU's, and what it has none for
    **flop_registry,
    FORWARD: shape_wrapper(gate_flops),
    BACKWARD: shape_wrapper(lambda grad, out, lse, *inputs, **_: gate_flops(
        *inputs, products=5, affinities=3)),
    **{getattr(torch.ops.aten, f"{ATTENTION}_for_cpu{way}"):
       flop_registry[getattr(torch.ops.aten, ATTENTION + way)] for way in ("", "_backward")},
}  # fmt: skip


def training(model: PreTrainedModel, batch: int, context: int, *, precision: str = "32-true",
             checkpointed: bool = False, blocked: bool = True) -> Traced:  # fmt: skip
    """One step of the parameters that require gradients under the log gate, or under full attention
    where there are no routers, with ``batch`` windows of ``context`` tokens.

    Args:
        model: from :func:`experiments.costs.shapes.build`.
        precision: of Lightning's trainer.
        checkpointed: whether layers compute their activations again in the backward pass.
        blocked: see :class:`Watch`.
    """
    mixed = precision != "32-true"
    if checkpointed:
        compute_again(model)
    with FakeTensorMode():
        shapes.materialise(model)
        ids = torch.zeros(batch, context, dtype=torch.int64)
        real = torch.ones(batch, context, dtype=torch.bool)
        watch = _watched(model, blocked)
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.register_post_accumulate_grad_hook(lambda each: watch.keep([each.grad]))
        # Without a mask transformers looks for packed texts, by numbers that are not there.
        hook = model.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "attention_mask": real}), with_kwargs=True
        )
        cast = torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext()
        gated = focus.mode(model, "soft") if shapes.routers(model) else nullcontext()
        with watch, gated:
            with cast:
                loss = next_token_loss(model, ids)
            loss.backward()
        hook.remove()
    return Traced(watch.peak, 0, watch.flops)


def inference(model: PreTrainedModel, batch: int, context: int) -> Traced:
    """Full attention over ``context`` tokens into a cache, and the logits of the last.

    Args:
        model: from :func:`experiments.costs.shapes.build`, without routers.
    """
    with FakeTensorMode(), torch.no_grad():
        shapes.materialise(model)
        ids = torch.zeros(batch, context, dtype=torch.int64)
        watch = _watched(model, blocked=False)
        with watch:
            found = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        cache = shapes.size(x for layer in found.layers for x in (layer.keys, layer.values))
    return Traced(watch.peak - cache, cache, watch.flops)


def _watched(model: PreTrainedModel, blocked: bool) -> Watch:
    watch = Watch(blocked)
    watch.keep([*model.parameters(), *model.buffers()])
    return watch
