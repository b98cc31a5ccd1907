"""One registry of training regimes: a file here is a regime, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.regimes.base import Regime

_HELPERS = ("base", "fitting", "tensors")  # modules beside the regimes


def names() -> list[str]:
    """Names of all regimes."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in found if name not in _HELPERS]


def find(name: str, path: str = "regime.name") -> type[Regime]:
    """The regime of that name.

    Args:
        path: of the setting that names it, for the error.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in names():
        raise ValueError(f"{path}: {name!r} is no regime; there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: type[Regime] = module.REGIME
    return found
