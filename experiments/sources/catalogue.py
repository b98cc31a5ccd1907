"""The list of texts, benchmarks and weights: `experiments/sources/sources.yaml`, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.settings.schema import Frozen, Listed, Size, parse, read_yaml
from experiments.sources.packages import SourceError

LIST = Path(__file__).with_name("sources.yaml")
ROOT = Path("data/sources")
TINY = "tiny-"
NEEDED = {
    "package": ("package", "version", "file", "sha256", "members"),
    "hub": ("repo", "revision", "files"),
    "folder": (),
    "made": ("architecture", "width", "layers", "corpus"),
}


class Source(Frozen):
    """One row of sources.yaml; the file's head explains the fields."""

    name: str
    role: Literal["model", "corpus", "benchmark"]
    kind: Literal["package", "hub", "folder", "made"]
    what: str
    licence: str
    package: str = ""
    version: str = ""
    file: str = ""
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    members: Listed[str] = ()
    strip: Size = 0
    convert: Literal["", "gguf"] = ""
    layout: Literal["texts", "wikitext", "essays", "code"] = "texts"
    repo: str = ""
    repo_type: Literal["model", "dataset"] = "model"
    revision: Annotated[str, Field(pattern="^([0-9a-f]{40})?$")] = ""
    files: Listed[str] = ()
    architecture: str = ""
    width: Size = 0
    layers: Size = 0
    corpus: str = ""
    megabytes: Size = 0

    @model_validator(mode="after")
    def _complete(self) -> Source:
        for field in NEEDED[self.kind]:
            if not getattr(self, field):
                raise ValueError(f"{field}: is missing for a source of kind {self.kind}")
        if Path(self.file).name != self.file:
            raise ValueError(f"file: must be a plain file name, got {self.file!r}")
        return self


def sources(path: Path = LIST) -> dict[str, Source]:
    """The list by name; ValueError names the row and field that is wrong."""
    return {name: parse(Source, {"name": name, **row} if isinstance(row, Mapping) else row, name)
            for name, row in read_yaml(path).items()}  # fmt: skip


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
