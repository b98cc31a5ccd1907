"""Settings of Focus attention: one frozen dataclass, validated when it is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

BALANCES = ("softmax", "sinkhorn", "causal")
GATES = ("eq2", "log", "sparse_log", "straight_through")
PROBES = ("symmetric", "multi_probe")
ROUTERS = ("layer", "kv_head")
SIDES = ("one", "two", "query_heads")
BALANCED_SIDES = ("both", "keys")
GATE_KEYS = ("soft", "hard")
SIMILARITIES = ("cosine", "dot")
POTENTIALS = ("frozen", "lagged")


@dataclass(frozen=True)
class FocusConfig:
    """What is routed, how it is gated in training, and what the hard mask keeps.

    The defaults are a plain causal way with one router a layer; :meth:`recipe` gives what we found
    best, :meth:`paper` the paper's (arXiv 2604.03260).

    Attributes:
        num_groups: groups K (paper: 4 or 8). K = 1 is full attention.
        top_k: groups a token belongs to under the hard mask, 1..K.
        window: tokens of the local window, the query's own among them (paper: 128).
        routing_dim: dimensions R of the routing space (paper: 16; its ablation is flat above).
        temperature: divisor of the scores before the softmax (paper: 0.1).
        balance: ``causal`` (potentials that no later token has touched; the default, since only
            it can generate), ``sinkhorn`` (over the whole sequence, as in the paper; sees the
            future) or ``softmax`` (none).
        sinkhorn_iterations: row/column normalisations (paper: 10).
        gate: training gate of distant pairs: ``log`` (default: the smallest gap between the soft
            and the hard model), ``sparse_log`` (over each token's ``top_k`` groups alone, so that
            ``top_k`` matters in training: the one below quadratic cost), ``eq2`` (the paper's) or
            ``straight_through``.
        gate_probes: groups that the training gate takes a query to look into: with n, a group
            that has a share p of the query counts with 1 - (1 - p)^n, the probability that one of
            n draws hits it. Above 1 it trains routers for ``top_k`` above 1 (paper: 1).
        gate_keys: ``soft``, or ``hard``: the training gate counts a key in the groups that it joins
            under the hard mask alone, and its gradient is that of the soft assignments (a
            straight-through estimator for keys; queries stay soft; with ``sparse_log``, of the kept
            groups alone). What is trained is then closer to what the hard mask reads.
        gate_steepness: lambda of the ``eq2`` gate; other gates ignore it.
        sinks: first tokens of a sequence that stay keys for everyone (paper: 0). Without them
            hard top-1 routing loses the place where pretrained models park their attention.
        probe: ``symmetric``: queries and keys both take their top_k groups (paper);
            ``multi_probe``: the query takes top_k groups, the key one.
        routers: ``layer``: one router a layer (paper); ``kv_head``: one for each key head.
        sides: ``one``: the same scores for a token as query and as key (paper); ``two``: apart;
            ``query_heads``: apart, and query heads that share a key head apart from each other
            (needs ``routers = kv_head``).
        balanced_sides: ``both`` (paper), or ``keys`` alone, where sides are apart: groups of keys
            of one size are what bounds the cost, and queries then look where they want to.
        similarity: ``cosine`` (normalised routing space) or ``dot`` (the paper's raw product).
        potentials: how ``causal`` finds its potentials: ``frozen`` (a running average of
            Sinkhorn's over training batches) or ``lagged`` (from the tokens before).
        lag_tokens: tokens behind the current stretch that ``lagged`` looks at.
        lag_stride: tokens between two renewals of ``lagged`` potentials.
        training_balance: balance used while the model is in training mode, ``sinkhorn`` or
            ``causal``. Used only where ``balance`` is ``causal``.
        ngram: tokens of the longest n-gram that is matched word for word under the hard mask: a
            query also meets keys that follow an earlier reading of its last tokens, which is what
            copying needs and learned groups lose (:mod:`focus.ngrams`). 0 (paper): none. It has
            nothing to train and the training gates do not see it, so it can be set on trained
            routers.
        ngram_keys: how many such keys a query meets at most.
    """

    num_groups: int = 8
    top_k: int = 1
    window: int = 128
    routing_dim: int = 16
    temperature: float = 0.1
    balance: str = "causal"
    sinkhorn_iterations: int = 10
    gate: str = "log"
    gate_steepness: float = 8.0
    gate_probes: int = 1
    gate_keys: str = "soft"
    sinks: int = 4
    probe: str = "symmetric"
    routers: str = "layer"
    sides: str = "one"
    balanced_sides: str = "both"
    similarity: str = "cosine"
    potentials: str = "frozen"
    lag_tokens: int = 1024
    lag_stride: int = 256
    training_balance: str = "sinkhorn"
    ngram: int = 0
    ngram_keys: int = 4

    def __post_init__(self) -> None:
        for name in ("num_groups", "top_k", "window", "routing_dim", "sinkhorn_iterations",
                     "lag_tokens", "lag_stride", "gate_probes"):  # fmt: skip
            _check_int(name, getattr(self, name), minimum=1)
        _check_int("sinks", self.sinks, minimum=0)
        _check_int("ngram", self.ngram, minimum=0)
        _check_int("ngram_keys", self.ngram_keys, minimum=1)
        _check_positive("temperature", self.temperature)
        _check_positive("gate_steepness", self.gate_steepness)
        _check_choice("balance", self.balance, BALANCES)
        _check_choice("gate", self.gate, GATES)
        _check_choice("probe", self.probe, PROBES)
        _check_choice("routers", self.routers, ROUTERS)
        _check_choice("sides", self.sides, SIDES)
        _check_choice("balanced_sides", self.balanced_sides, BALANCED_SIDES)
        if self.balanced_sides == "keys" and self.sides == "one":
            raise ValueError("balanced_sides: 'keys' needs sides 'two' or 'query_heads'")
        if self.sides == "query_heads" and self.routers != "kv_head":
            raise ValueError("sides: 'query_heads' needs a router for each key head: "
                             "routers = 'kv_head'")  # fmt: skip
        _check_choice("gate_keys", self.gate_keys, GATE_KEYS)
        _check_choice("similarity", self.similarity, SIMILARITIES)
        _check_choice("potentials", self.potentials, POTENTIALS)
        _check_choice("training_balance", self.training_balance, ("sinkhorn", "causal"))
        if self.top_k > self.num_groups:
            raise ValueError(
                f"top_k: must be at most num_groups = {self.num_groups}, got {self.top_k}"
            )

    @classmethod
    def paper(cls, **changes: Any) -> FocusConfig:
        """The paper's own way: Sinkhorn over the sequence, Eq. 2's gate, no sinks, one router a
        layer, dot-product scores, K = 4 and top-2 unless changed (Sections 2 and 4, Table 7)."""
        paper = {
            "num_groups": 4, "top_k": 2, "balance": "sinkhorn", "gate": "eq2", "sinks": 0,
            "probe": "symmetric", "routers": "layer", "sides": "one", "similarity": "dot",
        }  # fmt: skip
        return cls(**{**paper, **changes})

    @classmethod
    def recipe(cls, **changes: Any) -> FocusConfig:
        """What has kept most of a model's quality under the hard mask (docs/log.md): a router for
        each query head, free queries and balanced keys that count in their group alone, about an
        eighth of the distant pairs as it stands; beside them up to four keys a query that are found
        word for word (``ngram=0``: none, for calls with ``inputs_embeds``). ``top_k`` may be
        changed after training. What was measured was trained with a temperature that fell from 0.3
        to the config's, the last three fifths under the gate ``straight_through`` with one, two and
        four groups a query in turn (:class:`focus.mode`; trial ``annealed`` of params.yaml)."""
        best = {
            "num_groups": 18, "top_k": 2, "probe": "multi_probe", "routers": "kv_head",
            "sides": "query_heads", "balanced_sides": "keys", "gate_keys": "hard", "gate_probes": 2,
            "ngram": 3,
        }  # fmt: skip
        return cls(**{**best, **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FocusConfig:
        """Builds a config from plain values.

        Raises:
            ValueError: a name is not a field of the config, or a value is out of range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in names:
                raise ValueError(f"{name}: unknown field; known are {', '.join(sorted(names))}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> FocusConfig:
        """A copy with the named fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    @property
    def key_top_k(self) -> int:
        """Groups that a key joins: top_k, or 1 under ``multi_probe``."""
        return 1 if self.probe == "multi_probe" else self.top_k

    @property
    def separate_keys(self) -> bool:
        """Whether keys have a membership of their own."""
        return self.sides != "one" or self.key_top_k != self.top_k


def _check_int(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: must be a whole number, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name}: must be >= {minimum}, got {value}")


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: must be finite and > 0, got {value}")


def _check_choice(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: must be one of {', '.join(choices)}, got {value!r}")
