"""Triton's Sinkhorn by its interpreter, on CPU, beside the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from focus import balance
from focus.balance import sinkhorn_potentials

pytest.importorskip("triton", reason="Triton is not installed")
SIZES = [(1, 1, 1, 40, 4), (2, 2, 1, 37, 18), (1, 1, 1, 2, 2), (1, 1, 2, 9, 1)]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "ELEMENTS", 128)


def both(scores: Tensor, temperature: float, iterations: int, real: Tensor | None,
         monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """Potentials and their gradients, by the kernels and by the definition in float64."""
    found = []
    for dtype, kernels in ((torch.float32, True), (torch.float64, False)):
        monkeypatch.setattr(balance, "kernels_compute", lambda scores, on=kernels: on)
        own = scores.detach().to(dtype).requires_grad_()
        result = sinkhorn_potentials(own, temperature, iterations, real)
        weight = torch.linspace(-1, 2, result.numel(), dtype=dtype).view(result.shape)
        (result * weight).sum().backward()
        found.append((result.detach().double(), own.grad.double()))
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("temperature", "iterations"), [(0.1, 5), (1.0, 1)])
def test_potentials_and_gradients(
    size: tuple[int, ...], temperature: float, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    scores = torch.randn(size).clamp(-1, 1)
    (found, slopes), (exact, wanted) = both(scores, temperature, iterations, None, monkeypatch)
    assert torch.allclose(found, exact, atol=1e-5, rtol=1e-5)
    assert torch.allclose(slopes, wanted, atol=1e-4, rtol=1e-4)


def test_a_slice_and_a_mask_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys' scores are a slice of all; one mask may stand for every sequence."""
    torch.manual_seed(0)
    monkeypatch.setattr(balance, "kernels_compute", lambda scores: True)
    scores, real = torch.randn(3, 2, 1, 20, 4), torch.ones(1, 20, dtype=torch.bool)
    real[:, 13:] = False
    found = sinkhorn_potentials(scores[:, -1:], 0.5, 2, real)
    assert torch.equal(
        found, sinkhorn_potentials(scores[:, -1:].clone(), 0.5, 2, real.repeat(3, 1))
    )
    monkeypatch.setattr(balance, "kernels_compute", lambda scores: False)
    assert torch.allclose(found, sinkhorn_potentials(scores[:, -1:], 0.5, 2, real), atol=1e-5)


def test_padding_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores, real = torch.randn(3, 2, 2, 30, 4), torch.ones(3, 30, dtype=torch.bool)
    real[0, :11] = False
    real[1, 25:] = False
    real[2] = False
    (found, slopes), (exact, wanted) = both(scores, 0.2, 3, real, monkeypatch)
    assert torch.allclose(found, exact, atol=1e-5, rtol=1e-5)
    assert torch.allclose(slopes, wanted, atol=1e-4, rtol=1e-4)
    assert not found[2].any()
    assert not slopes[0, :, :, :11].any()


def test_scores_that_overflow_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores = 1e3 * torch.randn(1, 1, 1, 50, 4)
    (found, slopes), (exact, wanted) = both(scores, 1.0, 4, None, monkeypatch)
    assert torch.allclose(found, exact, rtol=1e-4, atol=1e-2)
    assert torch.allclose(slopes, wanted, rtol=1e-3, atol=1e-3)


def test_what_is_not_for_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not balance.kernels_compute(torch.zeros(1, 1, 1, 8, 4))  # on CPU
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda x: True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert balance.kernels_compute(torch.zeros(1, 1, 1, 8, 4))
    assert balance.kernels_compute(torch.zeros(1, 1, 1, 2048, 18))
    for other in (torch.zeros(1, 1, 1, 8, 63), torch.zeros(1, 1, 1, 8, 4).double(),
                  torch.zeros(0, 1, 1, 8, 4), torch.zeros(1, 1, 1, 2049, 18)):  # fmt: skip
        assert not balance.kernels_compute(other)
    for module, name, value in ((torch.compiler, "is_compiling", lambda: True),
                                (torch.cuda, "get_device_capability", lambda device: (7, 5)),
                                (torch.version, "hip", "6.0")):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not balance.kernels_compute(torch.zeros(1, 1, 1, 8, 4))
