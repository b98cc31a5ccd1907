"""What can be kept of one layer's pairs: shares, heaviest keys, best blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.selection.layer import Layer, best_blocks, heaviest, in_blocks
from tests.experiments.methods.reference import near_pairs

WINDOW, SINKS = 8, 2


def layer(tokens: int = 60, new: int | None = None, **more: Any) -> Layer:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, tokens, 8, generator=generator)
    key, value = (torch.randn(2, 2, tokens, 8, generator=generator) for _ in range(2))
    rows = torch.arange(tokens)[-(new or tokens) :]
    return Layer(0, query[:, :, rows], key, value, rows, 0.5, WINDOW, SINKS, **more)


def test_near_and_distant_pairs_are_all_causal_ones() -> None:
    own = layer()
    assert own.near.equal(near_pairs(60, WINDOW, SINKS))
    assert (own.near ^ own.distant).equal(torch.ones(60, 60).tril().bool())
    last = layer(new=7)
    assert last.near.equal(own.near[-7:])
    assert last.distant.equal(own.distant[-7:])


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("share", [0.02, 0.125, 0.4, 1.0])
def test_quotas_add_up_to_the_share(share: float, size: int) -> None:
    own = layer(200)
    distant = own.distant.sum(-1).cumsum(0)
    found = own.quotas(share, size).cumsum(0) * size
    assert (found <= share * distant + 1e-6).all()
    assert (found > share * distant - size - 1e-6).all()
    each = own.quotas(torch.tensor([share, 0.5], dtype=torch.float64), size)
    assert each[0].equal(own.quotas(share, size))
    assert own.quotas(share, size)[-5:].equal(layer(200, new=5).quotas(share, size))


def test_the_heaviest_keys_are_kept_by_head() -> None:
    own = layer()
    quotas = own.quotas(torch.tensor([0.1, 0.2, 0.3, 1.0]))
    kept = heaviest(own, own.logits(), quotas)
    assert (kept & own.near).equal(own.near.expand_as(kept))
    far = kept & ~own.near
    assert far.sum(-1).equal(quotas.expand(2, -1, -1))
    assert not (far & ~own.distant).any()
    weakest = own.logits().masked_fill(~far, torch.inf).amin(-1)
    left_out = own.logits().masked_fill(kept | ~own.distant, -torch.inf).amax(-1)
    assert (weakest >= left_out).all()


def by_definition(own: Layer, scores: Tensor, share: float, size: int) -> Tensor:
    kept = own.near.repeat(*scores.shape[:2], 1, 1)
    quotas = own.quotas(share, size)
    for row, position in enumerate(own.rows.tolist()):
        blocks = {key // size for key in range(SINKS, position - WINDOW + 1)}
        for batch, head in ((b, h) for b in range(len(kept)) for h in range(kept.shape[1])):
            best = sorted(blocks, key=lambda n: -float(scores[batch, head, row, n]))
            for block in best[: int(quotas[row])]:
                kept[batch, head, row, block * size : (block + 1) * size] |= own.distant[
                    row, block * size : (block + 1) * size
                ]
    return kept


@pytest.mark.parametrize("new", [50, 3])
@pytest.mark.parametrize(("share", "size"), [(0.1, 4), (0.5, 8), (1.0, 8)])
def test_the_best_blocks_are_kept(share: float, size: int, new: int) -> None:
    own = layer(50, new)
    scores = torch.randn(2, 4, new, -(-50 // size), generator=torch.Generator().manual_seed(1))
    assert best_blocks(own, scores, share, size).equal(by_definition(own, scores, share, size))


def test_blocks_of_keys_are_filled_up_with_the_last() -> None:
    keys = layer(10).key
    found = in_blocks(keys, 4)
    assert found.shape == (2, 2, 3, 4, 8)
    assert found.flatten(2, 3)[:, :, :10].equal(keys)
    assert (found[:, :, 2, 2:] == keys[:, :, -1:]).all()
