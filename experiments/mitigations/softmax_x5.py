"""The loss of balance five times as heavy."""

from experiments.mitigations import auxiliary
from experiments.regimes.joint import Joint

BALANCE = "softmax"


def install(regime: Joint) -> None:
    """Adds both losses."""
    regime.auxiliary.append(auxiliary.losses(regime.seen, balance=5 * auxiliary.BALANCE))
