"""Heavy hitters: the few keys of a text that very many queries weigh, wherever they stand
(H2O, arXiv 2306.14048, finds them by the weight they have gathered; here they are told ahead).

Groups lose them. A linear map of a token's hidden state tells, for each key head, whether it will
be one, so that the choice is causal and is made once, when the key is written.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, Hr key routings
(1, or the key heads), Hq query routings, D head dimension, K groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focus import observed
from focus.observed import observe, reach_of, weights_of
from focus.scores import normalised
from focus.state import attached

# Between scores beside the threshold, of their range: as far above rounding as there are gaps.
LEAST_GAPS = (1e-4, 1e-5, 1e-6)
RIDGE = 100.0  # on normalised hidden states: less than one calibration window weighs


def find_heavy_hitters(model: nn.Module, texts: Iterable[Tensor], share: float = 0.02) -> None:
    """Learns which tokens are heavy hitters, in closed form, from the model's own full attention,
    and adds them to the active adapter: from then on every query of the hard mask sees them.

    For each layer and key routing it is a ridge regression from a token's normalised hidden state
    to the logarithm of the weight that the queries beyond its window give it, over what an even
    spread would; the threshold lets ``share`` of the tokens pass. Saved with the adapter. On one
    core it takes some 10 s a window of 2,048 tokens and 135M parameters. Train the routers first:
    ours read worse after further steps beside heavy hitters (docs/log, 2026-11-25). Groups that
    were shared out before are not any more, of which it warns: :func:`focus.allocate_groups` comes
    afterwards.

    Args:
        model: an attached model.
        texts: an iterable of token ids (B, T) without padding, T at least window + sinks + 512;
            four windows of 2,048 tokens are enough for a share of 0.02. Texts of a batch count one
            by one.
        share: of the tokens; 0: none from now on.

    Raises:
        ValueError: Focus is not attached, the share is not in [0, 0.5], or the texts are too few,
            too short or padded. The model is then left as it was.
    """
    state = attached(model)
    allocated = state.config.allocated
    config = state.config.replace(heavy_hitters=share, allocated=False)
    seen = _observed(model, texts) if share else {}
    for index, router in state.routers.items():
        weight, bias = _solved(seen[index], share) if share else (None, None)
        router.take(heavy_weight=weight, heavy_bias=bias, taken_at=None)
    state.reconfigure(config)
    if allocated:
        warnings.warn("find_heavy_hitters: groups were shared out among heads, beside other heavy "
                      "hitters, and are not any more; call focus.allocate_groups afterwards",
                      stacklevel=2)  # fmt: skip


def _solved(seen: list[tuple[Tensor, Tensor]], share: float) -> tuple[Tensor, Tensor]:
    """Weight (Hr, E) and bias (Hr,) under which about ``share`` of the tokens score above zero, and
    none so near to it that rounding tells; of the windows' normalised states (N, E) and logarithms
    of weights (N, Hr)."""
    square = product = torch.zeros((), dtype=torch.float32, device="cpu")
    for states_NE, wanted_NHr in seen:
        own = F.pad(states_NE, (0, 1), value=1.0)
        square, product = square + own.T @ own, product + own.T @ wanted_NHr
    ridge = RIDGE * torch.eye(len(square), dtype=square.dtype, device="cpu")
    weight = torch.linalg.solve(square + ridge, product)[:-1].T.contiguous()
    scores = torch.cat([F.linear(states_NE, weight) for states_NE, _ in seen])
    return weight, -torch.stack([threshold(each, share) for each in scores.T])


def threshold(scores_N: Tensor, share: float) -> Tensor:
    """The middle of the gap between two scores that leaves about ``share`` of them above it.

    In a first layer all occurrences of a token have one score, and a quantile is a score: whether
    it is above itself, a step of one token and a pass over many would round apart.
    """
    falling = scores_N.sort(descending=True).values
    gaps = falling[:-1] - falling[1:]
    away = (torch.arange(1, len(falling), device=falling.device) - share * len(falling)).abs()
    for least in LEAST_GAPS:
        wide = gaps > least * (falling[0] - falling[-1])
        best = int(torch.where(wide, away, torch.inf).argmin())
        if away[best] <= 0.02 * share * len(falling):
            break
    return (falling[best] + falling[best + 1]) / 2


def _observed(model: nn.Module,
              texts: Iterable[Tensor]) -> dict[int, list[tuple[Tensor, Tensor]]]:  # fmt: skip
    state = attached(model)
    seen: dict[int, list[tuple[Tensor, Tensor]]] = {index: [] for index in state.routers}
    window, sinks = state.config.window, state.config.sinks

    def look(index: int, hidden_BTE: Tensor, query_BHTD: Tensor, key_BHkTD: Tensor) -> None:
        router, reach = state.routers[index], reach_of(state.layers[index].module)
        for hidden, query, key in zip(hidden_BTE, query_BHTD, key_BHkTD, strict=True):
            weights = received(query, key, window, reach)
            tokens = slice(sinks, weights.shape[1] - window - observed.SETTLED)
            heads = router.centroids.shape[1]
            wanted = weights.unflatten(0, (heads, -1)).mean(1)[:, tokens].clamp(min=1e-6).log()
            states = normalised(hidden.float().cpu())[tokens]
            seen[index].append((states, wanted.T))

    observe(model, texts, look)
    return seen


def received(query_HTD: Tensor, key_HkTD: Tensor, window: int, reach: int | None = None) -> Tensor:
    """Weight that a key gets from the queries beyond its window, over what it would get if they
    weighed all their keys alike: (Hk, T) float32, the mean over the query heads of a key head.

    Args:
        reach: tokens of the model's own sliding window, or None.
    """
    tokens = query_HTD.shape[1]
    # Whatever torch's defaults are.
    found = torch.zeros(len(key_HkTD), tokens, dtype=torch.float32, device="cpu")
    even = torch.zeros_like(found[0])
    most = tokens if reach is None else reach
    for rows, later, weights in weights_of(query_HTD, key_HkTD, reach):
        end, distant = later.shape[1], (later >= window) & (later < most)
        found[:, :end] += weights.masked_fill(~distant, 0.0).sum(2).mean(1)
        even[:end] += (distant / (rows[:, None] + 1.0).clamp(max=most)).sum(0)
    return found / even.clamp(min=1e-9)
