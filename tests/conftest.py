"""What all tests share: no hub, few threads, and a working copy of the settings to edit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not Path("/dev/nvidiactl").exists():  # read when Triton is first imported
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

from experiments.settings.schema import read_yaml

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that may take longest, by their timeouts, first: with two workers the last file
    runs alone."""
    limits: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -limits[item.path])


@pytest.fixture(autouse=True, scope="session")
def two_threads() -> None:
    """Two threads in all, as on the machine that the results come from."""
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def params() -> dict[str, Any]:
    """What params.yaml holds, free to be changed."""
    return read_yaml(ROOT / "params.yaml")
