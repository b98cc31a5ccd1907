"""XAttention (arXiv:2503.16428): blocks of queries and keys, by sums of antidiagonals."""

from __future__ import annotations

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import pad

from experiments.selection.choosing import Blocks, Choosing
from experiments.selection.layer import Layer, best_blocks
from experiments.settings.schema import Count


class Strided(Blocks):
    """Attributes:
    stride: positions between the antidiagonals of a block that are summed; divides ``block``.
    """

    stride: Count = 8

    @model_validator(mode="after")
    def _whole(self) -> Strided:
        if self.block % self.stride:
            raise ValueError(f"stride: must divide block = {self.block}")
        return self


class XAttention(Choosing):
    """Each query head keeps the blocks of the highest estimated weight, scored for the queries of a
    block together: later ones of it take part in the choice for earlier ones. As many blocks as the
    budget allows, in the place of the paper's share of the weight."""

    name = "xattention"
    Settings = Strided
    causal = False

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, T, T) bool."""
        block, stride = self.settings.block, self.settings.stride
        query = strides(layer.query.float(), block, stride).flip(3).flatten(3)
        key = strides(layer.keys, block, stride).flatten(3)
        logits = query @ key.transpose(-1, -2) * (layer.scale / stride)
        each = torch.arange(logits.shape[-1], device=logits.device)
        weights = logits.masked_fill(each > each[:, None], -torch.inf).softmax(-1)
        per = block // stride
        sums = weights.unflatten(2, (-1, per)).sum(3).unflatten(3, (-1, per)).sum(4)
        scores = sums.repeat_interleave(block, 2)[:, :, : len(layer.rows)]
        return best_blocks(layer, scores, budget, block)


def strides(x: Tensor, block: int, stride: int) -> Tensor:
    """(B, H, G, stride, D) of (B, H, T, D): positions side by side, zeros up to a whole block."""
    return pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, stride))
