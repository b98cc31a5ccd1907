"""As many keys for every query, whatever its place, in the place of a share of the pairs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from experiments.selection.layer import Layer


def room(layer: Layer, keys: int) -> Tensor:
    """(M,) int64: how many distant keys each query may have beside its near ones; all of them,
    where it has no more than ``keys`` keys together."""
    near, distant = layer.near.sum(-1), layer.distant.sum(-1)
    return (keys - near).minimum(distant)


def check_keys(settings: Any, path: str) -> None:
    """Raises ValueError where there are no more keys than near ones."""
    near = settings.window + settings.sinks
    if settings.keys <= near:
        raise ValueError(f"{path.rpartition('.')[0] or path}.method.keys: {settings.keys} leaves "
                         f"nothing to choose beside window + sinks = {near}")  # fmt: skip
