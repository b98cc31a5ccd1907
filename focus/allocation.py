"""Groups shared out among heads: most need few distant keys or none, some need nearly all.

How many groups a query looks into is the same for all heads while routers are trained. Afterwards
the heads of all layers share what that costs: each takes its next group where a pair more holds the
most attention weight (as Ada-KV, arXiv 2407.11550, shares a cache among heads). Nothing is trained.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension,
Hr routings of keys, Hq routings of queries, K groups, U units (the query routings of all layers), M
queries, N keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focus.observed import observe, scale_of, weights_of
from focus.routing import Router, of_queries
from focus.state import Adapter, attached

FEWEST = 1e-6  # pairs a group, where calibration met none


def allocate_groups(model: nn.Module, texts: Iterable[Tensor]) -> None:
    """Shares the groups of the hard mask out among heads, ``top_k`` a query on average, by what
    full attention weighs on a few texts; adds that to the active adapter, with which it is saved.

    ``top_k`` may still be changed afterwards. Beside heavy hitters a head may have none, so find
    those first (:func:`focus.find_heavy_hitters`). On two cores it takes some 20 s a window of
    2,048 tokens and 135M parameters.

    Args:
        model: an attached model with trained routers.
        texts: an iterable of token ids (B, T) without padding, T at least window + sinks + 512;
            four windows of 2,048 tokens are enough.

    Raises:
        ValueError: Focus is not attached, keys are in several groups each, or the texts are too few
            or too short. The model is then left as it was.
    """
    state = attached(model)
    config = state.config.replace(allocated=True)  # refuses keys of several groups
    found: dict[int, Weighed] = {}

    def tap(index: int, hidden_BTE: Tensor, query_BHTD: Tensor, key_BHkTD: Tensor) -> None:
        router = state.routers[index]
        scale = scale_of(state.layers[index].module, query_BHTD)
        for row in range(len(hidden_BTE)):
            own = slice(row, row + 1)
            new = weighed(router, hidden_BTE[own], query_BHTD[row].float().cpu(),
                          key_BHkTD[row].float().cpu(), scale)  # fmt: skip
            found[index] = new if index not in found else found[index] + new

    observe(model, texts, tap)
    units = [found[index] for index in state.routers]
    taken = taken_at(torch.cat([each.weight for each in units]),
                     torch.cat([each.pairs for each in units]),
                     none=config.heavy_hitters > 0)  # fmt: skip
    sizes = [len(each.weight) for each in units]
    for router, own in zip(state.routers.values(), taken.split(sizes), strict=True):
        router.take(taken_at=own)
        router.config = config
    state.adapters[state.active] = Adapter(config, state.adapters[state.active].routers)
    state.config = config


@dataclass(frozen=True)
class Weighed:
    """What lies in the groups that queries look into first, second, ...: both (Hq, K), sums over
    queries.

    weight: of full attention, on distant keys; pairs: how many these are.
    """

    weight: Tensor
    pairs: Tensor

    def __add__(self, other: Weighed) -> Weighed:
        return Weighed(self.weight + other.weight, self.pairs + other.pairs)


def weighed(router: Router, hidden_1TE: Tensor, query_HTD: Tensor, key_HkTD: Tensor,
            scale: float) -> Weighed:  # fmt: skip
    """Of one layer and text."""
    config = router.config
    logits = router(hidden_1TE, balance=config.balance).cpu()
    order_HqTK = of_queries(logits)[0].argsort(dim=-1, descending=True, stable=True)
    groups, heads = order_HqTK.shape[-1], len(query_HTD)
    joined_HrTK = F.one_hot(logits[0, -1].argmax(-1), groups).float()
    if config.heavy_hitters:  # everybody's anyway
        joined_HrTK = joined_HrTK * ~router.heavy(hidden_1TE)[0].cpu().unsqueeze(-1)
    joined_HTK = joined_HrTK.repeat_interleave(heads // len(joined_HrTK), 0)
    total = torch.zeros(2, len(order_HqTK), groups)
    for rows, later, weights in weights_of(query_HTD, key_HkTD, scale):
        keys_HNK = joined_HTK[:, : later.shape[1]]
        distant = (later >= config.window) & (torch.arange(later.shape[1]) >= config.sinks)
        held = weights.flatten(0, 1).masked_fill(~distant, 0.0) @ keys_HNK
        for sums, each in zip(total, (held, distant.float() @ keys_HNK), strict=True):
            shared = each.unflatten(0, (len(order_HqTK), -1)).sum(1)
            sums += shared.gather(-1, order_HqTK[:, rows]).sum(1)
    return Weighed(*total)


def taken_at(weight_UK: Tensor, pairs_UK: Tensor, none: bool) -> Tensor:
    """From which mean number of groups on a unit looks into its n-th: (U, K) float32, rising.

    Units take groups in the order of weight by pair, and what they have taken together is counted
    in what as many groups each would cost. A group that is better than the one before it is taken
    with that one.

    Args:
        weight_UK, pairs_UK: of each unit's first, second, ... group.
        none: whether a unit may have none; else all have one before any has two.
    """
    pairs = pairs_UK.double().clamp(min=FEWEST)
    worth = _falling(weight_UK.double(), pairs)
    if not none:
        worth[:, 0] = torch.inf
    order = worth.flatten().argsort(descending=True, stable=True)
    spent = torch.empty_like(pairs).flatten()
    spent[order] = pairs.flatten()[order].cumsum(0)
    alike = F.pad(pairs.sum(0).cumsum(0), (1, 0))  # what 0, 1, ... groups each cost
    count = torch.searchsorted(alike, spent).clamp(1, pairs.shape[1])
    at = count - 1 + (spent - alike[count - 1]) / (alike[count] - alike[count - 1])
    at = at.view_as(pairs).clamp(max=pairs.shape[1])
    if not none:
        at[:, 0] = 1.0  # to the last digit
    return at.float()


def _falling(weight_UK: Tensor, pairs_UK: Tensor) -> Tensor:
    """Weight by pair, (U, K), the nearest that falls from group to group (isotonic regression)."""
    weight, pairs = (F.pad(x.cumsum(-1), (1, 0)) for x in (weight_UK, pairs_UK))
    mean = (weight[:, None, 1:] - weight[:, :-1, None]) / (
        pairs[:, None, 1:] - pairs[:, :-1, None]
    )  # [:, i, j]: of groups i to j
    groups = mean.shape[-1]
    later = torch.ones(groups, groups, dtype=torch.bool).triu()
    best = mean.masked_fill(~later, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    return best.masked_fill(~later, torch.inf).amin(1)
