"""Losses of entropy and balance on a plain softmax: the paper's own starting point."""

from experiments.mitigations.auxiliary import losses
from experiments.regimes.joint import Joint

BALANCE = "softmax"


def install(regime: Joint) -> None:
    """Adds both losses."""
    regime.auxiliary.append(losses(regime.seen))
