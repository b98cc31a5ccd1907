"""Rules in the place of routers: groups that no hidden state decides and nothing trains.

What trained routers gain over these at equal density is what they learnt; what they gain over the
pretrained model alone could as well be chance, or the window.

Shape suffixes: B batch, M new tokens, E model dimension, K groups.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import PreTrainedModel

import focus
from experiments.methods.base import Beside, Counting, Method, columns
from experiments.methods.passes import Pass, watched
from experiments.settings.experiment import Budget
from focus.config import FocusConfig
from focus.density import PairCounts
from focus.named import Adapter, activate
from focus.routing import Memberships, Router
from focus.state import attached, transformers_model

Rule = Literal["window", "position", "token"]
# One group keeps every pair: outside of a method's context the model attends in full.
AT_REST = FocusConfig(num_groups=1, routing_dim=1, balance="softmax")
OF_RULE = "rule"  # the adapter that holds a rule


class FixedRouter(Router):
    """Groups by a rule, of which the number is the config's of each call.

    ``position``: token i is in group i mod K. ``token``: a token's identity, hashed. ``window``:
    queries are in the first group, keys in the last, so that with two of them they never meet.
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__(AT_REST, 1, 1, 1)
        self.requires_grad_(False)
        self.rule = rule
        self.seen: Pass | None = None  # kept until the next: backward passes may route again

    def forward(self, hidden_BTE: Tensor, real_BT: Tensor | None = None, *,
                mask: FocusConfig | None = None, **_: Any) -> Memberships:  # fmt: skip
        """Memberships (B, 1, M, K) by the rule.

        Raises:
            ValueError: soft mode asks for scores, which a rule does not have.
        """
        if mask is None:
            raise ValueError(f"mode: groups by {self.rule} have no training gate; use hard mode")
        own = one_hot(self._numbers(hidden_BTE, mask.num_groups), mask.num_groups).bool()
        own = own.unsqueeze(1)
        return Memberships(own, own.flip(-1) if self.rule == "window" else None)

    def _numbers(self, hidden: Tensor, groups: int) -> Tensor:
        batch, new = hidden.shape[:2]
        if self.rule == "window" or groups == 1:
            return torch.zeros(batch, new, dtype=torch.int64, device=hidden.device)
        if self.rule == "token":
            if self.seen is None or self.seen.ids is None:
                raise ValueError("input_ids: groups by token identity need them")
            return hashed(self.seen.ids.to(hidden.device), groups)
        past = 0 if self.seen is None else self.seen.past
        return (torch.arange(past, past + new, device=hidden.device) % groups).expand(batch, new)


def hashed(ids: Tensor, groups: int) -> Tensor:
    """The group of each token id, by multiplicative hashing (Knuth): neighbouring ids are often
    related words."""
    return (ids * 2_654_435_761 % 2**32) // 2**16 % groups


def rest(model: PreTrainedModel) -> None:
    """Attaches Focus with one group, frozen: what stood there before goes."""
    if "focus_state" in transformers_model(model).__dict__:
        focus.detach(model)
    focus.attach(model, AT_REST, seed=0)
    for router in attached(model).routers.values():
        router.requires_grad_(False)


@contextmanager
def wearing(model: PreTrainedModel, adapter: Adapter) -> Iterator[None]:
    """Other routers in an attached model, in place of its own."""
    state = attached(model)
    former, name = state.active, "worn"
    state.adapters[name] = adapter
    activate(state, name)
    try:
        yield
    finally:
        activate(state, former)
        del state.adapters[name]


class Ruled(Method):
    """A method whose groups are a rule's.

    Rules are put into the model once and for all and only told their number of groups meanwhile:
    a backward pass that computes activations again must find them where they were.
    """

    takes = "groups"
    Settings = Beside
    rule: ClassVar[Rule]

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._came_to: dict[Budget | None, FocusConfig] = {}

    def install(self, model: PreTrainedModel) -> None:
        """The rule in every layer that is routed; parameters of the model's own are frozen."""
        rest(model)
        state = attached(model)
        routers = {index: FixedRouter(self.rule) for index in state.routers}
        state.adapters[OF_RULE] = Adapter(AT_REST, dict(routers))
        activate(state, OF_RULE)

    @abstractmethod
    def fitted(self, tokens: int, budget: Budget | None) -> dict[str, int]:
        """Fields of the config (number of groups, window) that keep no fewer distant pairs than
        the budget, of a text of so many tokens; further keys come on top."""

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Hard mode by the rule, fitted to each text's length; a text that goes on from a cache
        keeps what its beginning had.

        Raises:
            ValueError: a budget that the method cannot keep; at a call, a model whose own sliding
                window leaves pairs out that the budget is a share of.
        """
        self.check(self.settings, budget, "budget")
        state = attached(model)
        former = state.config

        def before(seen: Pass) -> None:
            for router in state.routers.values():
                router.seen = seen  # type: ignore[assignment]
            if not seen.past:
                if budget is not None:
                    refuse_sliding(model, self.name, seen.tokens)
                state.config = self._config(seen.tokens, budget)

        try:
            with focus.mode(model, "hard"), watched(model, before) as last:
                yield lambda: counted(model, last(), self.settings.window, self.settings.sinks)
        finally:
            state.config = former

    def _config(self, tokens: int, budget: Budget | None) -> FocusConfig:
        own = self.settings.model_dump(exclude={"trained_at"})
        found = FocusConfig(**{**own, **self.fitted(tokens, budget)}, balance="softmax")
        self._came_to[budget] = found
        return found

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """The window, and groups where there are any."""
        found = self._came_to.get(budget)
        if found is None:
            return {}
        near = {"ngram": found.ngram, "window": found.window, "sinks": found.sinks}
        if self.rule == "window":
            return columns(**near)
        return columns(found.num_groups, found.top_k, found.probe, **near)


def counted(model: PreTrainedModel, seen: Pass, window: int, sinks: int) -> PairCounts:
    """The last pass's pairs by the standard window, also where a wider one was kept."""
    found = PairCounts.total(focus.pair_counts(model).values())
    routings = found.causal // seen.pairs(window, sinks).causal
    return seen.keeping(found.near + found.distant_kept, routings, window, sinks)


def refuse_sliding(model: PreTrainedModel, name: str, tokens: int) -> None:
    """Raises ValueError where routed layers have a sliding window shorter than the text."""
    state, config = attached(model), transformers_model(model).get_decoder().config
    own = None if state.interleaved else getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"]
    if own and own < tokens and "sliding_attention" in types:
        raise ValueError(
            f"method {name}: the model has a sliding window of {own} tokens of its own, so it "
            f"cannot keep a share of all pairs of {tokens} tokens; name no budget"
        )
