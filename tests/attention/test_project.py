"""Compiled projections against the definition in float64."""

from __future__ import annotations

import struct

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native.build import library, places, run

PROBLEM = struct.Struct("=6Q8q")  # as in project.h


def project(hidden: Tensor, projection: Tensor, normed: bool,
            heavy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Projections (B, T, units * R) of hidden states (B, T, E) by projection (units, E, R), and
    scores (B, T, H) by heavy: weight (H, E) and bias (H,)."""
    if library() is None:
        pytest.skip("no compiled kernel")
    (batch, tokens, width), (units, _, dim) = hidden.shape, projection.shape
    heads = 0 if heavy is None else len(heavy[1])
    projected, scores = (torch.full((batch, tokens, n), torch.nan) for n in (units * dim, heads))
    tensors = hidden, projection, *(heavy or (None, None)), projected, scores
    narrow, threads = hidden.dtype == torch.bfloat16, torch.get_num_threads()
    sizes = batch * tokens, width, units, dim, heads, normed, narrow, threads
    run("focus_project", PROBLEM.pack(*places(tensors), *sizes))
    return projected, scores


def states(batch: int, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    """Hidden states with dimensions that are much larger than others, and far from zero."""
    generator = torch.Generator().manual_seed(width)
    scale, shift = 10 ** torch.randn(2, width, generator=generator)
    return (torch.randn(batch, tokens, width, generator=generator) * scale + shift).to(dtype)


def error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).abs().amax() / exact.abs().amax()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize(
    ("batch", "tokens", "width", "shape"),
    [
        (1, 33, 576, (12, 16)),
        (2, 37, 65, (2, 32)),
        (1, 1, 32, (1, 16)),
        (3, 50, 2048, (1, 64)),
        (1, 300, 96, (10, 48)),
    ],
)
def test_projections_are_as_exact_as_in_float32(
    batch: int, tokens: int, width: int, shape: tuple[int, int], heads: int, normed: bool,
    dtype: torch.dtype
) -> None:  # fmt: skip
    hidden = states(batch, tokens, width, dtype)
    projection = torch.randn(shape[0], width, shape[1])
    weight = projection.transpose(1, 2).flatten(0, 1)
    heavy = (torch.randn(heads, width), torch.randn(heads))
    found, scores = project(hidden, projection, normed, heavy if heads else None)
    exact, usual = hidden.double(), hidden.float()
    norm, norm32 = (F.layer_norm(x, (width,)) for x in (exact, usual))
    right = F.linear(norm if normed else exact, weight.double())
    assert error(found, right) <= 1e-6 + error(F.linear(norm32 if normed else usual, weight), right)
    if heads:
        assert error(scores, F.linear(norm, *(x.double() for x in heavy))) <= 2e-6


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_a_token_is_projected_to_the_bit_alike_whichever_others_come_with_it(threads: int) -> None:
    before = torch.get_num_threads()
    hidden, projection = states(1, 131, 100, torch.float32), torch.randn(7, 100, 32)
    heavy = (torch.randn(2, 100), torch.randn(2))
    whole = project(hidden, projection, True, heavy)
    torch.set_num_threads(threads)
    try:
        for first, end in ((0, 131), (0, 1), (5, 14), (129, 131), (40, 107)):
            part = project(hidden[:, first:end].contiguous(), projection, True, heavy)
            for one, other in zip(part, whole, strict=True):
                assert torch.equal(one, other[:, first:end])
    finally:
        torch.set_num_threads(before)


def test_no_tokens() -> None:
    found, scores = project(torch.ones(2, 0, 64), torch.ones(1, 64, 16), True)
    assert found.shape == (2, 0, 16)
    assert scores.shape == (2, 0, 0)


def test_what_it_does_not_compute() -> None:
    with pytest.raises(RuntimeError, match="focus_project"):
        project(states(1, 20, 64, torch.float32), torch.ones(1, 64, 2), True)
