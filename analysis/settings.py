"""What the ledger needs from `params.yaml`: the scale and the tolerances of the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from analysis.results import Results


@dataclass(frozen=True)
class Tolerances:
    """Limits of the rules. They stand in `params.yaml` before a run, so that no verdict is fitted.

    identity_nats: greatest difference of loss a token that still counts as the same model.
    far_worse: relative rise of perplexity from which on hard top-1 counts as far worse.
    same_ppl: relative difference within which a perplexity of the same model, text and steps as
        the paper's counts as reproduced, and a mask's as near the full model's.
    density_points: percentage points within which a share of retained pairs agrees.
    cosine: least cosine similarity that counts as 1.0000.
    subtraction_cosine: greatest distance from the paper's cosine of merging by subtraction.
    speedup: relative difference within which a speed-up on the paper's hardware is reproduced.
    leak_share: share of earlier assignments that may change before it counts as a leak.
    copied: share of the full model's gain from having read a passage before, from which on a mask
        counts as one that copies.
    rounding: relative difference between exact arithmetic and a figure printed to few digits.
    """

    identity_nats: float
    far_worse: float
    same_ppl: float
    density_points: float
    cosine: float
    subtraction_cosine: float
    speedup: float
    leak_share: float
    copied: float
    rounding: float


@dataclass(frozen=True)
class LedgerSettings:
    """Scale, tolerances, and what each experiment is compared with (None: as recorded)."""

    scale: str
    tolerances: Tolerances
    against: dict[str, tuple[str, ...]] | None = None
    confidence: float = 0.95

    def results(self, base: Path) -> Results:
        """The result files of the scale below a folder."""
        return Results(base, self.scale, self.against, self.confidence)


def tolerances(block: dict[str, Any]) -> Tolerances:
    """The block `tolerances` of params.yaml. ValueError names what is missing, unknown or wrong."""
    known = {f.name for f in fields(Tolerances)}
    if missing := sorted(known - set(block)):
        raise ValueError(f"tolerances.{missing[0]}: missing; add it to params.yaml")
    if unknown := sorted(set(block) - known):
        raise ValueError(f"tolerances.{unknown[0]}: unknown; known are {', '.join(sorted(known))}")
    for name, value in block.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"tolerances.{name}: must be a number >= 0, got {value!r}")
    return Tolerances(**block)


def load(path: str | Path = "params.yaml", scale: str | None = None) -> LedgerSettings:
    """All of `params.yaml`, validated. ValueError names the setting that is wrong."""
    from experiments import settings  # brings torch along, which the ledger's tests do not need

    read = settings.load(path, scale)
    against = {
        block: tuple(next(iter(cells.values())).against)
        for block, cells in read.experiments.items()
    }
    limits = tolerances(dict(read.tolerances))
    return LedgerSettings(read.scale, limits, against, read.intervals.confidence)
