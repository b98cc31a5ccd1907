"""A params.yaml with few experiments, free to be changed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from experiments.settings import read_yaml
from tests.timed import untrained

BASES = {
    "plain": {
        "model": "tiny-llama",
        "texts": "plays",
        "readings": ["search"],
        "method": {"name": "focus", "num_groups": 4, "window": 32},
        "regime": {"name": "centroids", "steps": 2, "context": 64},
    }
}


@pytest.fixture(scope="session")
def read_once() -> dict[str, Any]:
    return read_yaml(Path(__file__).parents[3] / "params.yaml")


@pytest.fixture
def params(read_once: dict[str, Any]) -> dict[str, Any]:
    """What params.yaml holds, free to be changed."""
    return deepcopy(read_once)


@pytest.fixture
def file(params: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """``file(recipe={...})``: the repository's params.yaml with these experiments for its own; each
    inherits from `plain` unless it says otherwise."""

    def made(**experiments: dict[str, Any]) -> dict[str, Any]:
        own = {name: {"base": "plain", **each} for name, each in experiments.items()}
        return {**params, **untrained(params), "bases": BASES, "experiments": own}

    return made


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a mapping to a file of that name; scales/ stands beside it."""

    def write(values: dict[str, Any], name: str = "params.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8") as stream:
            YAML().dump(values, stream)
        return path

    return write
