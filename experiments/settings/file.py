"""All of params.yaml under its scale, as one object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.scale import FILE, SCALES
from experiments.settings.blocks import Calibration, Intervals, Reading, Texts, Tolerances
from experiments.settings.checks import check
from experiments.settings.experiment import Experiment
from experiments.settings.measurements import (
    Continuation,
    Decode,
    Exactness,
    Masks,
    Prefill,
    Speed,
)
from experiments.settings.resolve import inherited, laid, near, started, swept
from experiments.settings.schema import Count, Distinct, Frozen, Name, Size, plain_name, read_yaml
from experiments.settings.schema import parse as parse_block

OVERLAYS = Path("scales")
DEFAULT = "laptop"
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
    texts: dict[Name, Texts]
    readings: dict[Name, Reading]
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


def load(path: str | Path = FILE, scale: str | None = None,
         overlays: str | Path = OVERLAYS) -> Settings:  # fmt: skip
    """Reads and checks the whole file, with the overlay of its scale laid over it in memory.

    Args:
        scale: instead of the file's own.

    Raises:
        ValueError: a setting is missing, unknown, of the wrong type or nonsense; each line starts
            with a field's full name, e.g. ``experiments.recipe.method.window: must be >= 1``.
    """
    values = read_yaml(Path(path))
    wanted = scale or values.get("scale")
    if wanted not in SCALES:
        raise ValueError(f"scale: must be one of {', '.join(SCALES)}, got {wanted!r}")
    overlay = Path(overlays) / f"{wanted}.yaml"
    if wanted != DEFAULT:
        changes = read_yaml(overlay)
        if "seeds" in changes:
            raise ValueError(
                f"seeds: dvc.yaml knows those of params.yaml alone; {overlay} has some"
            )
        values = laid(changes, values, new=False)
    return parse({**values, "scale": wanted})


def parse(values: Mapping[str, Any]) -> Settings:
    """Settings from the mapping that params.yaml holds; see :func:`load`."""
    bases, named = (values.get(key) or {} for key in ("bases", "experiments"))
    rest = {key: value for key, value in values.items() if key not in ("experiments", "bases")}
    settings = parse_block(Settings, rest, "")
    for key, blocks in (("bases", bases), ("experiments", named)):
        if not isinstance(blocks, Mapping):
            raise ValueError(f"{key}: must be a mapping of names to blocks, got {blocks!r}")
    for name, block in {**bases, **named}.items():
        _check_block(f"experiments.{name}", name, block)
    if set(bases) & set(named):
        raise ValueError("bases: a base and an experiment have the same name")
    for name in set(named) & set(Settings.model_fields):
        raise ValueError(f"experiments.{name}: is the name of a block, and of its results")
    points = {name: swept(name, inherited(name, {**bases, **named}, f"experiments.{name}"),
                          f"experiments.{name}") for name in named}  # fmt: skip
    found: dict[str, Cells] = {}
    for name, cells in points.items():
        started(name, points)
        found[name] = MappingProxyType({
            label: parse_block(Experiment, {**cell, "name": label, "block": name},
                               f"experiments.{name}")
            for label, cell in cells.items()
        })  # fmt: skip
    settings = settings.model_copy(update={"experiments": MappingProxyType(found)})
    check(settings)
    return settings


def _check_block(path: str, name: Any, block: Any) -> None:
    try:
        plain_name(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for own in ("name", "block"):
        if isinstance(block, Mapping) and own in block:
            raise ValueError(f"{path}.{own}: unknown field; a block is named by its key")
