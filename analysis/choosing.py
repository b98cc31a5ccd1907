"""What a method trains, and what it computes to choose its pairs, counted from its own settings and
its model's shape.

The unit is full attention's product of a query with a key, of one head: D multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from analysis.cells import Cell
from analysis.results import Results, load_json
from experiments import registry
from experiments.methods.performer import Performer
from experiments.methods.window import beyond
from experiments.selection.choosing import Choosing
from focus.routing import Router

UNTOUCHED = ("adapted", "pretrained")  # roles of the models that methods run on


class Shape(NamedTuple):
    """Of a model whose layers are alike: layers, model dimension, query and key heads of each."""

    layers: int
    width: int
    heads: int
    key_heads: int

    @property
    def dim(self) -> int:
        """D, of a head."""
        return self.width // self.heads


class Choice(NamedTuple):
    """What choosing takes, of a layer and a query head.

    Attributes:
        pairs: scores of a query with a key or a block of keys, as a share of the distant pairs.
        size: multiplications of a score.
        maps: multiplications of a token in linear maps, of the whole layer.
    """

    pairs: float = 0.0
    size: float = 0.0
    maps: float = 0.0


@cache
def shapes(results: Results) -> dict[str, Shape]:
    """By model, as the adapters of routers that were trained on it tell."""
    found: dict[str, Shape] = {}
    for name, cell in results.cells.items():
        if cell.model in found:
            continue
        places = (results.root / cell.block / "train").glob(f"seed*/{name}/adapter")
        for base in (load_json(place / "adapter_config.json").get("base") for place in places):
            if base and len(set(base["query_heads"])) == len(set(base["key_heads"])) == 1:
                found[cell.model] = Shape(len(base["query_heads"]), base["hidden_size"],
                                          base["query_heads"][0], base["key_heads"][0])  # fmt: skip
    return found


def settings(cell: Cell) -> Any:
    """Of the cell's method, with the defaults that the record does not name."""
    kind = registry.find("method", cell.method["name"]).Settings
    return kind(**{name: value for name, value in cell.method.items() if name in kind.model_fields})


def fast(cell: Cell) -> bool:
    """Whether the library's kernels run it; other methods form every pair here."""
    return not issubclass(registry.find("method", cell.method["name"]), Choosing | Performer)


def trained(results: Results, cell: Cell) -> int | None:
    """Numbers that gradients set, beside those of the model that every method runs on; None where
    its shape is not known."""
    found: dict[str, int] = {}
    at, now = shapes(results).get(cell.model), cell
    while now.role not in UNTOUCHED:
        how = now.regime.get("name")
        if how in TRAINED and how not in found:
            count = None if at is None else TRAINED[how](now, at)
            if count is None:
                return None
            found[how] = count
        if now.start not in results.cells:
            break
        now = results.cells[now.start]
    return sum(found.values())


def work(results: Results, cell: Cell, tokens: int, searched: float | None) -> tuple[Any, Any]:
    """Percent of the distant pairs that are scored; and multiplications of scores and linear maps,
    in percent of those that full attention's scores of the distant pairs take.

    Args:
        tokens: of the text.
        searched: share of the distant pairs that a method scores which reads others' groups.
    """
    at, count = shapes(results).get(cell.model), CHOICES.get(cell.method["name"])
    if at is None or count is None:
        return None, None
    own = settings(cell)
    found = count(own, at, searched)
    if found is None:
        return None, None
    distant = beyond(tokens, own.window, own.sinks)
    of_maps = found.maps * tokens / (at.heads * at.dim * distant)
    return 100 * found.pairs, 100 * (found.pairs * found.size / at.dim + of_maps)


def _numbers(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _router(own: Any, at: Shape) -> int:
    """Of one layer."""
    with torch.device("meta"):
        return _numbers(Router(own.config.replace(heavy_hitters=0.0, allocated=False), at.width,
                               at.key_heads, at.heads))  # fmt: skip


def _network(cell: Cell, at: Shape) -> nn.Module:
    """A layer's network of a learned choice."""
    kind = registry.find("method", cell.method["name"])
    with torch.device("meta"):
        found: nn.Module = kind(settings(cell), 0).network(at.heads, at.key_heads, at.dim)
    return found


def _lora(cell: Cell, at: Shape) -> int | None:
    """Two matrices beside each projection; None of projections by other names."""
    outward = {"q_proj": at.heads, "o_proj": at.heads, "k_proj": at.key_heads,
               "v_proj": at.key_heads}  # fmt: skip
    targets = cell.regime.get("targets") or ()
    if not targets or not set(targets) <= set(outward):
        return None
    sides = sum(at.width + outward[name] * at.dim for name in targets)
    return int(at.layers * cell.regime["rank"] * sides)


TRAINED: dict[Any, Callable[[Cell, Shape], int | None]] = {
    "centroids": lambda cell, at: at.layers * _router(settings(cell), at),
    "distil": lambda cell, at: at.layers * _numbers(_network(cell, at)),
    "lora": _lora,
}


def _heavy(own: Any, at: Shape) -> int:
    """The map that tells heavy hitters, of a layer."""
    heads = at.key_heads if own.config.two_sided else 1
    return heads * at.width if own.heavy_hitters else 0


def _gate(own: Any, at: Shape) -> Choice:
    """Queries are mapped one by one, keys once a block: their mean, greatest and least."""
    maps = at.heads * at.dim + 3 * at.key_heads * at.dim / own.block
    return Choice(1 / own.block, own.dim, maps * own.dim)


def _indexer(own: Any, at: Shape) -> Choice:
    """Its heads choose for all heads of the layer."""
    query, key = at.heads * at.dim, at.key_heads * at.dim
    maps = own.heads * query * own.dim + key * own.dim + query * own.heads
    return Choice(own.heads / at.heads, own.dim, maps)


# Not there: what chooses no pairs (Performer), or compares hashes (MagicPIG). How many clusters a
# Routing Transformer made stands in no record.
CHOICES: dict[str, Callable[[Any, Shape, float | None], Choice | None]] = {
    "window": lambda own, at, share: Choice(),
    "focus": lambda own, at, share: Choice(maps=_router(own, at) + _heavy(own, at)),
    "routing_transformer": lambda own, at, share: Choice(maps=math.nan),
    "heavy_window": lambda own, at, share: Choice(maps=_heavy(own, at)),
    "oracle_heads": lambda own, at, share: Choice(1, at.dim),
    "csa": lambda own, at, share: Choice(1, at.dim),
    "sparq": lambda own, at, share: Choice(1, min(own.components, at.dim)),
    "sparq_groups": lambda own, at, share: share and Choice(
        share, min(own.components, at.dim), _router(own, at) + _heavy(own, at)),
    "quest": lambda own, at, share: Choice(1 / own.block, 2 * at.dim),
    "moba": lambda own, at, share: Choice(1 / own.block, at.dim),
    "xattention": lambda own, at, share: Choice(1 / own.stride**2, own.stride * at.dim),
    "seer": lambda own, at, share: _gate(own, at),
    "indexer": lambda own, at, share: _indexer(own, at),
}  # fmt: skip
