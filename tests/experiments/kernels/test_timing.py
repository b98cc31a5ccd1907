"""What is timed is what it claims to be: the paper's decomposition, the window, random routings."""

from __future__ import annotations

import pytest
import torch

from experiments.kernels import timing
from experiments.kernels.paper_k1 import paper_k1_attention
from experiments.kernels.synthetic import cosine, draw_membership, draw_tensors, relative_error
from experiments.kernels.timing import Shape
from focus import dense_attention


@pytest.mark.parametrize("tokens", [1, 100, 256])
def test_the_papers_decomposition_is_exact(tokens):
    generator = torch.Generator().manual_seed(0)
    tensors = draw_tensors(1, 4, 2, tokens, 16, torch.float32, generator)
    membership = draw_membership((1, tokens, 5), 1, generator, "unbalanced")
    found = paper_k1_attention(*tensors, membership[0].int().argmax(-1), 32)
    torch.testing.assert_close(found, dense_attention(*tensors, membership, window=32),
                               rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("window", [1, 32, 200])
def test_the_window_alone(window):
    tensors = draw_tensors(2, 4, 2, 100, 16, torch.float32, torch.Generator().manual_seed(0))
    distance = torch.arange(100)[:, None] - torch.arange(100)
    mask = (distance >= 0) & (distance < window)
    exact = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, enable_gqa=True
    )
    shape = Shape(100, 4, 2, 16, window, torch.float32, torch.device("cpu"))
    found = timing.window_alone(shape)(*tensors)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_multi_probe_keys_are_in_their_querys_first_group():
    shape = Shape(50, 2, 1, 8, 4, torch.float32, torch.device("cpu"))
    routed = timing.route(shape, 8, 3, "multi_probe", 0)
    assert routed.key_membership is not None
    assert routed.membership.sum(-1).eq(3).all()
    assert routed.key_membership.sum(-1).eq(1).all()
    assert (routed.membership & routed.key_membership).any(-1).all()


def test_errors_of_zero_and_equal_tensors():
    zero, one = torch.zeros(3), torch.ones(3)
    assert relative_error(one, one) == 0
    assert relative_error(one * 1e-12, zero) < 1e-10
    assert cosine(one, one) == pytest.approx(1)
    assert cosine(zero, zero) == 1
    with pytest.raises(ValueError, match="kind"):
        draw_membership((1, 4, 2), 1, torch.Generator(), "strange")
