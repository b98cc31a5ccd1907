"""An oracle with shares calibrated head by head (github.com/jnormore/csa): heads whose attention is
spread get more pairs than others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.selection.choosing import Choosing, observed
from experiments.selection.layer import Layer, heaviest

STEPS = 64  # shares of a head go in steps of one in so many


class CalibratedOracle(Choosing):
    """The heaviest keys of each query by full attention's own logits, as many as its head needs:
    heads of all layers share a budget by where a further step adds most weight on training
    windows."""

    name = "csa"

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._gains: dict[int, Tensor] = {}  # (H, STEPS) by layer: weight that each step adds

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """How much of the weight each share of the distant keys holds, by head."""
        self._gains = {}
        for layer in observed(model, windows, self.settings):
            gained = gains(layer)
            self._gains[layer.index] = self._gains.get(layer.index, 0) + gained

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        share = self._share(budget, layer.index).to(layer.key.device)
        return heaviest(layer, layer.logits(), layer.quotas(share))

    def _share(self, budget: float, index: int) -> Tensor:
        """(H,): of the distant pairs, for each head of a layer."""
        if not self._gains:
            raise ValueError("calibrate: shares of heads need training windows to be found on")
        every = torch.cat([each.flatten() for each in self._gains.values()])
        steps = round(budget * len(every))
        least = every.sort(descending=True).values[max(steps - 1, 0)]
        return (self._gains[index] >= least).sum(-1) / STEPS


def gains(layer: Layer) -> Tensor:
    """(H, STEPS): mean weight over distant queries that each further step of the share adds."""
    distant = layer.rows + 1 - layer.window - layer.sinks
    weights = layer.logits().softmax(-1).masked_fill_(~layer.distant, 0.0)
    heaviest_first = weights.sort(-1, descending=True).values.cumsum(-1)
    ends = (torch.arange(1, STEPS + 1, device=distant.device) * distant[:, None] / STEPS).ceil()
    rows = distant >= STEPS  # shorter ones cannot tell the steps apart
    at = ends[rows].long() - 1
    held = heaviest_first[:, :, rows].gather(-1, at.expand(*weights.shape[:2], -1, -1))
    return held.diff(dim=-1, prepend=torch.zeros_like(held[..., :1])).mean((0, 2)).cpu()
