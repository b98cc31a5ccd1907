"""Projections on AMX against the definition in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native import project
from focus.attention.native.build import library


def states(batch: int, tokens: int, width: int) -> Tensor:
    """Hidden states with dimensions that are much larger than others, and far from zero."""
    generator = torch.Generator().manual_seed(width)
    scale, shift = 10 ** torch.randn(2, width, generator=generator)
    return (torch.randn(batch, tokens, width, generator=generator) * scale + shift).bfloat16()


def error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).abs().amax() / exact.abs().amax()).item()


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize(
    ("batch", "tokens", "width", "shape"),
    [
        (1, 33, 576, (4, 3, 16)),
        (2, 37, 64, (2, 1, 10)),
        (1, 1, 32, (1, 1, 1)),
        (3, 50, 2048, (1, 1, 64)),
        (1, 16, 96, (2, 5, 13)),
    ],
)
def test_projections_are_as_exact_as_in_float32(
    batch: int, tokens: int, width: int, shape: tuple[int, int, int], heads: int, normed: bool
) -> None:
    hidden = states(batch, tokens, width)
    if not project.computes(hidden):
        pytest.skip("this processor has no AMX")
    projection = torch.randn(*shape[:2], width, shape[2])
    weight = projection.transpose(2, 3).flatten(0, 2)
    heavy = (torch.randn(heads, width), torch.randn(heads))
    found, scores = project.project(hidden, projection, normed, heavy if heads else None)
    exact, usual = hidden.double(), hidden.float()
    norm, norm32 = (F.layer_norm(x, (width,)) for x in (exact, usual))
    right = F.linear(norm if normed else exact, weight.double())
    assert error(found, right) <= 1e-6 + error(F.linear(norm32 if normed else usual, weight), right)
    assert (scores is None) == (not heads)
    if scores is not None:
        assert error(scores, F.linear(norm, *(x.double() for x in heavy))) <= 2e-6


def test_what_it_does_not_compute() -> None:
    if library() is None:
        pytest.skip("no compiled kernel")
    here = project.computes(states(1, 20, 64))
    assert not project.computes(states(1, 20, 64).float())
    assert not project.computes(states(1, 20, 65))
    assert not project.computes(states(1, 20, 64).to("meta"))
    if not here:
        with pytest.raises(RuntimeError, match="focus_project"):
            project.project(states(1, 20, 64), torch.ones(1, 1, 64, 2), True, None)
