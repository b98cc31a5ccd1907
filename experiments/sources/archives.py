"""Taking named members out of zip and tar archives, and nothing else.

An archive from outside may hold paths that leave the folder, links, devices, or members that
unpack to more than the disk holds. Only regular files whose names match are written, under the
target folder, within a size bound.
"""

from __future__ import annotations

import fnmatch
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

CHUNK = 1 << 20
MAX_BYTES = 4 << 30


class ArchiveError(ValueError):
    """The archive is damaged, lacks a member, or holds one that must not be extracted."""


def extract(
    archive: Path,
    members: Sequence[str],
    folder: Path,
    strip: int = 0,
    max_bytes: int = MAX_BYTES,
) -> list[Path]:
    """Writes the members that match one of the patterns under `folder`.

    Args:
        archive: a .zip, .whl, .tar, .tar.gz or .tgz file.
        members: patterns of whole paths in the archive; `*` does not cross a `/`.
        folder: existing target folder.
        strip: leading folders to cut off every path.
        max_bytes: bound on the unpacked bytes of all members together.

    Returns:
        the files written.

    Raises:
        ArchiveError: the file is no such archive or is damaged, a pattern matches nothing, or a
            member that matches is a link, a device, leaves the folder, comes twice, or breaks
            the bound.
    """
    written: list[Path] = []
    missing, left = set(members), max_bytes
    try:
        with _open(archive) as listing:
            for name, regular, size, reader in listing:
                hits = [pattern for pattern in members if _matches(name, pattern)]
                if not hits:
                    continue
                missing.difference_update(hits)
                if not regular:
                    raise ArchiveError(f"{archive.name}: {name} is a link or no regular file")
                target = folder / _safe(name, strip, archive)
                if target.exists():
                    raise ArchiveError(f"{archive.name}: {name} would overwrite another member")
                if size > left:
                    raise ArchiveError(f"{archive.name}: unpacks to more than {max_bytes} bytes")
                left -= _copy(reader, target, left, archive)
                written.append(target)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"{archive.name}: cannot be read: {error}") from error
    if missing:
        raise ArchiveError(f"{archive.name}: has no member {', '.join(sorted(missing))}")
    return written


Entry = tuple[str, bool, int, "Reader"]


class Reader:
    """Opens one member, when asked."""

    def __init__(self, archive: zipfile.ZipFile | tarfile.TarFile, member: object) -> None:
        self._archive, self._member = archive, member

    def open(self) -> IO[bytes]:
        """The member's bytes."""
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.open(self._member)  # type: ignore[arg-type]
        stream = self._archive.extractfile(self._member)  # type: ignore[arg-type]
        if stream is None:
            raise tarfile.TarError("a member has no content")
        return stream


@contextmanager
def _open(archive: Path) -> Iterator[Iterator[Entry]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield _zip_entries(opened)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened_tar:
            yield _tar_entries(opened_tar)
    else:
        raise ArchiveError(f"{archive.name}: is neither a zip nor a tar archive")


def _zip_entries(archive: zipfile.ZipFile) -> Iterator[Entry]:
    for info in archive.infolist():
        if info.is_dir():
            continue
        kind = stat.S_IFMT(info.external_attr >> 16)
        regular = kind in (0, stat.S_IFREG) and not info.flag_bits & 1  # bit 0: encrypted
        yield info.filename, regular, info.file_size, Reader(archive, info)


def _tar_entries(archive: tarfile.TarFile) -> Iterator[Entry]:
    for info in archive:
        if not info.isdir():
            yield info.name, info.isreg(), info.size, Reader(archive, info)


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(
        fnmatch.fnmatchcase(part, wanted) for part, wanted in zip(names, patterns, strict=True)
    )


def _safe(name: str, strip: int, archive: Path) -> PurePosixPath:
    """The member's path below the target folder."""
    path = PurePosixPath(name)
    unsafe = path.is_absolute() or "\\" in name or ":" in name or "\0" in name
    if unsafe or any(part in ("..", ".", "") for part in name.split("/")):
        raise ArchiveError(f"{archive.name}: {name} would leave the target folder")
    if len(path.parts) <= strip:
        raise ArchiveError(f"{archive.name}: {name} has no more than {strip} folders to cut off")
    return PurePosixPath(*path.parts[strip:])


def _copy(reader: Reader, target: Path, bound: int, archive: Path) -> int:
    """Bytes written; counts what really comes, since a header may lie about the size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with reader.open() as stream, target.open("wb") as file:
        while chunk := stream.read(CHUNK):
            done += len(chunk)
            if done > bound:
                raise ArchiveError(f"{archive.name}: unpacks to more than the bound")
            file.write(chunk)
    return done
