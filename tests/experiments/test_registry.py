"""Entries found by the name of their file."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from experiments import registry
from experiments.methods.base import Method


def test_a_file_is_found_by_its_one_class() -> None:
    for name in registry.names("method"):
        assert registry.find("method", name).name == name


@pytest.mark.parametrize("count", [0, 2])
def test_a_file_with_another_number_of_classes_is_named(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("experiments.methods.window")
    for n in range(count):
        setattr(module, f"M{n}", type(f"M{n}", (Method,), {"__module__": module.__name__}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ValueError, match=rf"^experiments/methods/window\.py: defines {count} "):
        registry.find("method", "window")
