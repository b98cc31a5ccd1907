"""Settings of Focus attention: one frozen dataclass, validated when it is built."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args

Balance = Literal["causal", "sinkhorn", "softmax"]
Gate = Literal["log", "straight_through", "eq2"]
Probe = Literal["symmetric", "multi_probe"]
Routers = Literal["layer", "key_head", "query_head", "paper"]

BALANCES: tuple[str, ...] = get_args(Balance)
GATES: tuple[str, ...] = get_args(Gate)
PROBES: tuple[str, ...] = get_args(Probe)
ROUTERS: tuple[str, ...] = get_args(Routers)
CHOICES = {"balance": BALANCES, "gate": GATES, "probe": PROBES, "routers": ROUTERS}
MOST_FOUND = 256  # candidates of a query among n-gram keys
LEAST = {"num_groups": 1, "top_k": 1, "window": 1, "routing_dim": 1, "sinkhorn_iterations": 1,
         "ngram_keys": 1, "sinks": 0, "ngram": 0}  # fmt: skip


class Fields(TypedDict, total=False):
    """Every field of :class:`FocusConfig`, for functions that change some of them."""

    num_groups: int
    top_k: int
    window: int
    routing_dim: int
    temperature: float
    balance: Balance
    sinkhorn_iterations: int
    gate: Gate
    sinks: int
    probe: Probe
    routers: Routers
    ngram: int
    ngram_keys: int
    heavy_hitters: float
    allocated: bool


@dataclass(frozen=True)
class FocusConfig:
    """What is routed, how it is gated in training, and what the hard mask keeps.

    The defaults are a plain causal way with one router a layer; :meth:`recipe` gives what we found
    best, :meth:`paper` the paper's (arXiv 2604.03260).

    Attributes:
        num_groups: groups K (paper: 4 or 8). K = 1 is full attention.
        top_k: groups that a query looks into under the hard mask, 1..K.
        window: tokens of the local window, the query's own among them (paper: 128).
        routing_dim: dimensions R of the routing space (paper: 16; its ablation is flat above).
        temperature: divisor of the scores before the softmax (paper: 0.1).
        balance: ``causal`` (potentials that no later token has touched; the default, since only
            it can generate), ``sinkhorn`` (over the whole sequence, as in the paper; sees the
            future) or ``softmax`` (none). Training in soft mode balances by Sinkhorn on each
            batch, unless this is ``softmax``, and keeps the average for ``causal``.
        sinkhorn_iterations: row/column normalisations (paper: 10).
        gate: training gate of distant pairs: ``log`` (the default: the smallest gap between the
            soft and the hard model), ``straight_through`` (the hard mask forwards, the log gate's
            gradient) or ``eq2`` (the paper's: :mod:`focus.paper`).
        sinks: first tokens of a sequence that stay keys for everyone (paper: 0). Without them
            hard top-1 routing loses the place where pretrained models park their attention.
        probe: ``symmetric``: queries and keys both take their top_k groups (paper);
            ``multi_probe``: the query takes top_k groups, the key one. In training, a key then
            counts in the group that it joins alone (a straight-through estimator), and a group
            with a share p of the query counts with 1 - (1 - p)^top_k.
        routers: ``layer``: one a layer, the same scores for a token as query and as key;
            ``key_head``: for each key head one of queries and one of keys; ``query_head``: for each
            query head one of queries, for each key head one of keys, and only keys are balanced:
            groups of keys of one size are what bounds the cost, and queries look where they want;
            ``paper``: one a layer, whose scores are the paper's raw dot product, not a cosine.
        ngram: tokens of the longest n-gram that is matched word for word under the hard mask: a
            query also meets keys that follow an earlier reading of its last tokens, which is what
            copying needs and learned groups lose (:mod:`focus.ngrams`). 0 (paper): none. It has
            nothing to train and the training gates do not see it.
        ngram_keys: how many such keys a query meets at most; times ``ngram`` at most 256.
        heavy_hitters: share of the tokens that stay keys for everyone wherever they stand, as a
            linear map of their hidden states tells (paper: none). They form one further group, the
            last, that every query looks into beside its own. :func:`focus.find_heavy_hitters` sets
            it; of routers alone there are none until it has run. The training gates count them in
            full.
        allocated: whether heads look into unequal numbers of groups, which together cost what
            ``top_k`` each would (paper: no). :func:`focus.allocate_groups` sets it. For keys of one
            group each. The training gates do not see it.
    """

    num_groups: int = 8
    top_k: int = 1
    window: int = 128
    routing_dim: int = 16
    temperature: float = 0.1
    balance: Balance = "causal"
    sinkhorn_iterations: int = 10
    gate: Gate = "log"
    sinks: int = 4
    probe: Probe = "symmetric"
    routers: Routers = "layer"
    ngram: int = 0
    ngram_keys: int = 4
    heavy_hitters: float = 0.0
    allocated: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name}: must be a whole number (int), got {value!r}")
            if value < least:
                raise ValueError(f"{name}: must be >= {least}, got {value}")
        if self.ngram * self.ngram_keys > MOST_FOUND:
            raise ValueError(
                f"ngram: ngram * ngram_keys must be at most {MOST_FOUND}, got {self.ngram} * "
                f"{self.ngram_keys}: every query's candidates are compared with each other"
            )
        if not (_number(self.temperature) and 0 < self.temperature < math.inf):
            raise ValueError(f"temperature: must be finite and > 0, got {self.temperature!r}")
        if not (_number(self.heavy_hitters) and 0 <= self.heavy_hitters <= 0.5):
            raise ValueError(
                f"heavy_hitters: must be a number from 0 to 0.5, got {self.heavy_hitters!r}"
            )
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}: must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if not isinstance(self.allocated, bool):
            raise ValueError(f"allocated: must be true or false, got {self.allocated!r}")
        if self.allocated and self.key_top_k > 1:
            raise ValueError(
                f"allocated: heads share groups out where a key is in one of them, here it is in "
                f"{self.key_top_k}; attach and train with probe='multi_probe' (recipe() has it)"
            )
        if self.top_k > self.num_groups:
            raise ValueError(
                f"top_k: must be at most num_groups = {self.num_groups}, got {self.top_k}"
            )

    @classmethod
    def paper(cls, **changes: Unpack[Fields]) -> FocusConfig:
        """The paper's own way: Sinkhorn over the sequence, Eq. 2's gate, no sinks, one router a
        layer, dot-product scores, K = 4 and top-2 unless changed (Sections 2 and 4, Table 7)."""
        paper: Fields = {"num_groups": 4, "top_k": 2, "balance": "sinkhorn", "gate": "eq2",
                         "sinks": 0, "routers": "paper"}  # fmt: skip
        return cls.from_dict({**paper, **changes})

    @classmethod
    def recipe(cls, **changes: Unpack[Fields]) -> FocusConfig:
        """What has kept most of a model's quality under the hard mask (docs/log): a router for
        each query head, free queries and balanced keys that count in their group alone, about an
        eighth of the distant pairs as it stands; beside them up to four keys a query that are found
        word for word (``ngram=0``: none, for calls with ``inputs_embeds``). ``top_k`` may be
        changed after training. Train it by :func:`focus.recipe_schedule` (docs/train.md), then
        calibrate it: :func:`focus.find_heavy_hitters` and :func:`focus.allocate_groups`, which
        train nothing, leave less than half of what is lost."""
        best: Fields = {"num_groups": 18, "top_k": 2, "probe": "multi_probe",
                        "routers": "query_head", "ngram": 3}  # fmt: skip
        return cls.from_dict({**best, **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FocusConfig:
        """Builds a config from plain values.

        Raises:
            ValueError: a name is not a field of the config, or a value is out of range.
        """
        cls.check_names(values)
        return cls(**values)

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raises ValueError by the first name that is not a field."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise ValueError(
                    f"{name}: unknown field; "
                    + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Unpack[Fields]) -> FocusConfig:
        """A copy with the named fields changed, validated again."""
        self.check_names(changes)
        return dataclasses.replace(self, **changes)

    @property
    def key_top_k(self) -> int:
        """Groups that a key joins: top_k, or 1 under ``multi_probe``."""
        return 1 if self.probe == "multi_probe" else self.top_k

    @property
    def hard_keys(self) -> bool:
        """Whether training gates count a key in the group that it joins alone."""
        return self.probe == "multi_probe"

    @property
    def probes(self) -> int:
        """Groups that training gates take a query to look into."""
        return self.top_k if self.probe == "multi_probe" else 1

    @property
    def separate_keys(self) -> bool:
        """Whether keys have a membership of their own."""
        apart = self.two_sided or self.key_top_k != self.top_k
        return apart or self.heavy_hitters > 0 or self.allocated

    @property
    def all_groups(self) -> int:
        """Columns of a membership: the groups, and that of the heavy hitters."""
        return self.num_groups + (self.heavy_hitters > 0)

    @property
    def two_sided(self) -> bool:
        """Whether a token's scores as a query and as a key are apart."""
        return self.routers in ("key_head", "query_head")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
