"""Groups shared out among heads: most need few distant keys or none, some need nearly all.

The heads of all layers share what a common number costs: each takes its next group where a pair
more holds the most attention weight (as Ada-KV, arXiv 2407.11550, shares a cache among heads).

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension,
Hr routings of keys, Hq routings of queries, K groups, U units (the query routings of all layers), M
queries, N keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focus.attention.checks import for_query_heads
from focus.groups import of_queries, top_k_groups
from focus.observed import observe, reach_of, weights_of
from focus.routing import Router
from focus.state import attached

FEWEST = 1e-9  # of all pairs, in a group where calibration met none


def allocate_groups(model: nn.Module, texts: Iterable[Tensor]) -> None:
    """Shares the groups of the hard mask out among heads, by what full attention weighs on a few
    texts, so that all cost what ``top_k`` a query each would; adds that to the active adapter, with
    which it is saved.

    ``top_k`` may still be changed afterwards. Beside heavy hitters a head may have none, so find
    those first (:func:`focus.find_heavy_hitters`); routers that are trained on need both anew. With
    routers for each layer or key head it is these that share. On one core it takes some 10 s a
    window of 2,048 tokens and 135M parameters.

    Args:
        model: an attached model with trained routers.
        texts: an iterable of token ids (B, T) without padding, T at least window + sinks + 512;
            ours were eight windows of 2,048 tokens. Texts of a batch count one by one. Processes
            that run together must get the same.

    Raises:
        ValueError: Focus is not attached, keys are in several groups each, or the texts are too
            few, too short or padded. The model is then left as it was.
    """
    state = attached(model)
    config = state.config.replace(allocated=True)  # refuses keys of several groups
    config = config.replace(probe="multi_probe")  # the same for these, whatever top_k is then
    found: dict[int, Tensor] = {}

    def tap(index: int, hidden_BTE: Tensor, query_BHTD: Tensor, key_BHkTD: Tensor) -> None:
        router = state.routers[index]
        reach = reach_of(state.layers[index].module)
        for row in range(len(hidden_BTE)):
            new = weighed(router, hidden_BTE[row : row + 1], query_BHTD[row], key_BHkTD[row], reach)
            found[index] = found.get(index, 0) + new

    observe(model, texts, tap)
    units = [found[index] for index in state.routers]
    weight, pairs = torch.cat(units, 1)
    taken = shared_out(weight, pairs, may_have_none=config.heavy_hitters > 0)
    sizes = [each.shape[1] for each in units]
    for router, own in zip(state.routers.values(), taken.split(sizes), strict=True):
        router.take(taken_at=own)
    state.reconfigure(config)


def weighed(router: Router, hidden_1TE: Tensor, query_HTD: Tensor, key_HkTD: Tensor,
            reach: int | None) -> Tensor:  # fmt: skip
    """What lies in the groups that queries of one layer look into first, second, ...: (2, Hq, K),
    sums over the queries of a text, of full attention's weight on distant keys and of their number.

    Args:
        reach: tokens of the model's own sliding window, or None.
    """
    config = router.config
    logits = router(hidden_1TE, balance=config.balance).cpu()
    order_HqTK = of_queries(logits)[0].argsort(dim=-1, descending=True, stable=True)
    groups, heads = order_HqTK.shape[-1], len(query_HTD)
    joined_1HrTK = top_k_groups(logits[:, -1], 1)
    if config.heavy_hitters:  # everybody's anyway
        joined_1HrTK &= ~router.heavy(hidden_1TE).cpu().unsqueeze(-1)
    joined_HTK = for_query_heads(joined_1HrTK, heads)[0].float()
    total = torch.zeros(2, len(order_HqTK), groups, dtype=torch.float64, device="cpu")
    for rows, later, weights in weights_of(query_HTD, key_HkTD, reach):
        keys_HNK = joined_HTK[:, : later.shape[1]]
        place = torch.arange(later.shape[1], device="cpu")
        distant = (later >= config.window) & (place >= config.sinks)
        if reach is not None:
            distant &= later < reach
        held = weights.flatten(0, 1).masked_fill(~distant, 0.0) @ keys_HNK
        for sums, each in zip(total, (held, distant.float() @ keys_HNK), strict=True):
            shared = each.unflatten(0, (len(order_HqTK), -1)).sum(1)
            sums += shared.gather(-1, order_HqTK[:, rows]).sum(1)
    return total


def shared_out(weight_UK: Tensor, pairs_UK: Tensor, may_have_none: bool) -> Tensor:
    """From which mean number of groups on a unit looks into its n-th: (U, K) float32, rising.

    Units take their first, second, ... groups in the order of weight by pair, and what they have
    taken together is counted in what as many groups each would cost. A group that is better than
    the one before it is taken with that one. Unless a unit may have none, all have one before any
    has two.

    Raises:
        ValueError: a weight is not finite.
    """
    if not bool(torch.isfinite(weight_UK).all()):
        raise ValueError("texts: the model's attention holds NaN or infinity on them")
    weight, pairs = weight_UK.double(), pairs_UK.double()
    pairs = (pairs / pairs.sum().clamp(min=1.0)).clamp(min=FEWEST)
    first = 0 if may_have_none else 1
    if first == weight.shape[1]:  # of one group everybody has it
        return torch.ones_like(weight).float()
    worth = torch.full_like(weight, torch.inf)
    worth[:, first:] = _falling(weight[:, first:], pairs[:, first:])
    order = worth.flatten().argsort(descending=True, stable=True)
    spent = torch.empty_like(pairs).flatten()
    spent[order] = pairs.flatten()[order].cumsum(0)
    equal = F.pad(pairs.sum(0).cumsum(0), (1, 0))  # what 0, 1, ... groups each cost
    count = torch.searchsorted(equal, spent).clamp(1, pairs.shape[1])
    at = count - 1 + (spent - equal[count - 1]) / (equal[count] - equal[count - 1])
    at = at.view_as(pairs).clamp(max=pairs.shape[1])
    at[:, :first] = 1.0  # to the last digit
    return at.float()


def _falling(weight_UK: Tensor, pairs_UK: Tensor) -> Tensor:
    """Weight by pair, (U, K), the nearest that falls from group to group (isotonic regression)."""
    weight, pairs = (F.pad(x.cumsum(-1), (1, 0)) for x in (weight_UK, pairs_UK))
    mean = (weight[:, None, 1:] - weight[:, :-1, None]) / (
        pairs[:, None, 1:] - pairs[:, :-1, None]
    )  # [:, i, j]: of groups i to j
    groups = mean.shape[-1]
    later = torch.ones(groups, groups, dtype=torch.bool, device="cpu").triu()
    best = mean.masked_fill(~later, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    return best.masked_fill(~later, torch.inf).amin(1)
