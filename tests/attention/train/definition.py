"""Gated attention by its definition over all pairs, O(T^2), for autograd; and random cases.

Shape suffixes: B batch, T tokens, H query heads, K groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from focus.gates import gated_attention
from focus.groups import Assignments

NAMES = ("query", "key", "value", "query groups", "key groups")


@dataclass(frozen=True)
class Case:
    """Shapes, the rule, and how assignments are drawn."""

    tokens: int = 333
    dim: int = 32
    groups: int = 5
    window: int = 16
    sinks: int = 4
    heads: tuple[int, int, int, int] = (6, 2, 6, 2)  # query, key, and routings of either
    hard: bool = False
    sharpness: float = 3.0
    gate: str = "log"
    padding: tuple[tuple[int, int], ...] | None = None  # first and last + 1 real token, by sequence
    rest: dict[str, Any] = field(default_factory=dict)  # limit, softcap, dropout

    def options(self) -> dict[str, Any]:
        """Keyword arguments of gated_attention."""
        return {"gate": self.gate, "window": self.window, "sinks": self.sinks, "top_k": 1,
                "key_top_k": 1, "probes": 1, "hard_keys": False, "real": self.real(),
                **self.rest}  # fmt: skip

    def real(self) -> Tensor | None:
        if self.padding is None:
            return None
        position = torch.arange(self.tokens)
        return torch.stack([(position >= a) & (position < b) for a, b in self.padding])


def draw(case: Case, batch: int = 2) -> list[Tensor]:
    """query, key, value and the assignments of queries and keys, float64."""
    generator = torch.Generator().manual_seed(case.tokens)

    def normal(heads: int, width: int) -> Tensor:
        shape = (batch, heads, case.tokens, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    of_queries, of_keys = ((case.sharpness * normal(heads, case.groups)).softmax(-1)
                           for heads in case.heads[2:])  # fmt: skip
    if case.hard:
        of_keys = torch.zeros_like(of_keys).scatter_(-1, of_keys.argmax(-1, keepdim=True), 1.0)
    query, key = normal(case.heads[0], case.dim), normal(case.heads[1], case.dim)
    return [query, key, normal(case.heads[1], case.dim), of_queries, of_keys]


def called(case: Case, tensors: list[Tensor], **more: Any) -> Tensor:
    """The public function on the case."""
    return gated_attention(*tensors[:3], Assignments(*tensors[3:]), **{**case.options(), **more})


def by_definition(tensors: list[Tensor], *, gate: str, window: int, sinks: int,
                  scale: float | None = None, real: Tensor | None = None, limit: int | None = None,
                  softcap: float | None = None, **_: Any) -> Tensor:  # fmt: skip
    """Every head with keys and assignments of its own, every pair at once."""
    heads, tokens, dim = tensors[0].shape[1:]
    query, key, value, of_queries, of_keys = (
        x.repeat_interleave(heads // x.shape[1], 1) for x in tensors
    )
    position = torch.arange(tokens)
    distance = position[:, None] - position
    real = torch.ones(len(query), tokens, dtype=torch.bool) if real is None else real
    allowed = (distance >= 0) & real[:, None, :, None] & real[:, None, None, :]
    allowed = allowed & (distance < (limit or tokens))
    is_sink = real & (real.cumsum(-1) <= sinks)
    distant = allowed & (distance >= window) & ~is_sink[:, None, None, :]
    logits = query @ key.transpose(-1, -2) * (dim**-0.5 if scale is None else scale)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    affinity = of_queries @ of_keys.transpose(-1, -2)
    if gate == "eq2":
        logits = torch.where(distant, logits * torch.sigmoid(8 * affinity), logits)
        distant = torch.zeros_like(distant)
    # Weights times affinities, not logits plus their logarithms: there is a slope at affinity 0.
    most = logits.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True).detach()
    raised = (logits - most.clamp_min(-1e300)).masked_fill(~allowed, -torch.inf).exp()
    weights = raised * torch.where(distant, affinity, 1.0)
    return weights / weights.sum(-1, keepdim=True).masked_fill(~allowed.any(-1, True), 1.0) @ value


def with_gradients(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The output and its gradients in the tensors, for a fixed slope."""
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, tensors, slope.to(out.dtype))]


def check(case: Case, dtype: torch.dtype, tolerance: float, **masks: Any) -> None:
    """Asserts that outputs and gradients of the public function are the definition's."""
    low = [
        x.to(dtype) if n < 3 else x.to(torch.promote_types(dtype, torch.float32))
        for n, x in enumerate(draw(case))
    ]
    low = [x.requires_grad_() for x in low]
    exact = [x.detach().double().requires_grad_() for x in low]
    found = with_gradients(called(case, low, **masks), low)
    wanted = with_gradients(by_definition(exact, **{**case.options(), **masks}), exact)
    for name, one, other in zip(("output", *NAMES), found, wanted, strict=True):
        assert bool(one.isfinite().all()), name
        error = float((one.double() - other).norm())
        assert error <= tolerance * (float(other.norm()) + 1.0), (name, error, float(other.norm()))
