"""Random attention cases, the definition in float64, and the comparison that tests share.

Shape suffixes: B batch, R routings (1, Hk or H), T tokens, H query heads, Hk key heads, D head
dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from focus.attention import dense_attention, focus_attention, operator
from focus.attention.checks import check_arguments
from focus.attention.native import build

# Largest relative error of the outputs and of any gradient.
TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-12, 1e-11)}

needs_kernel = pytest.mark.skipif(
    build.library() is None, reason="there is no C++ compiler here, so no compiled kernel"
)


@dataclass(frozen=True)
class Case:
    """One set of shapes and how memberships are drawn."""

    tokens: int
    groups: int = 4
    top_k: int = 1
    key_top_k: int | None = None  # None: keys are routed as queries are
    window: int = 16
    sinks: int = 0
    kind: str = "balanced"  # balanced | unbalanced | empty | one | ragged
    batch: int = 1
    heads: int = 4
    key_heads: int = 2
    dim: int = 16
    routers: str = "layer"  # layer | kv_head | query_head
    padding: str | None = None  # None | left | right
    layout: str = "heads"  # heads: (B, H, T, D) in memory; tokens: (B, T, H, D)
    dtype: torch.dtype = torch.float32
    extra: int = 0  # further keys of each query
    seed: int = 0


def draw_membership(case: Case, top_k: int, generator: torch.Generator, heads: int) -> Tensor:
    """(B, T, K) or (B, heads, T, K) bool."""
    rows = () if case.routers == "layer" else (heads,)
    shape = (case.batch, *rows, case.tokens, case.groups)
    top_k = min(top_k, case.groups)
    scores = torch.randn(shape, generator=generator)
    if case.kind == "one":
        scores = torch.arange(case.groups, 0, -1.0).expand(shape)
    elif case.kind == "unbalanced":
        scores[..., 0] += 2
    elif case.kind == "empty" and top_k < case.groups:
        scores[..., -1] = -torch.inf
    membership = torch.zeros(shape, dtype=torch.bool)
    membership.scatter_(-1, scores.topk(top_k, -1).indices, True)
    if case.kind == "ragged":
        membership |= torch.rand(shape, generator=generator) < 0.2
    return membership


def draw_real(case: Case) -> Tensor | None:
    """(B, T) bool with padding of another length in every sequence but the first."""
    if case.padding is None:
        return None
    real = torch.ones(case.batch, case.tokens, dtype=torch.bool)
    for b in range(case.batch):
        count = b * case.tokens // (2 * case.batch)
        if count:
            real[b, :count] = case.padding != "left"
            real[b, case.tokens - count :] = case.padding != "right"
    return real


def draw_extra(case: Case, generator: torch.Generator) -> Tensor | None:
    """(B, T, E) positions up to each query's own, some twice, some in the window, some none."""
    if not case.extra:
        return None
    shape = (case.batch, case.tokens, case.extra)
    drawn = torch.rand(shape, generator=generator) * (torch.arange(case.tokens)[:, None] + 1)
    return drawn.long().masked_fill(torch.rand(shape, generator=generator) < 0.3, -1)


def draw(case: Case) -> tuple[list[Tensor], dict[str, Any]]:
    """query, key, value in the case's dtype, and the keyword arguments of an attention call."""
    generator = torch.Generator().manual_seed(case.seed)
    tensors = []
    for heads in (case.heads, case.key_heads, case.key_heads):
        shape = (case.batch, case.tokens, heads, case.dim)
        x = torch.randn(shape, generator=generator).to(case.dtype).transpose(1, 2)
        tensors.append(x if case.layout == "tokens" else x.contiguous())
    keys, key_heads = case.key_top_k, case.key_heads
    own = case.heads if case.routers == "query_head" else key_heads
    options = {
        "membership": draw_membership(case, case.top_k, generator, own),
        "key_membership": None
        if keys is None
        else draw_membership(case, keys, generator, key_heads),
        "window": case.window,
        "sinks": case.sinks,
        "key_padding_mask": draw_real(case),
        "extra_keys": draw_extra(case, generator),
    }
    return tensors, options


def with_gradients(attention: Any, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients in query, key and value, for a fixed random gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = attention(*leaves, **options)
    generator = torch.Generator().manual_seed(99)
    grad = torch.randn(out.shape, generator=generator).to(tensors[0].dtype)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves)]


def definition(tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """The dense definition in float64, with gradients."""
    exact = [x.detach().double() for x in tensors]
    leaves = [x.requires_grad_() for x in exact]
    out = dense_attention(*leaves, **options)
    generator = torch.Generator().manual_seed(99)
    out.backward(torch.randn(out.shape, generator=generator).to(tensors[0].dtype).double())
    return [out.detach(), *(x.grad for x in leaves)]


@lru_cache(64)
def answer(case: Case) -> list[Tensor]:
    """The definition's outputs and gradients of a case: several backends are asked for them."""
    return definition(*draw(case))


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of the exact values.

    A gradient that is zero by cancellation (one key only: softmax is constant) is compared with
    one instead.
    """
    norm = exact.norm().item()
    return (found.double() - exact).norm().item() / (norm if norm > 1e-9 else 1.0)


def attention_of(backend: str) -> Callable[..., Tensor]:
    """:func:`focus.focus_attention` by a backend; also ``lists`` and ``dense test``: the compiled
    kernel's two ways; ``rehearsed``: the path for CUDA, with a loop in its kernels' place; and
    Triton's two ways by its interpreter."""
    inside = {"lists": "native:lists", "dense test": "native:dense", "rehearsed": "varlen",
              "interpreted": "triton:dense", "interpreted lists": "triton:lists"}  # fmt: skip
    if backend in inside:
        return partial(by_operator, inside[backend])
    return partial(focus_attention, backend=backend)


def by_operator(path: str, *tensors: Tensor, **options: Any) -> Tensor:
    """Attention by a path that is no public backend."""
    return operator.attention(check_arguments(*tensors, **options), path)


def check(case: Case, backend: str) -> None:
    """Asserts that the output and gradients of a backend (:func:`attention_of`) are the
    definition's."""
    tensors, options = draw(case)
    found = with_gradients(attention_of(backend), tensors, **options)
    errors = [relative_error(one, exact) for one, exact in zip(found, answer(case), strict=True)]
    most_out, most_grad = TOLERANCES[case.dtype]
    assert errors[0] <= most_out, (case, errors)
    assert max(errors[1:]) <= most_grad, (case, errors)
