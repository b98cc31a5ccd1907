"""The public attention call and its choice of backend."""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention.checks import Inputs, validate
from focus.attention.cost import choose, choose_lists, keeps_all
from focus.attention.decomposed import decomposed_attention, make_plan
from focus.attention.dense import attend, pairs_kept

BACKENDS = ("auto", "dense", "decomposed")


def focus_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    *,
    window: int = 128,
    sinks: int = 0,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    key_membership: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention under the hard mask; arguments as :func:`focus.dense_attention`, and ``backend``.

    Raises:
        ValueError: bad arguments (:func:`focus.attention.checks.validate`), or a backend that
            cannot compute what is asked.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
    x = validate(
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership
    )
    spans = real_spans(x)
    if backend == "decomposed" and spans is None:
        raise ValueError(
            "key_padding_mask: has padding between real tokens, which the decomposed backend "
            "does not support; pad on one side, or use backend='dense'"
        )
    if backend == "dense" or spans is None or query.is_cuda:
        kept = pairs_kept(x.membership, x.key_membership, window, sinks, x.real)
        return attend(query, key, value, x.scale, kept=kept)
    if backend == "decomposed":
        return decomposed_attention(x, make_plan(x, spans, *choose_lists(x)))
    if not keeps_all(x):
        return decomposed_attention(x, make_plan(x, spans, *choose(x)))
    return decomposed_attention(x, make_plan(x, spans, "causal"))


def real_spans(x: Inputs) -> list[tuple[int, int]] | None:
    """First and last + 1 real token of every sequence; None if padding stands between them."""
    batch, tokens = x.query.shape[0], x.query.shape[2]
    if x.real is None:
        return [(0, tokens)] * batch
    starts, counts = x.real.int().argmax(1), x.real.sum(1)
    position = torch.arange(tokens, device=x.real.device)
    inside = (position >= starts[:, None]) & (position < (starts + counts)[:, None])
    if not torch.equal(inside, x.real):
        return None
    return [(start, stop) for start, stop in torch.stack([starts, starts + counts], 1).tolist()]
