"""Full attention on CPU under the exact mask, in stripes of rows: what short sequences take.

A stripe's call stops at its last query's key, so it computes fewer pairs than a causal call whose
key blocks are fixed, and its mask is made for the stripe alone.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
M queries of a stripe.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from focus.attention.groups import Routing, Saved
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype

APART = 1e9  # lowers the logit of a distant pair without a common group: its weight underflows to 0
MASK_ELEMENTS = 1 << 20


def stripe_rows(tokens: int) -> int:
    """Queries of a call: few beside a short sequence, where the triangle's steps would show."""
    return 256 if tokens > 1024 else 128 if tokens > 256 else 64


def rows_forward(routing: Routing, query_codes: Tensor, key_codes: Tensor, out: Tensor,
                 lse: Tensor) -> None:  # fmt: skip
    """Writes attention over the kept pairs to out (H, T, D) and lse (H, T); codes (T, K) bool."""
    for rows, mask in _stripes(routing, query_codes, key_codes):
        seen = slice(routing.start, rows.stop)
        part, part_lse = cpu_forward(
            routing.query[None, :, rows], routing.key[None, :, seen], routing.value[None, :, seen],
            routing.scale, mask=mask,
        )  # fmt: skip
        out[:, rows] = part[0]
        lse[:, rows] = part_lse[0]


def rows_backward(routing: Routing, query_codes: Tensor, key_codes: Tensor,
                  saved: Saved) -> None:  # fmt: skip
    """Gradients of :func:`rows_forward`, added to the sums."""
    for rows, mask in _stripes(routing, query_codes, key_codes):
        seen = slice(routing.start, rows.stop)
        d_query, d_key, d_value = cpu_backward(
            saved.grad[None, :, rows], routing.query[None, :, rows], routing.key[None, :, seen],
            routing.value[None, :, seen], saved.out[None, :, rows], saved.lse[None, :, rows],
            routing.scale, mask=mask,
        )  # fmt: skip
        saved.d_query[:, rows] += d_query[0]
        saved.d_key[:, seen] += d_key[0]
        saved.d_value[:, seen] += d_value[0]


def _stripes(routing: Routing, query_codes: Tensor, key_codes: Tensor,
             ) -> Iterator[tuple[slice, Tensor]]:  # fmt: skip
    """(rows, additive mask (M, keys up to the last row)); several stripes share one mask."""
    tokens = routing.stop - routing.start
    height = stripe_rows(tokens)
    together = max(height, MASK_ELEMENTS // tokens // height * height)
    dtype = mask_dtype(routing.query.dtype)
    query_codes, key_codes = query_codes.to(dtype) * APART, key_codes.to(dtype)
    for at in range(routing.start, routing.stop, together):
        stop = min(at + together, routing.stop)
        mask = _mask(routing, query_codes, key_codes, at, stop)
        for first in range(at, stop, height):
            last = min(first + height, stop)
            yield slice(first, last), mask[first - at : last - at, : last - routing.start]


def _mask(routing: Routing, query_codes: Tensor, key_codes: Tensor, at: int,
          stop: int) -> Tensor:  # fmt: skip
    lowest = query_codes.new_full((), -APART)
    seen = key_codes[routing.start : stop]
    mask = torch.addmm(lowest, query_codes[at:stop], seen.T).clamp_(max=0.0)
    near = max(routing.start, at - routing.window + 1)
    column = torch.arange(near, stop)
    distance = torch.arange(at, stop)[:, None] - column
    band = mask[:, near - routing.start :]
    band.masked_fill_(distance < routing.window, 0.0).masked_fill_(distance < 0, -torch.inf)
    return mask
