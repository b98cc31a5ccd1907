"""A plain softmax and nothing else: what the others are held against."""

from experiments.regimes.joint import Joint

BALANCE = "softmax"


def install(regime: Joint) -> None:
    """Nothing."""
