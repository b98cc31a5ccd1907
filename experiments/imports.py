"""Which code a stage runs, as fingerprints by file: found by reading import statements.

With them in a stage's plan, another method, regime or reading beside those that an experiment uses
makes nothing run again, nor does a comment or a docstring; and no list of files is kept by hand.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".cpp", ".h")
# What these do stands in a stage's plan (settings), in the fingerprints of its data, or in no
# number of a result.
APART = (
    "experiments.settings", "experiments.plans", "experiments.imports", "experiments.record",
    "experiments.command", "experiments.sources", "experiments.texts.corpus",
    "experiments.texts.cleaning", "experiments.texts.overlap", "experiments.lengths",
)  # fmt: skip
KEPT = ("experiments.sources.models",)  # of those
SAME = Path(__file__).with_name("same.yaml")


def code(modules: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Digits of the sha256 of every file of ``experiments`` that the modules import, directly or
    not, and of the whole library.

    Raises:
        ValueError: there is no such module.
    """
    found: dict[str, Path] = {}
    left = list(modules)
    while left:
        module = left.pop()
        path = file_of(module, root)
        if path is None:
            raise ValueError(f"{module}: no such module below {root}")
        if module not in found:
            found[module] = path
            left += [each for each in imported(path, root) if not apart(each)]
    files = {path.relative_to(root).as_posix(): digits([path]) for path in found.values()}
    library = sorted(p for p in (root / "focus").rglob("*") if p.suffix in SUFFIXES)
    known = {**files, "focus": digits(library)}
    former = {file: own for name in files for file, own in gone().get(name, {}).items()}
    return former | {name: same().get((name, own), own) for name, own in known.items()}


@cache
def same() -> dict[tuple[str, str], str]:
    """Digits that results know a file by whose change was seen to change no row, by the file and
    the digits that it has now."""
    return {(file, known["now"]): known["as"]
            for each in listed() for file, known in each["files"].items()}  # fmt: skip


@cache
def gone() -> dict[str, dict[str, str]]:
    """Files that a file imports no more, with the digits that results know them by."""
    return {file: own for each in listed() for file, own in each.get("gone", {}).items()}


def listed() -> list[dict[str, Any]]:
    """The changes of same.yaml."""
    text = SAME.read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.load(text, yaml.CBaseLoader)  # noqa: S506 - all are texts, also bare digits
    return entries or []


@cache
def file_of(module: str, root: Path) -> Path | None:
    """The file of a module of ``experiments``; None where it is none."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module.split(".")[0] == "experiments" and path.is_file():
            return path
    return None


def imported(path: Path, root: Path) -> Iterator[str]:
    """The modules of ``experiments`` that a file imports, with the packages that they lie in."""
    return (each for each in mentioned(path.read_text(encoding="utf-8")) if file_of(each, root))


@cache
def mentioned(source: str) -> tuple[str, ...]:
    """Names of ``experiments`` that a file's imports hold, and what they lie in: each once."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        for parts in (name.split(".") for name in names if name.startswith("experiments.")):
            found |= dict.fromkeys(".".join(parts[:end]) for end in range(2, len(parts) + 1))
    return tuple(found)


def apart(module: str) -> bool:
    """Whether a module's part in a result stands elsewhere in its plan."""
    within = any(f"{module}.".startswith(f"{each}.") for each in APART)
    return within and module not in KEPT


def digits(files: Iterable[Path]) -> str:
    """12 digits of the sha256 of what files do, one after the other."""
    whole = hashlib.sha256()
    for path in files:
        text = path.read_text(encoding="utf-8")
        whole.update((effective(text) if path.suffix == ".py" else text).encode())
    return whole.hexdigest()[:12]


def attention(root: Path = ROOT) -> str:
    """Digits of every path of attention: timings of others are of other kernels."""
    own = digits(sorted((root / "focus" / "attention").rglob("*.py")))
    return same().get(("focus/attention", own), own)


@cache  # a plan reads each file hundreds of times
def effective(source: str) -> str:
    """A Python file without its docstrings, lines of comment and empty lines."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            told.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return "\n".join(line for number, line in lines if number not in told
                     and line.strip() and not line.lstrip().startswith("#"))  # fmt: skip
