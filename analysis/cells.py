"""What was run, as run.json tells it: one cell an experiment, or a point of its sweep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What a cell is, from its method and regime, in the words of legends; in the order of legends.
ROLES = {
    "pretrained": "pretrained model, full attention",
    "adapted": "adapted model, full attention",
    "ours": "ours (recipe)",
    "ours_last": "ours, question in full",
    "allocated": "ours, calibrated",
    "allocated_last": "ours, calibrated, question in full",
    "longer_allocated": "ours, calibrated, 3x steps",
    "longer": "ours, 3x steps",
    "longer_heavy": "ours, heavy hitters, 3x steps",
    "heavy": "ours, with heavy hitters",
    "paper": "the paper's setup (model not adapted)",
    "paper_adapted": "the paper's setup, adapted model",
    "sparq_groups": "ours, calibrated, then SparQ",
    "window": "wider window, n-gram keys",
    "heavy_window": "wider window, heavy hitters",
    "random": "random groups",
    "oracle_heads": "oracle for each head",
    "position": "groups by position",
    "token": "groups by token",
    "ngram": "n-gram keys alone",
    "shuffled": "routers trained with shuffled gates",
    "trained_window": "wider window, LoRA trained with it",
    "masked": "ours, LoRA under the mask",
    "streaming": "StreamingLLM",
    "longformer": "Longformer's window",
    "quest": "Quest",
    "moba": "MoBA",
    "xattention": "XAttention",
    "sparq": "SparQ",
    "sparq_keys": "SparQ, as many keys for every query",
    "magicpig": "MagicPIG",
    "magicpig_keys": "MagicPIG, as many keys for every query",
    "routing_transformer": "Routing Transformer",
    "performer": "Performer",
    "csa": "oracle, budget shared among heads",
    "trained_seer": "SeerAttention",
    "trained_indexer": "lightning indexer",
}
PAPER_GROUPS, WINDOW = 4, 128  # of the paper's main results; others are its ablations
# Experiments whose routers learnt for three times the steps.
LONGER = ("longer", "longer_heavy", "longer_allocated")
LEARNT_NOTHING = ("window", "random", "position", "token", "shuffled", "trained_window")


@dataclass(frozen=True)
class Cell:
    """A cell of params.yaml, as far as the analysis asks.

    Attributes:
        name: of the cell; ``block``: of its experiment, whose folder the results lie in.
        method, regime: their settings, with the name among them.
        against: experiments that it is compared with, the adapted full model first.
    """

    name: str
    block: str
    model: str = ""
    texts: str = ""
    start: str | None = None
    method: Mapping[str, Any] = field(default_factory=dict)
    regime: Mapping[str, Any] = field(default_factory=dict)
    against: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], against: Iterable[str] | None = None) -> Cell:
        """From the settings that a run recorded; ``against``: what params.yaml says now."""
        known = {name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        listed = settings.get("against", ()) if against is None else against
        return cls(**{**known, "against": tuple(listed)})

    @property
    def point(self) -> str:
        """Of the sweep, as it stands in the cell's name; empty where nothing is swept."""
        return self.name.removeprefix(self.block)

    @property
    def steps(self) -> int | None:
        """Training steps, None where nothing was trained."""
        return self.regime.get("steps")

    @property
    def window(self) -> int:
        """Tokens of the local window, the paper's where the method names none."""
        return int(self.method.get("window", WINDOW))

    @property
    def role(self) -> str:
        """A key of :data:`ROLES`; ``groups`` for trained groups that are neither the recipe's nor
        the paper's, ``ablation`` for the paper's of another number, ``joint`` where weights may
        learn with them, ``small`` for what small models of ours do; or the method's name (with
        ``trained_`` before it)."""
        method, regime = self.method.get("name", ""), self.regime.get("name", "none")
        if self.model.startswith("small-"):  # beside each other alone
            return "small"
        if method == "full":
            return "pretrained" if regime == "none" and self.start is None else "adapted"
        if method == "focus" and regime in ("centroids", "none"):
            return self._routed
        if regime in ("joint", "scratch_joint"):
            return "joint"
        if method == "focus":
            return "masked"
        if method == "window" and regime == "none" and not self.method.get("ngram", 3):
            return "streaming" if self.method.get("sinks", 4) else "longformer"
        return method if regime == "none" else f"trained_{method}"

    @property
    def _routed(self) -> str:
        """Of routers alone."""
        if self.regime.get("shuffled"):
            return "shuffled"
        if self.method.get("routers") == "paper":
            if self.method.get("num_groups") != PAPER_GROUPS or self.window != WINDOW:
                return "ablation"
            return "paper_adapted" if self.start and self.steps is not None else "paper"
        if self.method.get("routers") != "query_head":
            return "groups"
        if self.method.get("dense_last"):
            plain = "groups" if self.method.get("heavy_hitters") else "ours_last"
            return "allocated_last" if self.method.get("allocated") else plain
        longer = bool({self.block, self.start} & set(LONGER))
        if self.method.get("allocated"):
            return "longer_allocated" if longer else "allocated"
        if longer:
            return "longer_heavy" if self.method.get("heavy_hitters") else "longer"
        return "heavy" if self.method.get("heavy_hitters") else "ours"


def labels(cells: Iterable[Cell], first: str | None = None) -> dict[str, str]:
    """Plain names by cell: what it is, or its own name where another is the same; of small models
    the model's. ``first``: of several alike, the one that is called by what it is."""
    found: dict[str, str] = {}
    for cell in sorted(cells, key=lambda cell: cell.name != first):
        model = cell.point.removeprefix("-model") if cell.point.startswith("-model") else None
        label = ROLES.get(cell.role) or model or spoken(cell.name)
        found[cell.name] = spoken(cell.name) if label in found.values() else label
    return found


def spoken(name: str) -> str:
    """The name of a cell in words: ``one_block-learning_rate0.01`` is *one block, learning rate
    0.01*."""
    return re.sub(r"-([a-z_]+)(?=[\d.])", r", \1 ", name).replace("_", " ")
