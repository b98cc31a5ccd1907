"""Result files as the rules, tables and figures read them. What is not there is empty, never made
up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

TOPK_COLUMNS = [
    "variant",
    "K",
    "sinks",
    "gate",
    "routers",
    "mode",
    "balance",
    "probe",
    "top_k",
    "seed",
    "ppl",
    "ppl_low",
    "ppl_high",
    "delta",
    "delta_low",
    "delta_high",
    "density",
    "distant_density",
    "n_documents",
    "tokens",
    "max_logit_difference",
]
SPEED_COLUMNS = [
    "device",
    "length",
    "K",
    "k",
    "probe",
    "window",
    "heads",
    "key_heads",
    "head_dim",
    "dtype",
    "method",
    "direction",
    "median_s",
    "low_s",
    "high_s",
    "speedup",
    "density",
    "bound",
    "share_of_bound",
    "tflops",
    "peak_mb",
    "repetitions",
]
CONTROLS_COLUMNS = [
    "variant",
    "K",
    "kind",
    "top_k",
    "window",
    "density",
    "distant_density",
    "ppl",
    "ppl_low",
    "ppl_high",
    "delta",
    "delta_low",
    "delta_high",
    "versus_routed",
    "versus_routed_low",
    "versus_routed_high",
    "n_documents",
    "seed",
]
DECODE_COLUMNS = [
    "device", "context", "dtype", "K", "k", "probe", "routers", "extra_keys", "method",
    "median_s", "low_s", "high_s", "bytes_read", "speedup", "bound", "error", "repetitions",
]  # fmt: skip
WHOLE_COLUMNS = [
    "device", "length", "dtype", "full_s", "ours_s", "speedup", "speedup_low", "speedup_high",
    "repetitions",
]  # fmt: skip
PREFILL_COLUMNS = [*WHOLE_COLUMNS, "outside_s", "density", "bound", "share_of_bound"]
CONTINUATION_COLUMNS = [*WHOLE_COLUMNS, "new_tokens"]
GENERATION_COLUMNS = [
    "variant", "prompt_tokens", "tokens", "agreement_forced", "agreement_free",
    "cache_differs_full", "cache_differs_hard",
]  # fmt: skip
EXACTNESS_COLUMNS = [
    "K",
    "k",
    "window",
    "sinks",
    "length",
    "dtype",
    "groups",
    "method",
    "output_cosine",
    "output_error",
    "gradient_error",
    "passed",
]


def read_csv(path: Path, columns: list[str]) -> pd.DataFrame:
    """A table of a stage. ValueError where a column that the rules rely on is missing."""
    frame = pd.read_csv(path)
    if missing := [name for name in columns if name not in frame]:
        raise ValueError(
            f"{path}: column {missing[0]!r} is missing; run the stage that writes it again"
        )
    return frame


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object. ValueError, naming the file, where it is not one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); run its stage again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold an object, got {type(found).__name__}")
    return found


RECIPE_COLUMNS = [
    "trial", "final", "kind", "reading", "K", "top_k", "probe", "window", "density",
    "distant_density", "ppl", "delta", "delta_low", "delta_high", "delta_least", "delta_most",
    "seeds", "context", "n_documents",
]  # fmt: skip


COPYING_COLUMNS = [
    "trial", "kind", "reading", "K", "top_k", "probe", "window", "distant_density", "nats", "above",
    "copied", "copied_low", "copied_high", "copied_least", "copied_most", "seeds", "context",
    "passage", "n_documents",
]  # fmt: skip
DOCUMENT_COLUMNS = ["trial", "kind", "reading", "seed", "document", "nll", "tokens"]
LATER = {"ngram": 0}  # columns of hard masks that older files lack, and what stood for them
FREE = ("recipe", "transfer", "copying", "generation")  # stages whose cells are no variants


def texts_seen(run: dict[str, Any], trial: str) -> list[str]:
    """Corpora that a trial was trained on, as the run.json of its scores says; [] where it does
    not."""
    settings = run.get("settings") or {}
    known = settings.get("recipe", {}).get("trials", {}).get(trial)
    if known is None:
        return []
    if known.get("retrofit", {}).get("texts") == "mixture":
        return list(run.get("notes", {}).get("trained_on") or settings["mixture"]["sources"])
    return [settings["corpus"]["source"]]


class Results:
    """Everything below one `results/` folder, read once and lazily.

    Args:
        root: the folder.
        variants: cells that count; a folder of a variant that params.yaml no longer names is left
            out. None: all.
    """

    def __init__(
        self, root: str | Path = "results", variants: Collection[str] | None = None
    ) -> None:
        self.root, self.variants = Path(root), variants

    def evidence(self, path: Path) -> str:
        """A path as it stands in the ledger: from the repository's root."""
        return (Path("results") / path.relative_to(self.root)).as_posix()

    def read_json(self, *parts: str) -> dict[str, Any]:
        """A JSON object below the folder, {} where there is none."""
        path = self.root.joinpath(*parts)
        return load_json(path) if path.is_file() else {}

    def run(self, stage: str, cell: str | None = None) -> dict[str, Any]:
        """What produced a cell (`run.json`), {} where there is none."""
        return self.read_json(stage, *([cell] if cell else []), "run.json")

    @cached_property
    def topk(self) -> pd.DataFrame:
        """All cells of the top-k stage, a row a setting, with `evidence` and `cell` beside."""
        return self.cells("topk", TOPK_COLUMNS)

    def cells(self, stage: str, columns: list[str]) -> pd.DataFrame:
        """Tables of all cells of a stage below each other, with `evidence` and `cell` beside."""
        frames = [
            read_csv(path, columns).assign(evidence=self.evidence(path), cell=path.parent.name)
            for path in sorted((self.root / stage).glob("*/table.csv"))
            if stage in FREE or self.variants is None or path.parent.name in self.variants
        ]
        if not frames:
            return pd.DataFrame(columns=[*columns, *LATER, "evidence", "cell"])
        whole = pd.concat(frames, ignore_index=True)
        if "reading" not in columns:
            return whole
        return whole.assign(**{  # a file from before there was such a column
            name: whole[name].fillna(none) if name in whole else none
            for name, none in LATER.items()
        })  # fmt: skip

    @cached_property
    def speed(self) -> pd.DataFrame:
        """The speed stage of this machine, then every GPU run that somebody committed; `hardware`
        tells them apart.
        """
        path, frames = self.root / "speed" / "table.csv", []
        if path.is_file():
            here = read_csv(path, SPEED_COLUMNS)
            frames.append(here.assign(hardware=here["device"], evidence=self.evidence(path)))
        frames += [
            frame
            for report in sorted((self.root / "gpu").glob("*.json"))
            for frame in self._gpu(report)
        ]
        return (
            pd.concat(frames, ignore_index=True)
            if frames
            else pd.DataFrame(columns=[*SPEED_COLUMNS, "hardware", "evidence"])
        )

    def _gpu(self, path: Path) -> list[pd.DataFrame]:
        """The timing rows of one GPU report."""
        report = load_json(path)
        rows = report.get("speed") or report.get("rows") or []
        if not rows:
            return []
        frame = pd.DataFrame(rows).reindex(columns=SPEED_COLUMNS)
        hardware = report.get("hardware", {})
        name = (
            hardware.get("device") or hardware.get("name")
            if isinstance(hardware, dict)
            else hardware
        )
        return [frame.assign(device="cuda", hardware=name or "GPU", evidence=self.evidence(path))]

    def table(self, stage: str, columns: list[str]) -> pd.DataFrame:
        """The table of a stage without cells, with `evidence` beside; empty where there is none."""
        path = self.root / stage / "table.csv"
        if not path.is_file():
            return pd.DataFrame(columns=[*columns, "evidence"])
        return read_csv(path, columns).assign(evidence=self.evidence(path))

    @cached_property
    def controls(self) -> pd.DataFrame:
        """Masks of the controls stage: trained routers and routings that learnt nothing."""
        return self.table("controls", CONTROLS_COLUMNS)

    @cached_property
    def recipe(self) -> pd.DataFrame:
        """Masks of every trial of the recipe stage, and of the controls beside finalists."""
        frame = self.cells("recipe", RECIPE_COLUMNS)
        return frame.assign(trained_on=self._trained_on("recipe", frame))

    @cached_property
    def search_documents(self) -> pd.DataFrame:
        """Losses of each document under each mask of the trials that are no finalists."""
        frame = self.recipe
        trials = frame[~frame["final"].astype(bool)]["cell"].unique() if len(frame) else []
        return self.documents("recipe", trials)

    def documents(self, stage: str, cells: Iterable[str]) -> pd.DataFrame:
        """Losses of each document under each mask, of a stage's cells that recorded them."""
        paths = [self.root / stage / cell / "documents.csv" for cell in cells]
        frames = [read_csv(path, DOCUMENT_COLUMNS) for path in paths if path.is_file()]
        if not frames:
            return pd.DataFrame(columns=DOCUMENT_COLUMNS)
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def transfer(self) -> pd.DataFrame:
        """Masks of the routers of one trial or several, and of controls, on each other corpus."""
        frame = self.cells("transfer", RECIPE_COLUMNS)
        named = zip(frame["cell"], frame["trial"], strict=True)
        return frame.assign(
            corpus=[cell.removeprefix(f"{trial}-") for cell, trial in named],
            trained_on=self._trained_on("transfer", frame),
        )

    @cached_property
    def copying(self) -> pd.DataFrame:
        """Masks of each trial's routers on passages that a window holds twice."""
        frame = self.cells("copying", COPYING_COLUMNS)
        return frame.assign(trained_on=self._trained_on("copying", frame))

    def _trained_on(self, stage: str, frame: pd.DataFrame) -> list[str]:
        """Corpora whose texts each row's routers saw, "" where no record says so."""
        told = {
            cell: texts_seen(self.run(stage, cell), trial)
            for cell, trial in zip(frame["cell"], frame["trial"], strict=True)
        }
        return [" + ".join(told[cell]) for cell in frame["cell"]]

    @cached_property
    def exactness(self) -> pd.DataFrame:
        """Cases of the exactness stage."""
        return self.table("exactness", EXACTNESS_COLUMNS)

    @cached_property
    def decode(self) -> pd.DataFrame:
        """Steps of the decode stage, by context, dtype and routing."""
        return self.table("decode", DECODE_COLUMNS)

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The whole model by the recipe beside the pretrained one; ``phase``: a forward pass, or
        generation after a context."""
        forward = self.table("prefill", PREFILL_COLUMNS).assign(phase="forward")
        after = self.table("continuation", CONTINUATION_COLUMNS).assign(phase="generation")
        known = [each for each in (forward, after) if len(each)]
        return pd.concat(known, ignore_index=True) if known else forward

    @cached_property
    def generation(self) -> pd.DataFrame:
        """Questions of the generation stage, answered with the cache in both modes: by variants'
        routers, then by trials'."""
        own = self.table("generation", GENERATION_COLUMNS)
        trials = self.cells("generation", GENERATION_COLUMNS).drop(columns="cell")
        return pd.concat([each for each in (own, trials) if len(each)] or [own], ignore_index=True)

    @cached_property
    def leak(self) -> pd.DataFrame:
        """Metrics of the leak stage, one row a variant or trial's mask and balance; `cell` names
        the trial, "" for variants."""
        cells = ["", *sorted(path.parent.name for path in self.root.glob("leak/*/metrics.json"))]
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for cell in cells:
            for key, value in self.read_json("leak", cell, "metrics.json").items():
                variant, _, rest = key.partition(".")
                balance, _, name = rest.partition(".")
                if name:
                    rows.setdefault((cell, variant, balance), {})[name] = value
        return pd.DataFrame([
            {"cell": c, "variant": v, "balance": b, **row} for (c, v, b), row in rows.items()
        ])  # fmt: skip
