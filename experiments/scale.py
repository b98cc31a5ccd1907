"""A copy of the working tree at another scale, in which its pipeline runs.

`python -m experiments.scale [NAME]` prints the folder in which to run: this one, where params.yaml
is at that scale (or none is named); else build/NAME, which it makes, or brings to the state of this
tree. There params.yaml says `scale: NAME`; results and dvc.lock are the copy's own and stay, so
that a second run goes on from the first, and no tracked file of this tree changes. Downloads are
shared.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.settings.file import FILE, SCALES
from experiments.settings.schema import read_yaml

BUILD = Path("build")
DOWNLOADS = Path("data/downloads")
SCALE = re.compile(rb"^scale:[ \t]*\w+", re.MULTILINE)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 where there is no such scale."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scale", description=__doc__)
    parser.add_argument("name", nargs="?", help=", ".join(SCALES))
    name = parser.parse_args(arguments).name
    if name not in (*SCALES, None):
        print(f"SCALE: must be one of {', '.join(SCALES)}, got {name!r}", file=sys.stderr)
        return 1
    here = name is None or read_yaml(FILE).get("scale") == name
    print(Path() if here else copied(name))
    return 0


def copied(name: str, root: Path = Path()) -> Path:
    """The folder of the copy: this tree's files, committed or not, params.yaml at that scale."""
    copy = root / BUILD / name
    if not (copy / ".git").is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--no-checkout", str(root.resolve()), str(copy))
    git("-C", str(copy), "fetch", "--quiet", str(root.resolve()), "HEAD")
    git("-C", str(copy), "reset", "--quiet", "--mixed", "FETCH_HEAD")  # files stay as they are
    wanted = files(root)
    for path in files(copy) - wanted:
        (copy / path).unlink()
    for path in sorted(wanted):
        content, target = (root / path).read_bytes(), copy / path
        if path == str(FILE):
            content = SCALE.sub(f"scale: {name}".encode(), content, count=1)
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(root / path, target)
    link = copy / DOWNLOADS
    if not link.is_symlink():
        (root / DOWNLOADS).mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((root / DOWNLOADS).resolve())
    return copy


def files(root: Path) -> set[str]:
    """Tracked files and those that git does not ignore, without what a pipeline writes."""
    listed = git("-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {
        path for path in listed.split("\0")
        if path and not path.startswith("results/") and path != "dvc.lock"
        and (root / path).is_file()
    }  # fmt: skip


def git(*arguments: str) -> str:
    """What git prints; its own error where it fails."""
    return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
