"""The public attention call and its choice of backend."""

from __future__ import annotations

from torch import Tensor

from focus.attention.dense import dense_attention

BACKENDS = ("auto", "dense")


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
    """Attention under the hard mask; arguments as :func:`focus.dense_attention`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
    return dense_attention(
        query, key, value, membership, window=window, sinks=sinks, scale=scale,
        key_padding_mask=key_padding_mask, key_membership=key_membership,
    )  # fmt: skip
