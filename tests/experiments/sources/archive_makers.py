"""Archives as tests need them, good ones and wicked ones; rows of the list with other fields."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

from experiments.sources import Source


def make_tar(path: Path, *members: tuple[str, bytes | str, bytes]) -> Path:
    """A .tar.gz of (name, content, type); for a link the content is its target."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    return path


def make_zip(path: Path, members: dict[str, bytes], mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


def regular(name: str, content: bytes = b"x") -> tuple[str, bytes, bytes]:
    return (name, content, tarfile.REGTYPE)


def below(folder: Path) -> list[str]:
    """Paths of all files below a folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def changed(source: Source, **fields) -> Source:
    """A row with other fields."""
    return Source(**{**source.model_dump(), **fields})
