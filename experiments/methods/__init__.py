"""One registry of methods: a file here is a method, found by its name."""

from __future__ import annotations

import sys

from experiments import registry
from experiments.methods.base import Method

HELPERS = ("base", "attending", "fixed", "passes")  # modules beside the methods


def names() -> list[str]:
    """Names of all methods."""
    return registry.names(sys.modules[__name__])


def find(name: str, path: str = "method.name") -> type[Method]:
    """The method of that name; ValueError as :func:`experiments.registry.find`."""
    found: type[Method] = registry.find(sys.modules[__name__], name, "method", path).METHOD
    return found
