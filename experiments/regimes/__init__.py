"""One registry of training regimes: a file here is a regime, found by its name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from experiments import registry

if TYPE_CHECKING:
    from experiments.regimes.base import Regime

HELPERS = ("base", "fitting", "tensors")  # modules beside the regimes


def find(name: str, path: str = "regime.name") -> type[Regime]:
    """The regime of that name; ValueError as :func:`experiments.registry.find`."""
    found: type[Regime] = registry.find(sys.modules[__name__], name, "regime", path).REGIME
    return found
