"""The library itself: learned routers under the hard mask."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import torch
from pydantic import create_model, model_validator
from torch import Tensor
from transformers import PreTrainedModel

import focus as library
from experiments.methods.base import Counting, Method, groups_within
from experiments.settings.experiment import Budget, Centroids, Experiment, Mask, Training
from experiments.settings.schema import Count, Frozen, Size
from focus.density import PairCounts
from focus.routing import Memberships, Router
from focus.state import attached, transformers_model

FOUND = ("heavy_hitters", "allocated")  # fields that calibration sets
CERTAIN = 1e4  # logits apart by which a softmax is one or zero in float32


class _Base(Frozen):
    """Fields that the library has not, for ablations: see :func:`by_layer` and
    :func:`looking_everywhere`."""

    dense_every: Size = 0
    dense_last: Size = 0
    shared_layers: Count = 1

    @property
    def config(self) -> library.FocusConfig:
        """The library's own."""
        own = {field.name for field in fields(library.FocusConfig)}
        return library.FocusConfig(**self.model_dump(include=own))

    @model_validator(mode="after")
    def _valid(self) -> Any:
        self.config  # noqa: B018 - it checks its values
        return self


_hints = typing.get_type_hints(library.FocusConfig)
FocusSettings: Any = create_model(
    "FocusSettings", __base__=_Base,
    **{field.name: (_hints[field.name], field.default) for field in fields(library.FocusConfig)},
)  # fmt: skip


class Focus(Method):
    """Routers that the regime ``centroids`` trains.

    A share of the distant pairs becomes the most groups a query that balanced groups allow: one
    symmetrically, several by multi-probe.
    """

    name = "focus"
    takes_routers = True
    Settings = FocusSettings

    @property
    def config(self) -> library.FocusConfig:
        """Of the routers."""
        return self.settings.config

    def install(self, model: PreTrainedModel) -> None:
        """Attaches routers, drawn by the seed; those that a start has left stay, under this
        config.

        Raises:
            ValueError: the start's routers are of other groups.
        """
        if "focus_state" not in transformers_model(model).__dict__:
            library.attach(model, self.config.replace(allocated=False), seed=self.seed)
            return
        state = attached(model)
        refuse_other_routing("method", state.config, self.config)
        # What the regime finds, heavy hitters say, is the start's until then, or is not there.
        there = {name: getattr(state.config, name) for name in FOUND}
        state.reconfigure(self.config.replace(**there))

    def training(self, model: PreTrainedModel, step: int,
                 regime: Training) -> AbstractContextManager[Any]:  # fmt: skip
        """Soft mode, cooled and in its last steps by the hard mask; hard mode where the routers
        are not what is trained."""
        if not isinstance(regime, Centroids):
            return self._mode(model, "hard", self.mask(None))
        return self._mode(model, "soft", gate_at(step, regime, self.config.temperature))

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Hard mode."""
        with self._mode(model, "hard", self.mask(budget)):
            yield lambda: PairCounts.total(library.pair_counts(model).values())

    def soft(self, model: PreTrainedModel) -> AbstractContextManager[Any]:
        """The soft gate at its last temperature, under the config's own balance."""
        return self._mode(model, "soft", {"balance": self.config.balance})

    @contextmanager
    def _mode(self, model: PreTrainedModel, name: str, how: dict[str, Any]) -> Iterator[None]:
        own = self.settings
        routers = attached(model).routers
        with (
            library.mode(model, name, **how),
            by_layer(routers, own.dense_every, own.shared_layers),
            looking_everywhere(routers, own.dense_last),
        ):
            yield

    def mask(self, budget: Budget | None) -> dict[str, Any]:
        """What a budget overrides of the config."""
        if isinstance(budget, Mask):
            return budget.model_dump()
        own = {"top_k": self.config.top_k, "probe": self.config.probe}
        if budget is not None:
            top_k = groups_within(budget, self.config.num_groups)
            own = {"top_k": top_k, "probe": "symmetric" if top_k == 1 else "multi_probe"}
        return {**own, "balance": "causal", "ngram": self.config.ngram}

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """K and the mask."""
        known = {"K": self.config.num_groups, "window": self.config.window,
                 "sinks": self.config.sinks}  # fmt: skip
        return known | self.mask(budget)

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """Shares below one group of K, and more groups than there are, are refused."""
        groups = settings.num_groups
        if isinstance(budget, Mask) and budget.top_k > groups:
            raise ValueError(f"{path}.top_k: {budget.top_k} is above num_groups = {groups}")
        if isinstance(budget, float) and groups_within(budget, groups) < 1:
            raise ValueError(f"{path}: one of num_groups = {groups} groups is more than {budget}")

    @classmethod
    def check_cell(cls, settings: Any, cell: Experiment, starts: Sequence[Experiment],
                   path: str) -> None:  # fmt: skip
        """Routers that nothing trains must come from a start, and be of its groups; and some layer
        must be under the mask."""
        super().check_cell(settings, cell, starts, path)
        if settings.dense_every == 1:
            raise ValueError(f"{path}.method.dense_every: 1 leaves no layer under the mask; "
                             "0 leaves all")  # fmt: skip
        regime, groups = cell.regime, settings.num_groups
        routed = next((each for each in starts if each.method.name == Focus.name), None)
        if isinstance(regime, Centroids):
            most = max(regime.hard_top_ks)
            if regime.hard_from is not None and most > groups:
                raise ValueError(f"{path}.regime.hard_top_ks: {most} is above "
                                 f"num_groups = {groups}")  # fmt: skip
            shared = routed is not None and routed.method.fields.get("allocated")
            if shared and not settings.allocated:
                raise ValueError(f"{path}.start: its groups are shared out among heads; train "
                                 "before that, or set method.allocated")  # fmt: skip
            if routed is None and not regime.steps:
                raise ValueError(f"{path}.regime.steps: 0 trains no routers, and start names no "
                                 "experiment that does")  # fmt: skip
        elif settings.allocated and not (routed and routed.method.fields.get("allocated")):
            raise ValueError(f"{path}.method.allocated: regime {regime.name} shares no groups out, "
                             "nor has the start; regime centroids does")  # fmt: skip
        elif routed is None:
            raise ValueError(f"{path}.regime.name: {regime.name} trains no routers, and start "
                             "names no experiment that does")  # fmt: skip
        if routed is not None:
            theirs = FocusSettings(**routed.method.fields).config
            refuse_other_routing(f"{path}.method", theirs, settings.config)


@contextmanager
def by_layer(routers: Mapping[int, Router], dense_every: int, shared_layers: int) -> Iterator[None]:
    """Forward passes in which the last of every ``dense_every`` layers keeps every pair (0: none),
    and each run of ``shared_layers`` layers routes as its first does, from that one's hidden states
    (IndexCache reuses the keys that it has chosen so)."""
    first: dict[str, Any] = {}

    def lead(router: Router, args: Any, found: Tensor | Memberships) -> None:
        first["answer"] = found

    def follow(router: Router, args: Any, found: Tensor | Memberships) -> Any:
        return first["answer"]

    with ExitStack() as hooks:
        for place, (index, router) in enumerate(routers.items()):
            hook = follow if place % shared_layers else lead
            if dense_every and (index + 1) % dense_every == 0:
                hook = all_together
            if dense_every or shared_layers > 1:
                hooks.callback(router.register_forward_hook(hook).remove)
        yield


@contextmanager
def looking_everywhere(routers: Mapping[int, Router], last: int) -> Iterator[None]:
    """Forward passes over whole texts, not padded on the right, in which the ``last`` tokens of
    each look into every group, under the hard mask: those of a question, and its answer."""

    def widened(router: Router, args: Any, found: Tensor | Memberships) -> Memberships | None:
        if not isinstance(found, Memberships):
            return None
        query = found.query.clone()
        query[..., -last:, :] = True
        return Memberships(query, found.of_keys)

    with ExitStack() as hooks:
        for router in routers.values() if last else ():
            hooks.callback(router.register_forward_hook(widened).remove)
        yield


def all_together(router: Router, args: Any, found: Tensor | Memberships) -> Tensor | Memberships:
    """A router's answer, (..., K), with every token in the first group: all pairs are kept."""
    if isinstance(found, Memberships):
        key = None if found.key is None else in_first(found.key)
        return Memberships(in_first(found.query), key)
    return CERTAIN * in_first(found).to(found.dtype)


def in_first(like: Tensor) -> Tensor:
    """(..., K) bool, True in the first column."""
    where = torch.zeros_like(like, dtype=torch.bool)
    where[..., 0] = True
    return where


def refuse_other_routing(path: str, theirs: library.FocusConfig, ours: library.FocusConfig) -> None:
    """Raises ValueError by the first field in which routers differ that cannot change."""
    for field in ("num_groups", "routing_dim", "routers"):
        one, other = getattr(theirs, field), getattr(ours, field)
        if one != other:
            raise ValueError(f"{path}.{field}: {other} is not {one}, as the start's routers have")


def gate_at(step: int, regime: Centroids, final: float) -> dict[str, Any]:
    """What overrides the config at a training step: the library's schedule by the regime's numbers,
    with a temperature that ends at ``final``."""
    return dict(library.recipe_schedule(
        step, regime.steps, start=regime.temperature_start or final, end=final,
        hard_from=1.0 if regime.hard_from is None else regime.hard_from,
        top_ks=regime.hard_top_ks,
    ))  # fmt: skip


def balance_statistics(membership_BHrTK: Tensor, real_BT: Tensor | None = None) -> dict[str, float]:
    """How evenly tokens spread over groups, averaged over batch and routers.

    Args:
        membership_BHrTK: (batch, routers, tokens, groups) bool.
        real_BT: bool, False for padding.

    Returns:
        ``largest_group``: share of tokens in the fullest group (balanced top-1: 1/K);
        ``one_plus_cv2``: 1 + squared coefficient of variation of the group sizes, the factor by
        which imbalance raises the cost of the group call.
    """
    if real_BT is not None:
        membership_BHrTK = membership_BHrTK & real_BT[:, None, :, None]
    sizes = membership_BHrTK.sum(-2).cpu().double()  # not every device has float64
    shares = sizes / sizes.sum(-1, keepdim=True)
    groups = membership_BHrTK.shape[-1]
    return {
        "largest_group": float(shares.amax(-1).mean()),
        "one_plus_cv2": float((shares.square().sum(-1) * groups).mean()),
    }
