"""Result files as the rules, tables and figures read them. What is not there is empty, never made
up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.cells import Cell
from experiments.settings import Settings

PAPER_GPU = "H100"

# What a row of losses has, whoever wrote it; the other kinds have some of these and their own.
ROWS = (
    "experiment", "cell", "seed", "condition", "budget", "K", "top_k", "probe", "ngram", "window",
    "sinks", "balance", "texts", "document", "sha", "nll", "tokens", "density", "distant_density",
    "reading", "evidence",
)  # fmt: skip
TEXT = ("experiment", "cell", "condition", "budget", "probe", "balance", "texts", "document", "sha")
# Columns that the rules rely on, by kind of reading. A row a cell, seed and document (or question),
# and ...
KINDS: dict[str, tuple[str, ...]] = {
    # condition, budget
    "perplexity": ("seed", "condition", "document", "sha", "nll", "tokens", "distant_density"),
    # condition (``new``: read once), budget: a passage that is read twice
    "copying": ("seed", "condition", "document", "nll", "tokens"),
    # balance: earlier assignments that a suffix changes
    "leak": ("balance", "document", "changed"),
    # layer: how even groups are, and how sure a token is
    "groups": ("layer", "document", "largest_group", "confidence"),
    # layer, way to group, group: tokens by part of speech
    "contents": ("layer", "by", "group", "document", "members"),
    # layer: what groups tell of tokens, and the groups, a letter each
    "information": ("layer", "document", "sha", "groups"),
    # budget, layer: pairs that copying needs, in a shared group
    "induction": ("budget", "document", "sha", "layer", "shared", "chance", "weight_shared"),
    # budget, layer, kind of link: the same of words that belong together
    "affinity": ("budget", "document", "sha", "layer", "link", "pairs", "shared", "chance"),
    # budget, layer: groups of a head's tokens, a letter each
    "picture": ("budget", "document", "layer", "tokens", "keys", "queries", "further"),
    # condition, budget, long-context task, length
    "ruler": ("condition", "document", "sha", "length", "nll", "tokens", "found"),
    # condition, budget, stretch of positions
    "positions": ("condition", "document", "sha", "position", "nll", "tokens"),
    # condition, budget, length of the text before the question
    "chat": ("condition", "document", "before", "divergence", "agreed"),
    # condition, budget, benchmark
    "benchmarks": ("condition", "document", "sha", "shots", "correct", "exposure"),
}
NEEDED: dict[str, tuple[str, ...]] = {  # and by stage
    **KINDS,
    "exactness": ("method", "output_cosine", "output_error", "passed"),
    "speed": ("device", "length", "K", "k", "probe", "heads", "method", "direction", "speedup",
              "median_s", "low_s", "high_s", "density"),
    "decode": ("device", "context", "dtype", "method", "speedup"),
    "masks": ("method", "K", "k", "heavy", "budget", "time", "time_low", "time_high"),
    "prefill": ("experiment", "length", "speedup", "speedup_low", "speedup_high", "density"),
    "continuation": ("experiment", "length", "speedup", "speedup_low", "speedup_high"),
}  # fmt: skip


def read_csv(path: Path, kind: str) -> pd.DataFrame:
    """A table of a stage, or of a reading; ValueError names the file and a column that the rules
    rely on and that it lacks."""
    frame = pd.read_csv(path, dtype=dict.fromkeys(TEXT, str))
    if missing := [name for name in NEEDED[kind] if name not in frame]:
        raise ValueError(f"{path}: column {missing[0]!r} is missing; run its stage again")
    text = [name for name in TEXT if name in frame]
    return frame.assign(**{name: frame[name].fillna("") for name in text})


def _whole(kind: str, frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables of one kind together; a column that is not there is empty."""
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    missing = [name for name in (*ROWS, *NEEDED[kind]) if name not in frame]
    return frame.assign(**dict.fromkeys(missing, pd.Series(dtype=object)))


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no file. ValueError names a file that is none."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); run its stage again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold an object, got {type(found).__name__}")
    return found


class Results:
    """Everything of one scale below a `results/` folder, read once and lazily.

    Args:
        base: the folder; timings of GPUs lie in its `gpu/`.
        against: what each experiment of params.yaml is compared with; experiments that it no
            longer names are left out, the others come in its order. None: all, as recorded.
    """

    def __init__(
        self,
        base: str | Path = "results",
        scale: str = "laptop",
        against: Mapping[str, tuple[str, ...]] | None = None,
        confidence: float = 0.95,
    ) -> None:
        self.base, self.scale, self.root = Path(base), scale, Path(base) / scale
        self.against, self.confidence = against, confidence

    @classmethod
    def of(cls, chosen: Settings, base: str | Path) -> Results:
        """Those of the scale of params.yaml, compared as it says now."""
        against = {block: tuple(next(iter(cells.values())).against)
                   for block, cells in chosen.experiments.items()}  # fmt: skip
        return cls(base, chosen.scale, against, chosen.intervals.confidence)

    def evidence(self, path: Path) -> str:
        """A path as it stands in the ledger: from the repository's root."""
        return (Path("results") / path.relative_to(self.base)).as_posix()

    def run_of(self, evidence: str) -> dict[str, Any]:
        """What produced a file that stands in the ledger."""
        path = self.base / Path(evidence).relative_to("results")
        return load_json(path.parent / "run.json")

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell that was read or trained, by name, in the order of params.yaml."""
        found = {}
        for block, path in self.finished():
            settings = load_json(path).get("settings") or {}
            cells = settings.get("cells")  # of a reading; a training's folder has the cell's name
            for name, own in (cells or {path.parent.name: settings}).items():
                now = None if self.against is None else self.against[block]
                if settings:
                    found.setdefault(name, Cell.of({**own, "name": name, "block": block}, now))
        return found

    def finished(self) -> Iterator[tuple[str, Path]]:
        """Records of readings and trainings that ended, with their experiment."""
        paths = [*self.root.glob("*/read/*/run.json"), *self.root.glob("*/train/*/*/run.json")]
        found = [(path.relative_to(self.root).parts[0], path) for path in sorted(paths)]
        if self.against is None:
            return iter(found)
        order = list(self.against)
        return iter(sorted((each for each in found if each[0] in order),
                           key=lambda each: order.index(each[0])))  # fmt: skip

    @cached_property
    def readings(self) -> dict[str, pd.DataFrame]:
        """Rows of every finished reading, by kind, a key of :data:`KINDS`. Those of a kind that no
        table knows yet stay in their files."""
        frames: dict[str, list[pd.DataFrame]] = {kind: [] for kind in KINDS}
        for _, record in self.finished():
            path = record.with_name("rows.csv")
            kind = reading_of(load_json(record)).get("kind", "perplexity")
            if path.is_file() and kind in frames:
                told = {"reading": record.parent.name, "evidence": self.evidence(path)}
                frames[kind].append(read_csv(path, kind).assign(**told))
        return {kind: _whole(kind, own) for kind, own in frames.items()}

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Losses: a row a reading, cell, seed, condition, budget and document."""
        return self.readings["perplexity"]

    @cached_property
    def _by_cell(self) -> dict[str, dict[str, pd.DataFrame]]:
        return {kind: {str(name): own for name, own in frame.groupby("cell", sort=False)}
                for kind, frame in self.readings.items()}  # fmt: skip

    def rows_of(self, cell: str, kind: str = "perplexity") -> pd.DataFrame:
        """Rows of one cell, of a kind of reading."""
        return self._by_cell[kind].get(cell, self.readings[kind].head(0))

    @cached_property
    def training(self) -> pd.DataFrame:
        """Every step of every training: cell, seed, step, loss."""
        return self._trained("train.csv", ("step", "loss"))

    @cached_property
    def traces(self) -> pd.DataFrame:
        """A row a joint training, step and layer: what becomes of the groups, and how they move."""
        return self._trained("groups.csv", ("step", "layer", "largest_group"))

    def _trained(self, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
        """A table beside the weights of every training."""
        frames = []
        for block, record in self.finished():
            path = record.with_name(name)
            if not path.is_file() or record.parents[2].name != "train":
                continue
            if len(frame := pd.read_csv(path)):  # of no steps: there was nothing to train
                seed = int(record.parents[1].name.removeprefix("seed"))
                told = {"experiment": block, "cell": record.parent.name, "seed": seed,
                        "evidence": self.evidence(path)}  # fmt: skip
                frames.append(frame.assign(**told))
        names = ["experiment", "cell", "seed", "evidence", *columns]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)

    def table(self, stage: str) -> pd.DataFrame:
        """A measurement without training, with `evidence`; empty where there is none."""
        path = self.root / stage / "table.csv"
        if not path.is_file():
            return pd.DataFrame(columns=[*NEEDED[stage], "evidence"])
        return read_csv(path, stage).assign(evidence=self.evidence(path))

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The whole model under masks beside the pretrained one, in the number format that was
        timed first; ``phase``: a forward pass, or generation after a context; ``role``: what the
        experiment that was timed is."""
        every = self.timed
        if every.empty:
            return every
        return every[every["dtype"] == every.groupby("phase")["dtype"].transform("first")]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The same in every number format."""
        forward = self.table("prefill").assign(phase="forward")
        after = self.table("continuation").assign(phase="generation")
        known = [each for each in (forward, after) if len(each)]
        every = pd.concat(known, ignore_index=True) if known else forward
        return every.assign(role=[self.cells[name].role if name in self.cells else name
                                  for name in every["experiment"]])  # fmt: skip

    @cached_property
    def gpu(self) -> list[dict[str, Any]]:
        """GPU reports, each with its `evidence` and `hardware`'s name, the paper's GPU first."""
        found = []
        for path in sorted((self.base / "gpu").glob("*.json")):
            report = load_json(path)
            name = (report.get("hardware") or {}).get("device") or "GPU"
            found.append(report | {"hardware": name, "evidence": self.evidence(path)})
        return sorted(found, key=lambda report: PAPER_GPU not in report["hardware"])

    def gpu_steps(self, step: str) -> pd.DataFrame:
        """Timings of one kind that are not attention alone, of one sequence by length, from the
        first report that has any; `parts` are those of a call."""
        for report in self.gpu:
            rows = [
                row | {name: report[name] for name in ("hardware", "evidence")}
                for row in report.get("parts" if step == "parts" else "steps") or []
                if step in ("parts", row.get("step")) and row.get("batch", 1) == 1
            ]
            if rows:
                return pd.DataFrame(rows).sort_values("length")
        return pd.DataFrame()

    @cached_property
    def speed(self) -> pd.DataFrame:
        """Timings of this machine, then of every GPU report; `hardware` tells them apart."""
        here = self.table("speed")
        frames = [here.assign(hardware=here["device"])]
        for report in self.gpu:
            told = {"device": "cuda"} | {name: report[name] for name in ("hardware", "evidence")}
            rows = pd.DataFrame(report.get("speed") or [])
            frames += [rows.assign(**told)] if len(rows) else []
        full = [frame for frame in frames if len(frame)]
        return pd.concat(full, ignore_index=True) if full else frames[0]


def reading_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the reading that a run recorded, {} where it recorded none."""
    return (run.get("settings") or {}).get("reading") or {}
