"""A copy of the working tree at another scale, in which its pipeline runs.

`python -m experiments.scale [NAME]` prints the folder in which to run: this one, where params.yaml
is at that scale (or none is named); else build/NAME, which it makes, or brings to the state of this
tree. There params.yaml says `scale: NAME`; results, dvc.lock and files that were made there are
the copy's own and stay, so that a second run goes on from the first, and no tracked file of this
tree changes. Downloads are shared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.command import reported

FILE = Path("params.yaml")
SCALES = ("smoke", "laptop", "gpu", "cluster")
BUILD = Path("build")
DOWNLOADS = Path("data/downloads")
COPIED = Path(".git/copied.json")  # of the copy: sha256 of what was copied, by path
SCALE = re.compile(rb"^scale:[ \t]*(\w+)", re.MULTILINE)


@reported("scale")
def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scale", description=__doc__)
    parser.add_argument("name", nargs="?", help=", ".join(SCALES))
    name = parser.parse_args(arguments).name
    if name not in (*SCALES, None):
        raise ValueError(f"must be one of {', '.join(SCALES)}, got {name!r}")
    print(Path() if name is None or name == present() else copied(name))


def present() -> str:
    """The scale of params.yaml, found without the settings, which take seconds to import."""
    own = SCALE.search(FILE.read_bytes()) if FILE.is_file() else None
    if own is None:
        raise ValueError(f"{FILE}: has no line `scale: NAME`")
    return own[1].decode()


def copied(name: str) -> Path:
    """The folder of the copy: this tree's files, committed or not, params.yaml at that scale.

    Raises:
        ValueError: a file has been changed in the copy, which would be lost.
    """
    copy = BUILD / name
    if not (copy / ".git").is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--no-checkout", str(Path().resolve()), str(copy))
    git("-C", str(copy), "fetch", "--quiet", str(Path().resolve()), "HEAD")
    git("-C", str(copy), "reset", "--quiet", "--mixed", "FETCH_HEAD")  # files stay as they are
    wanted = {path: Path(path).read_bytes() for path in sorted(files())}
    wanted[str(FILE)] = SCALE.sub(f"scale: {name}".encode(), wanted[str(FILE)], count=1)
    follow(copy, wanted)
    for path in wanted:
        shutil.copymode(path, copy / path)
    link = copy / DOWNLOADS
    if not link.is_symlink():
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(DOWNLOADS.resolve())
    return copy


def follow(copy: Path, wanted: dict[str, bytes]) -> None:
    """Brings a copy's files to these contents, and removes those of an earlier call that are no
    longer among them.

    Raises:
        ValueError: as :func:`copied`; nothing is written.
    """
    record = copy / COPIED
    former = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    there = {path: (copy / path).read_bytes() for path in former.keys() | wanted.keys()
             if (copy / path).is_file()}  # fmt: skip
    changed = [path for path, content in sorted(there.items())
               if content != wanted.get(path) and former.get(path) != sha256(content)]  # fmt: skip
    if former and changed:
        raise ValueError(
            f"{copy}: {', '.join(changed)} was changed there, and would be overwritten; make the "
            "change here, and delete the file there"
        )
    for path in there.keys() - wanted.keys():
        (copy / path).unlink()
    for path, content in wanted.items():
        if there.get(path) != content:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes(content)
    known = {path: sha256(content) for path, content in wanted.items()}
    record.write_text(json.dumps(known), encoding="utf-8")


def files() -> set[str]:
    """Tracked files and those that git does not ignore, without what a pipeline writes."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {
        path for path in listed.split("\0")
        if path and not path.startswith("results/") and path != "dvc.lock"
        and Path(path).is_file()
    }  # fmt: skip


def sha256(content: bytes) -> str:
    """Of a file."""
    return hashlib.sha256(content).hexdigest()


def git(*arguments: str) -> str:
    """What git prints; its own error where it fails."""
    return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
