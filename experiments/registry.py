"""Registries: packages in which a file is an entry, found by its name.

A kind of entry is named in the singular, and its package in the plural: ``method``, ``regime``,
``mitigation``, ``reading``.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def names(kind: str) -> list[str]:
    """Names of all entries: modules of the package that are not among its ``HELPERS``."""
    package = importlib.import_module(f"experiments.{kind}s")
    found = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [name for name in found if name not in package.HELPERS]


def find(kind: str, name: str, path: str = "") -> Any:
    """The entry of that name: the class of the kind that its file defines, where the package has a
    ``base`` that tells the kind (:class:`Method`, :class:`Regime`); else the module.

    Args:
        path: of the setting that names it; usually the kind's ``name``.

    Raises:
        ValueError: there is none (the message lists those that there are), or its file does not
            define one class of the kind.
    """
    known = names(kind)
    if name not in known:
        where = path or f"{kind}.name"
        raise ValueError(f"{where}: {name!r} is no {kind}; there are {', '.join(known)}")
    module = importlib.import_module(f"experiments.{kind}s.{name}")
    package = importlib.import_module(f"experiments.{kind}s")
    if "base" not in package.HELPERS:
        return module
    base = getattr(importlib.import_module(f"experiments.{kind}s.base"), kind.capitalize())
    own = {each for each in vars(module).values() if isinstance(each, type)
           and issubclass(each, base) and each.__module__ == module.__name__}  # fmt: skip
    if len(own) != 1:
        raise ValueError(f"experiments/{kind}s/{name}.py: defines {len(own)} classes that are a "
                         f"{base.__name__}, and must define one; put others into files of their "
                         "own below experiments/")  # fmt: skip
    return own.pop()
