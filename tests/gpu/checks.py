"""Every path of attention on CUDA, with what it must handle, against the definition in float64.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.kernels.synthetic import draw_membership, draw_tensors, relative_error
from experiments.kernels.timing import full
from focus import dense_attention, focus_attention
from focus.attention import flash, operator
from focus.attention.checks import check_arguments


@dataclass(frozen=True)
class Check:
    """One case that a path is checked on."""

    backend: str = "triton"
    tokens: int = 517
    groups: int = 8
    top_k: int = 1
    key_top_k: int | None = None
    window: int = 128
    sinks: int = 0
    heads: int = 8
    key_heads: int = 2
    dim: int = 64
    dtype: str = "bfloat16"
    kind: str = "balanced"
    padding: str | None = None
    per_head: bool = False
    extra: int = 0  # further keys of each query


def checks() -> Iterator[Check]:
    """Every path and what it must handle."""
    for backend in ("triton", "triton:lists", "varlen", "stripes"):
        for dim in (64, 128):
            yield Check(backend, dim=dim)
            yield Check(backend, dim=dim, dtype="float16", top_k=2, sinks=4)
        yield Check(backend, groups=4, top_k=2, key_top_k=1, sinks=4, per_head=True)
        yield Check(backend, groups=16, top_k=3, window=1, kind="unbalanced")
        yield Check(backend, groups=18, top_k=2, key_top_k=1, sinks=4, per_head=True, extra=4)
        yield Check(backend, groups=4, kind="empty", padding="left", sinks=2)
        yield Check(backend, groups=4, top_k=2, key_top_k=2, padding="right", kind="ragged")
        yield Check(backend, sinks=4, extra=4)
        yield Check(backend, groups=4, top_k=2, padding="left", per_head=True, extra=2)
        yield Check(backend, tokens=63, window=64, kind="one")
        yield Check(backend, tokens=1)
    yield Check("stripes", dtype="float32", top_k=2, sinks=4)
    if flash.installed():
        yield Check("flash-attn", top_k=2, sinks=4)
    yield Check("auto", tokens=4099, top_k=1, sinks=4)
    yield Check("auto", tokens=4099, groups=4, top_k=2)
    yield Check("auto", tokens=4099, groups=18, top_k=2, key_top_k=1, sinks=20, padding="left")
    yield Check("triton:lists", tokens=2050, dim=256, groups=32, top_k=2, heads=2, key_heads=1)
    yield Check("triton:dense", tokens=2050, dim=256, groups=32, top_k=2, heads=2, key_heads=1)
    yield Check("triton", tokens=2050, dim=80, groups=6, top_k=3, window=200, heads=4)


def draw(check: Check, device: torch.device) -> tuple[list[Tensor], dict[str, Any]]:
    """Tensors in the check's dtype, and the keyword arguments of the call."""
    generator = torch.Generator().manual_seed(0)
    batch = 2 if check.padding else 1
    tensors = draw_tensors(batch, check.heads, check.key_heads, check.tokens, check.dim,
                           getattr(torch, check.dtype), generator)  # fmt: skip
    sizes = (batch, *((check.key_heads,) if check.per_head else ()), check.tokens, check.groups)

    def membership(top_k: int) -> Tensor:
        return draw_membership(sizes, top_k, generator, check.kind).to(device)

    real = None
    if check.padding:
        real = torch.ones(batch, check.tokens, dtype=torch.bool, device=device)
        third = check.tokens // 3
        cut = slice(0, third) if check.padding == "left" else slice(check.tokens - third, None)
        real[1, cut] = False
    options = {
        "membership": membership(check.top_k), "window": check.window, "sinks": check.sinks,
        "key_membership": None if check.key_top_k is None else membership(check.key_top_k),
        "key_padding_mask": real,
    }  # fmt: skip
    if check.extra:
        shape = (batch, check.tokens, check.extra)
        drawn = torch.rand(shape, generator=generator) * (torch.arange(check.tokens)[:, None] + 1)
        options["extra_keys"] = drawn.long().to(device)
    return [x.to(device) for x in tensors], options


def with_gradients(attention: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype,
                   **options: Any) -> list[Tensor]:  # fmt: skip
    """Output and gradients in query, key and value, for one fixed gradient of the output."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in tensors]
    out = attention(*leaves, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad.to(tensors[0].dtype).to(dtype).to(out.device))
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def run_check(check: Check, device: torch.device) -> dict[str, Any]:
    """Errors against the float64 definition, and the limits: twice full attention's in half
    precision."""
    if device.type == "cpu" and check.dtype == "bfloat16":  # Triton's interpreter does not know it
        check = replace(check, dtype="float16")
    row: dict[str, Any] = {**asdict(check), "passed": False}
    try:
        tensors, options = draw(check, device)
        dtype = tensors[0].dtype
        found = with_gradients(_attention_of(check.backend, device), tensors, dtype, **options)
        exact = with_gradients(dense_attention, tensors, torch.float64, **options)
        errors = [relative_error(a, b) for a, b in zip(found, exact, strict=False)]
        limits = [1e-5, 1e-4, 1e-4, 1e-4] if dtype == torch.float32 else _half_limits(tensors)
    except Exception as error:  # a kernel that refuses or fails is a result of this harness
        return {**row, "error": f"{type(error).__name__}: {error}"[:500]}
    row |= {"errors": errors, "limits": limits[: len(errors)]}
    row["passed"] = all(a <= b for a, b in zip(errors, limits, strict=False))
    return row


def _attention_of(backend: str, device: torch.device) -> Callable[..., Tensor]:
    """A public backend, or one of its ways; on CPU the rehearsal of those for CUDA alone."""
    public = ":" not in backend
    if public and (device.type == "cuda" or backend not in ("triton", "varlen")):
        return partial(focus_attention, backend=backend)
    return lambda *tensors, **options: operator.attention(
        check_arguments(*tensors, **options), backend
    )


def _half_limits(tensors: list[Tensor]) -> list[float]:
    found = with_gradients(full, tensors, tensors[0].dtype)
    exact = with_gradients(full, tensors, torch.float64)
    # One token: both are exact, and one rounding of the result is allowed.
    least = torch.finfo(tensors[0].dtype).eps
    return [max(2 * relative_error(a, b), least) for a, b in zip(found, exact, strict=True)]
