"""What the ledger needs from `params.yaml`: the scale, the seed and the tolerances of the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tolerances:
    """Limits of the rules. They stand in `params.yaml` before a run, so that no verdict is fitted.

    identity_logits: greatest difference of logits that still counts as the same model (absolute).
    far_worse: relative rise of perplexity from which on hard top-1 counts as far worse.
    same_ppl: relative difference within which a perplexity of the same model, text and steps as
        the paper's counts as reproduced, and a mask's as near the pretrained model's.
    density_points: percentage points within which a share of retained pairs agrees.
    cosine: least cosine similarity that counts as 1.0000.
    subtraction_cosine: greatest distance from the paper's cosine of merging by subtraction.
    speedup: relative difference within which a speed-up on the paper's hardware is reproduced.
    leak_share: share of earlier assignments that may change before it counts as a leak.
    copied: share of the pretrained model's gain from having read a passage before, from which on a
        mask counts as one that copies.
    rounding: relative difference between exact arithmetic and a figure printed to few digits.
    """

    identity_logits: float
    far_worse: float
    same_ppl: float
    density_points: float
    cosine: float
    subtraction_cosine: float
    speedup: float
    leak_share: float
    copied: float
    rounding: float

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"tolerances.{name}: must be a number >= 0, got {value!r}")


@dataclass(frozen=True)
class LedgerSettings:
    """Scale, seed and tolerances; `params` is the whole file as plain values."""

    scale: str
    seed: int
    tolerances: Tolerances
    params: dict[str, Any]


def tolerances(block: dict[str, Any]) -> Tolerances:
    """The block `tolerances` of params.yaml. ValueError names what is missing or unknown."""
    known = {f.name for f in fields(Tolerances)}
    if missing := sorted(known - set(block)):
        raise ValueError(f"tolerances.{missing[0]}: missing; add it to params.yaml")
    if unknown := sorted(set(block) - known):
        raise ValueError(f"tolerances.{unknown[0]}: unknown; known are {', '.join(sorted(known))}")
    return Tolerances(**block)


def load(path: str | Path = "params.yaml") -> LedgerSettings:
    """All of `params.yaml`, validated. ValueError names the setting that is wrong."""
    from experiments import settings  # brings torch along, which the ledger's tests do not need

    read = settings.load(path)
    return LedgerSettings(
        scale=read.scale,
        seed=read.seed,
        tolerances=tolerances(read.tolerances.plain()),
        params=read.plain(),
    )
