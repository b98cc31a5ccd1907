"""Full attention on CPU under the exact mask, in stripes of rows: what short sequences take.

A stripe's call stops at its last query's key, so it computes fewer pairs than a causal call whose
key blocks are fixed, and its mask is made for the stripe alone.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
M queries of a stripe.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from focus.attention.groups import Codes, Routing, Saved
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype

APART = 1e9  # lowers the logit of a distant pair without a common group: its weight underflows to 0
MASK_ELEMENTS = 1 << 20
CACHED = 1024  # tokens up to which a mask's template is kept for the next call


def stripe_rows(tokens: int) -> int:
    """Queries of a call: few beside a short sequence, where the triangle's steps would show."""
    return 192 if tokens > 768 else 64


def rows_forward(routing: Routing, codes: Codes, out: Tensor, lse: Tensor) -> None:
    """Attention over all kept pairs, written to out (H, T, D) and lse (H, T)."""
    for rows, mask in _stripes(routing, codes):
        seen = slice(routing.start, rows.stop)
        part, part_lse = cpu_forward(
            routing.query[None, :, rows], routing.key[None, :, seen], routing.value[None, :, seen],
            routing.scale, mask=mask,
        )  # fmt: skip
        out[:, rows] = part[0]
        lse[:, rows] = part_lse[0]


def rows_backward(routing: Routing, codes: Codes, saved: Saved) -> None:
    """Gradients of :func:`rows_forward`, added to the sums."""
    for rows, mask in _stripes(routing, codes):
        seen = slice(routing.start, rows.stop)
        d_query, d_key, d_value = cpu_backward(
            saved.grad[None, :, rows], routing.query[None, :, rows], routing.key[None, :, seen],
            routing.value[None, :, seen], saved.out[None, :, rows], saved.lse[None, :, rows],
            routing.scale, mask=mask,
        )  # fmt: skip
        saved.d_query[:, rows] += d_query[0]
        saved.d_key[:, seen] += d_key[0]
        saved.d_value[:, seen] += d_value[0]


def causal_forward(routing: Routing, out: Tensor, lse: Tensor) -> None:
    """Attention over all causal pairs, where the mask keeps every one of them."""
    own = slice(routing.start, routing.stop)
    part, part_lse = cpu_forward(
        routing.query[None, :, own], routing.key[None, :, own], routing.value[None, :, own],
        routing.scale, causal=True,
    )  # fmt: skip
    out[:, own] = part[0]
    lse[:, own] = part_lse[0]


def causal_backward(routing: Routing, saved: Saved) -> None:
    """Gradients of :func:`causal_forward`, added to the sums."""
    own = slice(routing.start, routing.stop)
    parts = cpu_backward(
        saved.grad[None, :, own], routing.query[None, :, own], routing.key[None, :, own],
        routing.value[None, :, own], saved.out[None, :, own], saved.lse[None, :, own],
        routing.scale, causal=True,
    )  # fmt: skip
    for total, part in zip((saved.d_query, saved.d_key, saved.d_value), parts, strict=True):
        total[:, own] += part[0]


def _stripes(routing: Routing, codes: Codes) -> Iterator[tuple[slice, Tensor]]:
    """(rows, additive mask (M, keys up to the last row)); several stripes share one mask."""
    tokens = routing.stop - routing.start
    height = stripe_rows(tokens)
    together = min(tokens, max(height, MASK_ELEMENTS // tokens // height * height))
    dtype = mask_dtype(routing.query.dtype)
    # What does not depend on groups, for rows from `tokens` on; other rows' is further right in it.
    template = (_template if tokens <= CACHED else _template.__wrapped__)(
        together, tokens, routing.window, dtype
    )
    query_codes = codes[0][routing.start : routing.stop].to(dtype) * APART
    key_codes = codes[1][routing.start : routing.stop].to(dtype).T
    for at in range(0, tokens, together):
        stop = min(at + together, tokens)
        base = template[: stop - at, tokens - at : tokens - at + stop]
        mask = torch.addmm(base, query_codes[at:stop], key_codes[:, :stop]).clamp_(max=0.0)
        for first in range(at, stop, height):
            last = min(first + height, stop)
            rows = slice(routing.start + first, routing.start + last)
            yield rows, mask[first - at : last - at, :last]


@lru_cache(maxsize=4)
def _template(rows: int, tokens: int, window: int, dtype: torch.dtype) -> Tensor:
    """(rows, tokens + rows): 0 within the window, lowered before it, -inf after the query."""
    distance = torch.arange(tokens, tokens + rows)[:, None] - torch.arange(tokens + rows)
    mask = torch.zeros(distance.shape, dtype=dtype)
    return mask.masked_fill_(distance >= window, -APART).masked_fill_(distance < 0, -torch.inf)
