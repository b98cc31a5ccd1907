"""How the training gate changes over a training, as the recipe's routers were trained."""

from __future__ import annotations

from collections.abc import Sequence

from focus.config import Fields


def recipe_schedule(
    step: int, steps: int, *, start: float = 0.3, end: float = 0.1, hard_from: float = 0.4,
    top_ks: Sequence[int] = (1, 2, 4),
) -> Fields:  # fmt: skip
    """Fields of the config for one training step, to go with :meth:`focus.FocusConfig.recipe`:
    ``with focus.mode(model, "soft", **focus.recipe_schedule(step, steps))``.

    The temperature falls geometrically. In the last part the forward pass is that of the hard mask
    (gate ``straight_through``), with one, two and four groups a query in turn: routers that are
    read with each of these then know what it leaves out (docs/log, 2026-11-22). The first part
    names them, too, so that a config that cannot have them is refused in the first steps; a gate
    other than ``straight_through`` heeds them not.

    Args:
        step: from 0 to ``steps`` - 1.
        start, end: temperatures of the first step and the last, which should be the config's.
        hard_from: share of the steps after which the hard part starts.
        top_ks: groups a query of the hard part, in turn; none above the config's num_groups (of
            three groups, ``(1, 2)``).
    """
    last = step >= steps - 1
    temperature = end if last else start * (end / start) ** (step / (steps - 1))
    if hard_from >= 1:
        return {"temperature": temperature}
    mask: Fields = {"probe": "multi_probe", "top_k": top_ks[step % len(top_ks)]}
    gate: Fields = {} if step < hard_from * steps else {"gate": "straight_through"}
    return {"temperature": temperature, **gate, **mask}
