"""Folders that are there whole or not at all, and what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PART = ".part-"
STAMP = "source.json"


@contextmanager
def part_folder(root: Path, name: str) -> Iterator[Path]:
    """A temporary folder beside the target; gone afterwards unless it was renamed."""
    prefix = f"{PART}{os.getpid()}-{name}-"
    with tempfile.TemporaryDirectory("", prefix, root, ignore_cleanup_errors=True) as part:
        yield Path(part)


def swap(part: Path, target: Path) -> None:
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


def link_or_copy(folder: Path, target: Path) -> None:
    """All files of a folder, as hard links where the disk allows it, else as copies."""
    for path in _files(folder):
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), to)
        except OSError:
            shutil.copyfile(path, to)


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
