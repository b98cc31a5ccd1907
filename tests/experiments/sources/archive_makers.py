"""Archives as tests need them; rows of the list with other fields."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from experiments.sources import Source


def make_tar(path: Path, members: dict[str, bytes]) -> Path:
    """A .tar.gz, with an entry for each folder."""
    with tarfile.open(path, "w:gz") as archive:
        for folder in sorted({each for name in members for each in list(Path(name).parents)[:-1]}):
            info = tarfile.TarInfo(str(folder))
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def below(folder: Path) -> list[str]:
    """Paths of all files below a folder."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def changed(source: Source, **fields) -> Source:
    """A row with other fields."""
    return Source(**{**source.model_dump(), **fields})
