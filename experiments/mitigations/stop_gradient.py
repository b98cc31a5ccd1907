"""Routers see hidden states without gradients: the model cannot move them to please a router."""

from experiments.mitigations import softmax
from experiments.regimes.joint import Joint

BALANCE = "softmax"


def install(regime: Joint) -> None:
    """Detaches what routers are given, beside the losses."""
    softmax.install(regime)
    for router in regime.routers:
        router.register_forward_pre_hook(lambda _, args: (args[0].detach(), *args[1:]))
