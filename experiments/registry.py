"""Registries: packages in which a file is an entry, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names(package: ModuleType) -> list[str]:
    """Names of all entries: modules of the package that are not among its ``HELPERS``."""
    found = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [name for name in found if name not in package.HELPERS]


def find(package: ModuleType, name: str, what: str, path: str) -> ModuleType:
    """The module of that name.

    Args:
        what: an entry is called in the error.
        path: of the setting that names it.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    known = names(package)
    if name not in known:
        raise ValueError(f"{path}: {name!r} is no {what}; there are {', '.join(known)}")
    return importlib.import_module(f"{package.__name__}.{name}")
