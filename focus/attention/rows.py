"""Full attention on CPU under the exact mask, in stripes of rows: what short sequences take.

A stripe's call stops at its last query's key, so it computes fewer pairs than a causal call whose
key blocks are fixed, and its mask is made for the stripe alone: where few patterns of groups occur,
by copying rows of a table. All routings of a sequence go in one call.

Shape suffixes: R routings of the sequence, H query heads and Hk key heads of a routing, T tokens,
D head dimension, K groups, M queries of a stripe, S patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype

APART = 1e9  # lowers the logit of a distant pair without a common group: its weight underflows to 0
SHORT = 1024  # tokens up to which a sequence has one mask, which all stripes share


@dataclass(frozen=True)
class Stack:
    """The real tokens of one sequence, its routings as the batch.

    query (R, H, T, D); key, value (R, Hk, T, D); query_codes, key_codes (R, T, K), the sinks in all
    groups; found: distinct groups of queries (S, K) and which of them each has (R, T), or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_codes: Tensor
    key_codes: Tensor
    found: tuple[Tensor, Tensor] | None
    window: int
    scale: float


@dataclass(frozen=True)
class StackGrads:
    """Merged results and their gradient, and where the operands' gradients are added."""

    grad: Tensor
    out: Tensor
    lse: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor


STRIPE_ROWS = 192  # queries of a call: from here on the kernel takes 64 instead of 32 at a time


def rows_forward(stack: Stack, out: Tensor, lse: Tensor) -> None:
    """Attention over all kept pairs, written to out (R, H, T, D) and lse (R, H, T)."""
    for rows, part, part_lse in _parts(stack):
        out[:, :, rows] = part
        lse[:, :, rows] = part_lse


def _parts(stack: Stack) -> Iterator[tuple[slice, Tensor, Tensor]]:
    for rows, mask in _stripes(stack):
        part, part_lse = cpu_forward(
            stack.query[:, :, rows], stack.key[:, :, : rows.stop], stack.value[:, :, : rows.stop],
            stack.scale, causal=mask is None, mask=mask,
        )  # fmt: skip
        yield rows, part, part_lse


def whole_forward(stack: Stack, causal: bool) -> tuple[Tensor, Tensor]:
    """The same, or attention over all causal pairs, for a sequence that is all there is: out
    (R, H, T, D) and lse (R, H, T) of their own, in as few copies as can be."""
    if causal:
        return cpu_forward(stack.query, stack.key, stack.value, stack.scale, causal=True)
    parts = [(part.transpose(1, 2), lse.transpose(1, 2)) for _, part, lse in _parts(stack)]
    # In the kernel's own layout, in which rows are copied whole.
    out, lse = (torch.cat(each, 1).transpose(1, 2) for each in zip(*parts, strict=True))
    return out, lse


def rows_backward(stack: Stack, grads: StackGrads) -> None:
    """Gradients of :func:`rows_forward`, added to the sums."""
    for rows, mask in _stripes(stack):
        keys = slice(rows.stop)
        d_query, d_key, d_value = cpu_backward(
            grads.grad[:, :, rows], stack.query[:, :, rows], stack.key[:, :, keys],
            stack.value[:, :, keys], grads.out[:, :, rows], grads.lse[:, :, rows], stack.scale,
            causal=mask is None, mask=mask,
        )  # fmt: skip
        grads.d_query[:, :, rows] += d_query
        grads.d_key[:, :, keys] += d_key
        grads.d_value[:, :, keys] += d_value


def causal_forward(stack: Stack, out: Tensor, lse: Tensor) -> None:
    """Attention over all causal pairs, where the mask keeps every one of them."""
    part, part_lse = cpu_forward(stack.query, stack.key, stack.value, stack.scale, causal=True)
    out.copy_(part)
    lse.copy_(part_lse)


def causal_backward(stack: Stack, grads: StackGrads) -> None:
    """Gradients of :func:`causal_forward`, added to the sums."""
    d_query, d_key, d_value = cpu_backward(
        grads.grad, stack.query, stack.key, stack.value, grads.out, grads.lse, stack.scale,
        causal=True,
    )  # fmt: skip
    grads.d_query.add_(d_query)
    grads.d_key.add_(d_key)
    grads.d_value.add_(d_value)


def _stripes(stack: Stack) -> Iterator[tuple[slice, Tensor | None]]:
    """(rows, additive mask (R, 1, M, keys up to the last row)) of every stripe.

    The first rows need no mask where their windows reach the start: as many of them go unmasked as
    leave whole stripes.
    """
    tokens, height = stack.query.shape[2], STRIPE_ROWS
    start = max(0, tokens - height * math.ceil((tokens - stack.window) / height))
    if start:
        yield slice(0, min(start, tokens)), None
    if start >= tokens:
        return
    dtype = mask_dtype(stack.query.dtype)
    query_codes, key_codes = stack.query_codes.to(dtype), stack.key_codes.to(dtype)
    whole = table = None
    if tokens <= SHORT:
        whole = _short_mask(query_codes[:, start:], key_codes, stack.window).unsqueeze(1)
    elif stack.found is not None:
        table = _distant(stack.found[0].to(dtype).expand(len(key_codes), -1, -1), key_codes)
    for first in range(start, tokens, height):
        last = min(first + height, tokens)
        if whole is not None:
            yield slice(first, last), whole[:, :, first - start : last - start, :last]
            continue
        if table is None or stack.found is None:
            mask = _distant(query_codes[:, first:last], key_codes[:, :last])
        else:
            which = stack.found[1][:, first:last]
            copies = [
                own[:, :last].index_select(0, at) for own, at in zip(table, which, strict=True)
            ]
            mask = torch.stack(copies) if len(copies) > 1 else copies[0].unsqueeze(0)
        yield slice(first, last), _with_window(mask, first, stack.window).unsqueeze(1)


def _distant(query_codes: Tensor, key_codes: Tensor) -> Tensor:
    """(R, M, N): 0 where groups meet, lowered elsewhere."""
    apart = query_codes.new_full((1, 1, 1), -APART)
    return torch.baddbmm(apart, query_codes * APART, key_codes.transpose(1, 2)).clamp_(max=0.0)


def _with_window(mask: Tensor, first: int, window: int) -> Tensor:
    """Opens the window and closes what follows each query, in place; row 0 is query ``first``."""
    rows = mask.shape[1]
    low = max(0, first - window + 1)
    near = _template(rows, window, mask.dtype)[:, window - 1 - (first - low) :]
    torch.maximum(mask[:, :, low:], near, out=mask[:, :, low:])
    after = near[:, first - low :] == -torch.inf
    mask[:, :, first:].masked_fill_(after, -torch.inf)
    return mask


@lru_cache(maxsize=8)
def _template(rows: int, window: int, dtype: torch.dtype) -> Tensor:
    """(rows, window - 1 + rows): 0 within the window, lowered before it, -inf after the query."""
    distance = torch.arange(rows)[:, None] - torch.arange(1 - window, rows)
    mask = torch.zeros(distance.shape, dtype=dtype)
    return mask.masked_fill_(distance >= window, -APART).masked_fill_(distance < 0, -torch.inf)


def _short_mask(query_codes: Tensor, key_codes: Tensor, window: int) -> Tensor:
    """(R, M, T) of a short sequence's last M rows, in as few operations as can be."""
    base = _last_rows(query_codes.shape[1], key_codes.shape[1], window, query_codes.dtype)
    return torch.baddbmm(base, query_codes * APART, key_codes.transpose(1, 2)).clamp_(max=0.0)


@lru_cache(maxsize=8)
def _last_rows(rows: int, tokens: int, window: int, dtype: torch.dtype) -> Tensor:
    """(1, rows, tokens): as :func:`_template`, for the last rows of a sequence."""
    distance = torch.arange(tokens - rows, tokens)[:, None] - torch.arange(tokens)
    mask = torch.zeros(1, rows, tokens, dtype=dtype)
    return mask.masked_fill_(distance >= window, -APART).masked_fill_(distance < 0, -torch.inf)
