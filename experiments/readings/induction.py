"""Whether a mask of groups keeps the pairs that copying needs: the next token of a passage that is
read again, and the same token where it stood before (what induction heads look at).

Beside such pairs stand all other distant ones of the same queries, which is what groups keep by
chance, and full attention's weights, which say where the model does copy. Nothing is decided by
loss: what a token costs more than under full attention is told for the half of the tokens whose
pair groups miss most, and for the other half.

Shapes: L layers, H query heads, Hk key heads, N copied tokens, T tokens, K groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import focus
from experiments.readings.copying import windows
from experiments.readings.perplexity import token_nll
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Induction
from focus.routing import Memberships
from focus.state import attached

AXES = ("texts", "conditions")


@dataclass(frozen=True)
class Pairs:
    """Copied tokens ``first``.. of a window of T tokens, each ``apart`` from its first reading.

    A token is predicted by the one before it, which is the query; the key is the token itself.
    """

    first: int
    total: int
    apart: int

    @property
    def queries(self) -> Tensor:
        """(N,) positions."""
        return torch.arange(self.first - 1, self.total - 1)

    @property
    def keys(self) -> Tensor:
        """(N,) positions."""
        return self.queries + 1 - self.apart


@dataclass(frozen=True)
class Kept:
    """What a pass kept: whether each pair is in a shared group, the share of the query's distant
    keys that are, both (L, H, N) float; the share of the pairs that are kept word for word; and
    the tokens' losses (N,)."""

    shared: Tensor
    chance: Tensor
    by_word: float
    nll: Tensor


def rows(subject: Subject, reading: Induction, name: str, how: Condition) -> Rows:
    """A row a document, distance and layer, and one of all layers together."""
    found = []
    first = reading.context - reading.passage + reading.lead
    longer = reading.model_copy(update={"context": reading.context + reading.passage, "windows": 1})
    for which, (ids,) in subject.documents(name, longer):
        for apart, window in zip(reading.distances, windows(ids, reading)[0], strict=True):
            pairs = Pairs(first, reading.context, apart)
            weights, full = attended(subject.model, window, pairs)
            kept = grouped(subject, window, pairs, how)
            told = {"by_word": kept.by_word, "tokens": len(full),
                    "nll": float(kept.nll.double().sum()),
                    "full_nll": float(full.double().sum())}  # fmt: skip
            extra = kept.nll - full
            for layer in ("all", *range(len(weights))):
                part = slice(None) if layer == "all" else slice(layer, layer + 1)
                own = measures(weights[part], kept.shared[part], kept.chance[part], extra)
                found.append(subject.row(how, **which, apart=apart, layer=layer, **own, **told))
    return found


@torch.no_grad()
def attended(model: Any, window: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Full attention's weights on the pairs (L, H, N), and its losses (N,)."""
    found: dict[int, Tensor] = {}
    queries, keys = pairs.queries, pairs.keys

    def tap(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        own, others = query[0, :, queries].float(), key[0].float()
        logits = own.unflatten(0, (len(others), -1)) @ others.unsqueeze(1).transpose(-1, -2)
        later = torch.arange(pairs.total, device=logits.device) > queries.to(logits.device)[:, None]
        weights = (logits * own.shape[-1] ** -0.5).masked_fill(later, -torch.inf).softmax(-1)
        at = keys.to(weights.device).view(1, 1, -1, 1).expand(*weights.shape[:-1], 1)
        found[index] = weights.gather(-1, at)[..., 0].flatten(0, 1).cpu()

    # Every group is full attention, which no tap sees.
    groups = attached(model).config.num_groups
    whole: dict[str, Any] = {"top_k": groups, "probe": "multi_probe", "balance": "causal"}
    ids = window[None].to(model.device)
    with focus.mode(model, "hard", tap=tap, ngram=0, **whole):
        losses = token_nll(model(ids, use_cache=False).logits, ids, pairs.first)
    return torch.stack([each for _, each in sorted(found.items())]), losses.cpu()


@torch.no_grad()
def grouped(subject: Subject, window: Tensor, pairs: Pairs, how: Condition) -> Kept:
    """What the mask of a budget keeps of the pairs by its groups; keys word for word are apart."""
    ids = window[None].to(subject.model.device)
    with subject.entered(how):
        losses = token_nll(subject.model(ids, use_cache=False).logits, ids, pairs.first)
        layers = sorted(focus.memberships(subject.model).items())
    state = attached(subject.model)
    config, further = state.config, None if state.last is None else state.last.further
    position = torch.arange(pairs.total)
    distant = (pairs.queries[:, None] - position >= config.window) & (position >= config.sinks)
    shared, chance = [], []
    for _, members in layers:
        same = together(members, pairs.queries)
        shared.append(same[:, torch.arange(len(pairs.keys)), pairs.keys].float())
        chance.append((same & distant).sum(-1) / distant.sum(-1))
    word = False if further is None else further[0].cpu()[pairs.queries] == pairs.keys[:, None]
    by_word = float(torch.as_tensor(word).any(-1).float().mean())
    return Kept(torch.stack(shared), torch.stack(chance), by_word, losses.cpu())


def together(members: Memberships, queries: Tensor) -> Tensor:
    """Whether tokens (N) as queries share a group with each token as a key, (H, N, T) bool."""
    asking = members.query[0].cpu()[:, queries].float()
    keys = members.of_keys[0].cpu().float()
    asking = asking.expand(max(len(asking), len(keys)), -1, -1)
    return asking @ keys.repeat_interleave(len(asking) // len(keys), 0).transpose(-1, -2) > 0


def measures(weights: Tensor, shared: Tensor, chance: Tensor, extra: Tensor) -> dict[str, float]:
    """One row, of some layers.

    ``shared``, ``chance``: share of the pairs, and of all distant ones of the same queries, that
    lie in a shared group. ``weight``: full attention's, the mean of a pair. ``weight_shared``,
    ``weight_chance``: the same shares with each pair counted by that weight. ``missed_nats``,
    ``met_nats``: what a token costs more than under full attention, in the half of the tokens of
    whose weight the least lies in a shared group, and in the other half.

    Args:
        weights, shared, chance: (L, H, N); extra: (N,) nats.
    """
    whole = weights.sum()
    of_tokens = (weights * shared).sum((0, 1)) / weights.sum((0, 1))
    order, half = of_tokens.argsort(stable=True), len(extra) // 2
    return {
        "shared": float(shared.mean()), "chance": float(chance.mean()),
        "weight": float(weights.mean()),
        "weight_shared": float((weights * shared).sum() / whole),
        "weight_chance": float((weights * chance).sum() / whole),
        "missed_nats": float(extra[order[:half]].mean()),
        "met_nats": float(extra[order[half:]].mean()),
    }  # fmt: skip
