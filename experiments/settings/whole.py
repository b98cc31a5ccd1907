"""All of params.yaml under its scale, as one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from experiments.settings.blocks import (
    Calibration,
    Intervals,
    Reading,
    Texts,
    Tolerances,
)
from experiments.settings.experiment import Experiment
from experiments.settings.measurements import (
    Continuation,
    Decode,
    Exactness,
    Masks,
    Prefill,
    Speed,
)
from experiments.settings.resolve import near
from experiments.settings.schema import Count, Distinct, Frozen, Size, plain_name

Cells = Mapping[str, Experiment]


class Settings(Frozen):
    """All of params.yaml under its scale.

    Attributes:
        scale: the overlay that was laid over the file.
        seed: of measurements without training, and of bootstraps; ``seeds``: of experiments.
        experiments: cells by name, by experiment: resolved before they are parsed.
    """

    scale: str
    seed: Size
    seeds: Distinct[Size]
    threads: Count
    texts: dict[Annotated[str, AfterValidator(plain_name)], Texts]
    readings: dict[Annotated[str, AfterValidator(plain_name)], Reading]
    calibration: Calibration
    intervals: Intervals
    tolerances: Tolerances
    exactness: Exactness
    speed: Speed
    decode: Decode
    masks: Masks
    prefill: Prefill
    continuation: Continuation
    experiments: Mapping[str, Cells] = {}

    def cell(self, name: str) -> Experiment:
        """A cell, or the only cell of an experiment; ValueError with the names that there are."""
        for block, cells in self.experiments.items():
            if name in cells:
                return cells[name]
            if name == block and len(cells) == 1:
                return next(iter(cells.values()))
        if name in self.experiments:
            cells = self.experiments[name]
            raise ValueError(f"experiments.{name}: has several cells; there are {', '.join(cells)}")
        known = [each for cells in self.experiments.values() for each in cells]
        raise ValueError(f"experiments.{name}: no such experiment; {near(name, known)}")

    def cells(self, block: str) -> Cells:
        """The cells of an experiment; ValueError with the names that there are."""
        if block not in self.experiments:
            raise ValueError(f"experiments.{block}: no such experiment; "
                             f"{near(block, self.experiments)}")  # fmt: skip
        return self.experiments[block]

    @property
    def core(self) -> list[str]:
        """Names of the experiments of `make reproduce`."""
        return [block for block, cells in self.experiments.items()
                if any(cell.core for cell in cells.values())]  # fmt: skip
