"""The oracle chosen for each query head, as the recipe's routers may choose."""

from __future__ import annotations

from experiments.methods.oracle import Oracle


class OracleHeads(Oracle):
    """The heaviest share of each query's distant keys, for each query head by its own weights."""

    name = "oracle_heads"
    each_head = True


METHOD = OracleHeads
