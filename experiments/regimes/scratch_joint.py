"""Routers and all weights together, from random ones: the paper's training from scratch."""

from __future__ import annotations

from experiments.regimes.joint import Joint
from experiments.regimes.scratch import Scratch


class ScratchJoint(Joint):
    """As ``joint``, from the weights that ``scratch`` draws with the same seed."""

    original = Scratch.original
