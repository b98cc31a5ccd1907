"""Files of the Python package index, by version and checksum, through the ordinary pip client.

pip's own settings decide which index is asked, so a mirror or a folder of wheels works too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import DownloadColumn, Progress, TimeElapsedColumn

from experiments.sources.files import part_folder, remove_leftovers, sha256

if TYPE_CHECKING:
    from experiments.sources.catalogue import Source

DOWNLOADS = Path("data/downloads")


class SourceError(ValueError):
    """A source cannot be had; the message says what to install or where to put the file."""


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
    with part_folder(downloads, source.package) as part:
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
    """Runs pip; it is told the checksum too, so that no foreign build script is ever started.

    What pip unpacks on the way stays in `folder`, so a killed run leaves nothing elsewhere, and
    its growth is the progress that a terminal shows (pip's own output is mostly noise here).
    """
    (folder / "tmp").mkdir()
    wanted, said = folder / "tmp" / "wanted.txt", folder / "tmp" / "said.txt"
    wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    form = "--only-binary" if source.file.endswith(".whl") else "--no-binary"
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--no-cache-dir", form, source.package, "--dest", str(folder),
        "--requirement", str(wanted),
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str((folder / "tmp").resolve())}
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _watch(process, folder, source)
        finally:
            process.kill()  # nothing happens where it has ended
            process.wait()
    if process.returncode:
        raise SourceError(_pip_failed(source, said.read_text(errors="replace")))
    shutil.rmtree(folder / "tmp")


def _watch(process: subprocess.Popen, folder: Path, source: Source) -> None:
    """Waits for pip; on a terminal, with a bar of what has come."""
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(source.file, total=source.megabytes * 10**6 or None)
        while process.poll() is None:
            bar.update(task, completed=_largest(folder))
            time.sleep(0.05)


def _largest(folder: Path) -> int:
    """Bytes of the largest file below a folder that another process is changing."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # passes over a folder that goes meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


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
