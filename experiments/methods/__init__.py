"""One registry of methods: a file here is a method, found by its name."""

from __future__ import annotations

import importlib
import pkgutil

from experiments.methods.base import Method

_HELPERS = ("base", "attending", "fixed", "passes")  # modules beside the methods


def names() -> list[str]:
    """Names of all methods."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in found if name not in _HELPERS]


def find(name: str, path: str = "method.name") -> type[Method]:
    """The method of that name.

    Args:
        path: of the setting that names it, for the error.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in names():
        raise ValueError(f"{path}: {name!r} is no method; there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: type[Method] = module.METHOD
    return found
