"""Random inputs of an attention call, and how far a result is from the exact one. Torch only.

Shape suffixes: B batch, R routings (1 or Hk), T tokens, H query heads, Hk key heads, D head
dimension, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("balanced", "unbalanced", "empty", "one", "ragged")


def draw_membership(
    shape: tuple[int, ...], top_k: int, generator: torch.Generator, kind: str = "balanced"
) -> Tensor:
    """(..., T, K) bool on the generator's device: each token in ``top_k`` groups by random scores.

    Args:
        kind: ``balanced``; ``unbalanced`` (group 0 is favoured); ``empty`` (the last group has no
            token, unless top_k = K); ``one`` (all tokens in the same groups); ``ragged`` (tokens
            join further groups at random).
    """
    if kind not in KINDS:
        raise ValueError(f"kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    groups = shape[-1]
    device = generator.device
    scores = torch.randn(shape, generator=generator, device=device)
    if kind == "one":
        scores = torch.arange(groups, 0, -1.0, device=device).expand(shape)
    elif kind == "unbalanced":
        scores[..., 0] += 2
    elif kind == "empty" and top_k < groups:
        scores[..., -1] = -torch.inf
    membership = torch.zeros(shape, dtype=torch.bool, device=device)
    membership.scatter_(-1, scores.topk(min(top_k, groups), -1).indices, True)
    if kind == "ragged":
        membership |= torch.rand(shape, generator=generator, device=device) < 0.2
    return membership


def draw_tensors(
    batch: int, heads: int, key_heads: int, tokens: int, dim: int, dtype: torch.dtype,
    generator: torch.Generator,
) -> list[Tensor]:  # fmt: skip
    """query (B, H, T, D), key and value (B, Hk, T, D), standard normal, on the generator's
    device."""
    return [
        torch.randn(batch, number, tokens, dim, generator=generator, device=generator.device).to(
            dtype
        )
        for number in (heads, key_heads, key_heads)
    ]


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of the exact values.

    Where the exact values are zero by cancellation (a single key: the softmax is constant and its
    gradient nothing but rounding) the difference itself is returned.
    """
    norm = exact.norm().item()
    return (found.double() - exact.double()).norm().item() / (norm if norm > 1e-9 else 1.0)


def cosine(found: Tensor, exact: Tensor) -> float:
    """Cosine similarity of two tensors as vectors; 1 where both are zero."""
    a, b = found.double().flatten(), exact.double().flatten()
    norms = (a.norm() * b.norm()).item()
    return (a @ b).item() / norms if norms > 0 else float(torch.equal(a, b))
