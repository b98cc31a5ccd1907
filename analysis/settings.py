"""What the ledger needs from `params.yaml`: the scale and the tolerances of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from analysis.results import Results
from experiments import settings
from experiments.settings import Tolerances


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


def load(path: str | Path = "params.yaml", scale: str | None = None) -> LedgerSettings:
    """All of `params.yaml`, validated. ValueError names the setting that is wrong."""
    return of(settings.load(path, scale))


def of(chosen: settings.Settings) -> LedgerSettings:
    """The same of settings that were read."""
    against = {
        block: tuple(next(iter(cells.values())).against)
        for block, cells in chosen.experiments.items()
    }
    return LedgerSettings(chosen.scale, chosen.tolerances, against, chosen.intervals.confidence)
