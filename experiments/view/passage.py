"""A passage, and the groups of its tokens: what the page draws."""

from __future__ import annotations

from dataclasses import dataclass, field

Groups = list[list[int]]  # of every token, the strongest first


@dataclass(frozen=True)
class Layer:
    """One routed layer.

    Attributes:
        index: in the model.
        keys: by router, each token's groups as a key; as a query too, where ``queries`` has none.
        confidence: by router, the probability of each token's strongest group as a key.
        queries: by query head, each token's groups as a query; heads share routers evenly.
    """

    index: int
    keys: list[Groups] = field(default_factory=list)
    confidence: list[list[float]] = field(default_factory=list)
    queries: list[Groups] = field(default_factory=list)


@dataclass(frozen=True)
class Passage:
    """A passage and its groups under one hard mask.

    Attributes:
        title: of the text; ``how``: the experiment and the mask.
        groups: K; ``window``, ``sinks``: tokens that a query meets in whatever group.
        pieces: the text by token; empty where a character ends in a later token.
        further: keys that each token meets word for word, by place; none without n-grams.
        layers: in their order.
    """

    title: str
    how: str
    groups: int
    window: int
    sinks: int
    pieces: list[str]
    further: Groups
    layers: list[Layer]
