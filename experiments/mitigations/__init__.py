"""Ways to keep groups of one size while routers learn (paper: Table 8): a file here is one, found
by its name.

Each says by which ``BALANCE`` the training gate runs under it; its ``install`` gives a regime
losses to add, something to do after each step, or hooks on the routers.
"""

from __future__ import annotations

import sys
from types import ModuleType

from experiments import registry

HELPERS = ("auxiliary", "seen")  # modules beside the mitigations


def names() -> list[str]:
    """Names of all mitigations."""
    return registry.names(sys.modules[__name__])


def find(name: str, path: str = "regime.mitigation") -> ModuleType:
    """The mitigation of that name; ValueError as :func:`experiments.registry.find`."""
    return registry.find(sys.modules[__name__], name, "mitigation", path)
