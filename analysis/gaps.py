"""Results that stand alone, beside others of another number format, or in no table."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.comparisons import bases, quality
from analysis.results import KINDS, Results, load_json, reading_of
from experiments.settings import Settings


def alone(results: Results) -> Iterator[str]:
    """A line for each cell that was read while nothing that it is compared with was."""
    read = {name for _, path in results.finished()
            for name in (load_json(path).get("settings") or {}).get("cells") or {}}  # fmt: skip
    for cell in results.cells.values():
        beside = {base.name for base in bases(results, cell)}
        if cell.name in read and cell.against and not beside & read:
            named = " ".join(f"read@{name}" for name in cell.against)
            yield (f"{cell.name}: stands in no table of changes, since nothing that it is compared "
                   f"with was read; run dvc repro {named}")  # fmt: skip


def mixed(results: Results, chosen: Settings) -> Iterator[str]:
    """A line for each experiment that was read in another number format than what it is compared
    with, though params.yaml asks for none: by processors with and without bfloat16."""
    frame = quality(results)
    frame = frame[frame["formats"] != ""].drop_duplicates(["experiment", "against", "reading"])
    for row in frame.to_dict("records"):
        cell = chosen.experiments.get(row["experiment"], {}).get(row["cell"])
        if cell is not None and cell.dtype == "auto":
            yield (
                f"{row['experiment']}: {row['reading']} was read in {row['formats']} of "
                f"{row['against']}; read both on one machine, or give both `dtype: float32`"
            )


def unknown(results: Results) -> Iterator[str]:
    """A line for each kind of reading that no table or figure knows yet."""
    kinds = {reading_of(load_json(path)).get("kind"): path for _, path in results.finished()}
    for kind, path in kinds.items():
        if kind not in (None, *KINDS):
            yield (f"{kind}: no table knows this kind of reading yet; its rows stand in "
                   f"{path.with_name('rows.csv')} (docs/how-to-add.md)")  # fmt: skip
