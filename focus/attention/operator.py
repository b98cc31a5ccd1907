"""Exact attention over a whole sequence as two operators, ``focus::attention`` and
``focus::attention_backward``: torch.compile sees one node each, checkpointing frees what they save.

Which path computes a call is found inside, from devices, dtypes and (on CPU) values; the backward
pass finds the same one from the same tensors.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups, Hm
routings (1, Hk or H), E further keys of a query.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.functional import scaled_dot_product_attention

from focus.attention import stripes, varlen
from focus.attention.checks import Inputs, check_contents, check_finite, learns
from focus.attention.dtypes import autocast_on
from focus.attention.extra import settle
from focus.attention.native import call as native
from focus.attention.train import cuda
from focus.attention.triton import call as triton

NATIVE = {"native": native.AUTO, "native:lists": native.LISTS, "native:dense": native.DENSE}
TRITON = {"triton": None, "triton:lists": False, "triton:dense": True}
ON_GPU = {"triton": triton.refusal, "varlen": varlen.refusal}  # the first that can


def attention(x: Inputs, backend: str) -> Tensor:
    """:func:`focus.focus_attention` of checked arguments, by any path but ``dense``."""
    out: Tensor
    tensors = (x.query, x.key, x.value)
    if not traced(tensors):  # the dispatcher would take half as long as a short call
        _refuse_tangents(x)
        if backend == "auto" and _may_keep_all(x):
            checked = check_contents(settle(x))
            if keeps_all(checked):
                check_finite(checked)
                return causal(*tensors, x.scale)
        if not learns(*tensors):
            return _forward(x, backend)[0]
    keys = x.key_membership if x.separate_keys else None
    out, _ = _attention(*tensors, x.membership, keys, x.real, x.extra,
                        min(x.window, x.query.shape[2]), min(x.sinks, x.query.shape[2]),
                        x.scale, backend)  # fmt: skip
    return out


def causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Every causal pair, by the call that the pretrained model makes: the same bits."""
    return scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    )


def traced(tensors: tuple[Tensor, ...]) -> bool:
    """Whether values may not be looked at outside of an operator."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return any(type(each) not in (Tensor, Parameter) for each in tensors)


def _refuse_tangents(x: Inputs) -> None:
    if forward_ad._current_level < 0:
        return
    for name, each in (("query", x.query), ("key", x.key), ("value", x.value)):
        if forward_ad.unpack_dual(each).tangent is not None:
            raise ValueError(
                f"{name}: carries a forward-mode derivative, which only backend='dense' has"
            )


@torch.library.custom_op("focus::attention", mutates_args=())
def _attention(
    query: Tensor, key: Tensor, value: Tensor, membership: Tensor, key_membership: Tensor | None,
    real: Tensor | None, extra: Tensor | None, window: int, sinks: int, scale: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    keys = membership if key_membership is None else key_membership
    x = Inputs(query, key, value, membership, keys, real, extra, window, sinks, scale)
    out, lse = _forward(x, backend)
    return out, lse.contiguous()


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, dim = query.shape
    lse_type = torch.promote_types(query.dtype, torch.float32)
    out = query.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    return out, query.new_empty(batch, heads, tokens, dtype=lse_type)


@torch.library.custom_op("focus::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    membership: Tensor, key_membership: Tensor | None, real: Tensor | None, extra: Tensor | None,
    window: int, sinks: int, scale: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    keys = membership if key_membership is None else key_membership
    x = Inputs(query, key, value, membership, keys, real, extra, window, sinks, scale)
    with _no_autocast(x):
        grads = _backward(grad, settle(x), out, lse, backend)
    return tuple(each.contiguous() for each in grads)  # type: ignore[return-value]


@_attention_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (query, key, value))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    # Memberships too, so that one that was refilled in place meanwhile is noticed.
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.rest = inputs[7:]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, *others, out, lse = ctx.saved_tensors
    grads = _attention_backward(grad, query, key, value, out, lse, *others, *ctx.rest)
    return (*grads, *(None,) * 8)


_attention.register_autograd(_differentiate, setup_context=_save)


def _forward(x: Inputs, backend: str) -> tuple[Tensor, Tensor]:
    with _no_autocast(x):
        if x.on_cpu:
            x = settle(x)
        path, x, spans = _path(x, backend)
        if path == "native":
            return native.forward(x, spans, NATIVE.get(backend, native.AUTO))
        check_finite(x)
        if path in TRITON:
            return triton.forward(x, TRITON[path])
        if not x.on_cpu:  # Triton's kernels settle by themselves
            x = settle(x)
        if path == "stripes":
            return stripes.forward(x)
        return varlen.forward(x, path)


def _no_autocast(x: Inputs) -> AbstractContextManager[Any]:
    """What is computed here has its dtype already."""
    device = x.query.device.type
    return torch.autocast(device, enabled=False) if autocast_on(device) else nullcontext()


def _backward(
    grad: Tensor, x: Inputs, out: Tensor, lse: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    path, x, spans = _path(x, backend)
    if path == "native":
        return native.backward(grad, x, out, lse, spans, NATIVE.get(backend, native.AUTO))
    if path in TRITON:  # its out and lse are all that any backward pass asks for
        short = triton.is_short(x, TRITON[path], backward=True)
        if short and cuda.able(x.query, x.membership):
            return cuda.backward_of_mask(grad, x, out, lse)
        path = "stripes" if varlen.too_wide(x) else "varlen"
    if path == "stripes":
        return stripes.backward(grad, x)
    return varlen.backward(grad, x, out, lse, path)


def _path(x: Inputs, backend: str) -> tuple[str, Inputs, Any]:
    """The path (``auto``: see :func:`focus.focus_attention`), its inputs (memberships brought to
    one form where it wants that) and its spans."""
    if backend == "auto" or backend in NATIVE:
        why = native.refusal(x)
        spans = None if why else native.real_spans(x.query, x.real)
        if spans is not None:
            return "native", x, spans
        if backend in NATIVE:
            raise ValueError(why or (
                "key_padding_mask: has padding between real tokens, which the compiled kernel does "
                "not take; pad on one side, or use backend='stripes'"
            ))  # fmt: skip
        backend = next((name for name, why in ON_GPU.items() if why(x) is None), "stripes")
    return backend, check_contents(x), None


def keeps_all(x: Inputs) -> bool:
    """Whether every causal pair of real tokens is kept: a window or sinks that hold every token, or
    (which is counted in ``check_contents``) more than K groups of a query and a key together.
    False: not known."""
    tokens, groups = x.membership.shape[2:]
    return max(x.window, x.sinks) >= tokens or groups == 1 or x.fewest > groups


def _may_keep_all(x: Inputs) -> bool:
    """Whether the last token's groups, or the window, say that every pair may be kept: the others
    are counted only then."""
    if x.real is not None or not x.on_cpu:
        return False
    tokens, groups = x.membership.shape[2:]
    last = [each[0, 0, -1] for each in (x.membership, x.key_membership)]
    return max(x.window, x.sinks) >= tokens or sum(int(each.sum()) for each in last) > groups
