"""Stage exactness (Appendix D): the fast attention against the definition in float64.

Outputs and gradients over groups, k, windows, sinks, uneven groups, odd lengths and dtypes, of what
a user gets (``ours``: backend ``auto``), of what runs without a compiler (``stripes``) and of the
compiled kernel where it is made to go by group (``native_lists``). Beside them, for k = 1, the
paper's decomposition into a group call and a window call, merged in three ways: each pair in one of
them (``log_sum_exp``), near pairs of one group in both (``double_counting``), and the latter with
what counts twice subtracted in log space (``subtraction``).

`python -m experiments.stages.exactness` writes results/<scale>/exactness/table.csv.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.command import measure
from experiments.kernels.synthetic import cosine, draw_membership, draw_tensors, relative_error
from experiments.record import Run
from experiments.settings import Exactness, Settings
from focus import dense_attention, focus_attention
from focus.attention import operator
from focus.attention.checks import check_arguments
from focus.attention.native import call as native

LIMITS = {torch.float32: (1e-5, 1e-4)}  # relative errors of outputs and gradients
HALF_FACTOR = 2.0  # half precision: times the error of full FlashAttention on the same tensors
# What is merged of four calls, by its sign: over pairs of one group, over the window, over the
# pairs of both, and over those of the window alone.
MERGED = {"log_sum_exp": (1, 0, 0, 1), "double_counting": (1, 1, 0, 0),
          "subtraction": (1, 1, -1, 0)}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One cell of the grid."""

    groups: int
    top_k: int
    window: int
    sinks: int
    tokens: int
    kind: str


def exactness(run: Run, chosen: Settings) -> None:
    """Runs the grid; every dtype sees the same tensors, rounded to bfloat16."""
    rows: list[dict[str, Any]] = []
    full: dict[tuple[int, torch.dtype], tuple[float, float]] = {}
    for case in cases(chosen.exactness):
        generator = torch.Generator().manual_seed(chosen.seed)
        shape = chosen.exactness
        tensors = draw_tensors(1, shape.heads, shape.key_heads, case.tokens, shape.head_dim,
                               torch.bfloat16, generator)  # fmt: skip
        sizes = (1, case.tokens, case.groups)
        membership = draw_membership(sizes, case.top_k, generator, case.kind)
        options = {"membership": membership, "window": case.window, "sinks": case.sinks}
        exact = with_gradients(dense_attention, tensors, torch.float64, options)
        for name in shape.dtypes:
            dtype = getattr(torch, name)
            if (case.tokens, dtype) not in full:
                full[case.tokens, dtype] = _full_errors(tensors, dtype)
            half = tuple(HALF_FACTOR * error for error in full[case.tokens, dtype])
            limits = LIMITS.get(dtype, half)
            for method, attention in _methods(case).items():
                found = with_gradients(attention, tensors, dtype, options)
                rows.append(_row(case, name, method, found, exact, limits))
    run.table(pd.DataFrame(rows), "table.csv")


def cases(grid: Exactness) -> Iterator[Case]:
    """The grid: balanced groups at every length, other kinds at the longest."""
    longest = max(grid.lengths)
    for tokens in grid.lengths:
        for kind in grid.kinds if tokens == longest else ("balanced",):
            for groups in grid.groups:
                for top_k in sorted({min(k, groups) for k in [*grid.top_ks, groups]}):
                    for window in sorted({*(min(w, tokens) for w in grid.windows), tokens}):
                        for sinks in grid.sinks:
                            yield Case(groups, top_k, window, sinks, tokens, kind)


def with_gradients(
    attention: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype,
    options: dict[str, Any],
) -> list[Tensor]:  # fmt: skip
    """Output and gradients in query, key and value, for a fixed gradient of the output."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in tensors]
    out = attention(*leaves, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad.to(torch.bfloat16).to(dtype))
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def _methods(case: Case) -> dict[str, Callable[..., Tensor]]:
    ways: dict[str, Callable[..., Tensor]] = {
        "ours": focus_attention, "stripes": partial(focus_attention, backend="stripes"),
    }  # fmt: skip
    if native.library() is not None:
        ways["native_lists"] = by_lists
    if case.top_k > 1 or case.sinks:
        return ways
    return ways | {name: partial(decomposed, signs=signs) for name, signs in MERGED.items()}


def by_lists(query: Tensor, key: Tensor, value: Tensor, *, membership: Tensor, window: int,
             sinks: int) -> Tensor:  # fmt: skip
    """The compiled kernel as long calls run it; short ones, by its own choice, test every pair."""
    x = check_arguments(query, key, value, membership, window, sinks, None, None, None, None)
    return operator.attention(x, "native:lists")


def _full_errors(tensors: list[Tensor], dtype: torch.dtype) -> tuple[float, float]:
    """Output and worst gradient error of full FlashAttention on the same tensors."""
    options = {"is_causal": True, "enable_gqa": True}
    attention = torch.nn.functional.scaled_dot_product_attention
    found = with_gradients(attention, tensors, dtype, options)
    exact = with_gradients(attention, tensors, torch.float64, options)
    errors = [relative_error(a, b) for a, b in zip(found, exact, strict=True)]
    return errors[0], max(errors[1:])


def _row(case: Case, dtype: str, method: str, found: list[Tensor], exact: list[Tensor],
         limits: tuple[float, ...]) -> dict[str, Any]:  # fmt: skip
    output = relative_error(found[0], exact[0])
    gradient = max(relative_error(a, b) for a, b in zip(found[1:], exact[1:], strict=True))
    return {
        "K": case.groups, "k": case.top_k, "window": case.window, "sinks": case.sinks,
        "length": case.tokens, "dtype": dtype, "groups": case.kind, "method": method,
        "output_cosine": cosine(found[0], exact[0]), "output_error": output,
        "gradient_error": gradient, "output_limit": limits[0], "gradient_limit": limits[1],
        "passed": output <= limits[0] and gradient <= limits[1],
    }  # fmt: skip


def decomposed(query: Tensor, key: Tensor, value: Tensor, *, membership: Tensor, window: int,
               sinks: int, signs: tuple[int, ...]) -> Tensor:  # fmt: skip
    """The paper's calls, merged: the signed sum of their softmax numerators over that of their
    denominators, in log space."""
    tokens = query.shape[2]
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    logits = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    same = ((membership.float() @ membership.float().transpose(-1, -2)) > 0)[:, None]
    causal, near = distance >= 0, (distance >= 0) & (distance < window)
    masks = (same & causal, near, same & near, ~same & near)
    calls = [(sign, *_call(logits, value, mask))
             for sign, mask in zip(signs, masks, strict=True) if sign]  # fmt: skip
    top = torch.stack([lse for _, _, lse in calls]).amax(0)
    weights = [sign * torch.exp(lse - top) for sign, _, lse in calls]
    total = torch.stack(weights).sum(0)
    outs = [out.float() for _, out, _ in calls]
    shares = [weight / total for weight in weights]
    parts = [a * b for a, b in zip(outs, shares, strict=True)]
    return torch.stack(parts).sum(0).to(query.dtype)


def _call(logits: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, H, T, D) and log-sum-exp (B, H, T, 1) over the pairs of a mask."""
    none = ~mask.any(-1, keepdim=True)
    logits = logits.masked_fill(~(mask | none), -torch.inf)
    out = torch.softmax(logits, -1).to(value.dtype) @ value
    return out, logits.logsumexp(-1, keepdim=True).masked_fill(none, -torch.inf)


if __name__ == "__main__":
    sys.exit(measure("exactness", exactness))
