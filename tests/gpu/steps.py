"""A training step's gate and a decoding step over a past, on any device: checked, then timed.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from experiments.kernels import timing
from experiments.kernels.synthetic import relative_error
from focus import balance, dense_attention
from focus.attention import operator
from focus.attention.checks import check_arguments
from focus.attention.decode import decode_attention
from focus.attention.past import Past
from focus.attention.rule import Rule
from focus.balance import sinkhorn_potentials
from focus.config import GATES
from focus.gates import gated_attention
from focus.groups import Assignments, top_k_groups

HEADS, KEY_HEADS, DIM, GROUPS, WINDOW, SINKS = 8, 2, 64, 18, 128, 4
GATE = {"window": WINDOW, "sinks": SINKS, "top_k": 2, "key_top_k": 1, "probes": 2,
        "hard_keys": True}  # fmt: skip


def _drawn(tokens: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    return [torch.randn(1, n, tokens, DIM, generator=generator).to(device, dtype) for n in heads]


def _assignments(tokens: int, device: torch.device) -> Assignments:
    generator = torch.Generator().manual_seed(1)
    return Assignments(*(
        torch.randn(1, heads, tokens, GROUPS, generator=generator).mul(3).softmax(-1).to(device)
        for heads in (HEADS, KEY_HEADS)
    ))  # fmt: skip


def check_training(gate: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Output and gradients of a gate in ``dtype`` against the same in float64 on CPU."""
    found = []
    for kind, place in ((dtype, device), (torch.float64, torch.device("cpu"))):
        tensors = [x.to(place, kind).requires_grad_() for x in _drawn(517, dtype, device)]
        groups = Assignments(*(x.to(place).requires_grad_() for x in _assignments(517, device)))
        out = gated_attention(*tensors, groups, gate=gate, **GATE)
        out.float().square().mean().backward()
        found.append([out.detach(), *(x.grad for x in (*tensors, *groups) if x.grad is not None)])
    errors = [relative_error(a.cpu(), b.cpu()) for a, b in zip(*found, strict=True)]
    limit = 1e-4 if dtype == torch.float32 else 0.03
    return {"step": "training", "gate": gate, "dtype": str(dtype), "errors": errors,
            "passed": max(errors) <= limit}  # fmt: skip


def time_training(tokens: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Seconds and peak bytes of the log gate forward and backward, beside full attention's."""
    tensors, groups = _drawn(tokens, dtype, device), _assignments(tokens, device)
    gate = partial(gated_attention, assignments=groups, gate="log", **GATE)
    full = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    row: dict[str, Any] = {"step": "training", "length": tokens, "dtype": str(dtype)}
    for name, run in (("gate", gate), ("full", full)):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        row[f"{name}_s"] = median([timing.once(run, tensors, True, device) for _ in range(4)][1:])
        if device.type == "cuda":
            row[f"{name}_peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return row


def _balanced(scores: Tensor, real: Tensor | None = None) -> Tensor:
    return scores + sinkhorn_potentials(scores, 0.1, 10, real).unsqueeze(-2)


def _scores(tokens: int) -> Tensor:
    return torch.randn(1, 2, 2, tokens, GROUPS, generator=torch.Generator().manual_seed(2))


def check_balance(tokens: int, padded: bool, device: torch.device) -> dict[str, Any]:
    """Sinkhorn's potentials and their gradient in float32 against the same in float64 on CPU."""
    found, real = [], torch.arange(tokens)[None] >= 100 if padded else None
    for kind, place in ((torch.float32, device), (torch.float64, torch.device("cpu"))):
        scores = _scores(tokens).to(place, kind).requires_grad_()
        out = _balanced(scores, None if real is None else real.to(place))
        out.square().sum().backward()
        found.append([out.detach(), scores.grad])
    errors = [relative_error(a.cpu(), b.cpu()) for a, b in zip(*found, strict=True)]
    return {"step": "balance", "length": tokens, "padded": padded, "errors": errors,
            "passed": max(errors) <= 1e-3}  # fmt: skip


def time_balance(tokens: int, device: torch.device) -> dict[str, Any]:
    """Seconds of the potentials forward and backward, by kernels and by torch's own operators."""
    row: dict[str, Any] = {"step": "balance", "length": tokens}
    scores = _scores(tokens).to(device)
    for name, most in (("kernel", 32 * tokens), ("torch", 0)):
        with patch.object(balance, "MOST", most):
            taken = [timing.once(_balanced, [scores], True, device) for _ in range(13)]
        row[f"{name}_s"] = median(taken[3:])
    return row


def _past(tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Past, Tensor, Tensor]:
    """A past of all but the last token, and memberships of all as queries and keys."""
    query, key = _assignments(tokens, device)
    query, key = top_k_groups(query, 2), top_k_groups(key, 1)
    past = Past(Rule(WINDOW, SINKS, None, GROUPS, 2, 1))
    _, keys, values = _drawn(tokens, dtype, device)
    past.begin(keys[:, :, :-1], values[:, :, :-1], key[:, :, :-1], None)
    return past, query, key


def check_decode(tokens: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """The last token's attention over a past against the definition in float64."""
    past, query_groups, key_groups = _past(tokens, dtype, device)
    query, key, value = _drawn(tokens, dtype, device)
    last = [x[:, :, -1:] for x in (query, key, value, query_groups, key_groups)]
    found, _ = decode_attention(*last, past)
    exact = dense_attention(query.double(), key.double(), value.double(), query_groups,
                            key_membership=key_groups, window=WINDOW, sinks=SINKS)  # fmt: skip
    error = relative_error(found, exact[:, :, -1:])
    limit = 1e-5 if dtype == torch.float32 else 0.02
    return {"step": "decode", "length": tokens, "dtype": str(dtype), "errors": [error],
            "passed": error <= limit}  # fmt: skip


def time_decode(tokens: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Seconds of a step over a past, and of full attention over as many keys."""
    past, query_groups, key_groups = _past(tokens, dtype, device)
    query, key, value = _drawn(tokens, dtype, device)
    last = [x[:, :, -1:] for x in (query, key, value, query_groups, key_groups)]

    def ours(*_: Tensor) -> Tensor:
        return decode_attention(*last, past)[0]

    def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    row: dict[str, Any] = {"step": "decode", "length": tokens, "dtype": str(dtype)}
    tensors = [last[0], key, value]
    for name, run in (("focus", ours), ("full", full)):
        row[f"{name}_s"] = median([timing.once(run, tensors, False, device) for _ in range(22)][2:])
    return row


def time_ways(tokens: int, backward: bool, device: torch.device) -> dict[str, Any]:
    """Seconds of both ways of Triton's kernels, by turns with full attention, for Llama-3 8B's
    heads: where one overtakes the other is what ``triton.call.SHORT`` guesses, and
    ``SHORT_BACKWARD``."""
    shape = timing.Shape(tokens, 32, 8, 128, WINDOW, torch.bfloat16, device)
    routed = timing.route(shape, 8, 1, "symmetric", 0)

    def run(way: str, *tensors: Tensor) -> Tensor:
        x = check_arguments(*tensors, routed.membership, WINDOW, SINKS)
        return operator.attention(x, f"triton:{way}")

    timed = [timing.Timed("full", None, timing.full, [])]
    timed += [timing.Timed(way, None, partial(run, way), []) for way in ("dense", "lists")]
    timing.time_methods(shape, timed, backward, 2.0, 12, 0)
    full = timed[0].seconds
    rows = {each.method: timing.compared(full, each.seconds) for each in timed}
    return {
        "step": "ways",
        "length": tokens,
        "backward": backward,
        "repetitions": len(full),
        **rows,
    }


def every(device: torch.device) -> list[partial[dict[str, Any]]]:
    """A training step's gates and a decoding step: checked, then timed (on CUDA alone)."""
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = [partial(check_training, gate, dtype, device)
             for gate in GATES for dtype in (torch.float32, half)]  # fmt: skip
    found += [partial(check_balance, 517, padded, device) for padded in (False, True)]
    found += [partial(check_decode, 2049, dtype, device) for dtype in (torch.float32, half)]
    if device.type == "cuda":
        found += [partial(time_training, n, half, device) for n in (4096, 16384)]
        found += [partial(time_balance, n, device) for n in (256, 2048, 16384)]
        found += [partial(time_decode, n, half, device) for n in (2048, 32768, 131072)]
        found += [partial(time_ways, n, backward, device) for n in (1024, 2048, 4096, 8192, 16384)
                  for backward in (False, True)]  # fmt: skip
    return found
