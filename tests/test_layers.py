"""The library's files import each other in one direction, for types alone, too."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

FOCUS = Path(__file__).resolve().parents[1] / "focus"
MODULES = {
    ".".join(path.relative_to(FOCUS.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FOCUS.rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """Modules of the library that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name if name in MODULES else node.module for name in inner}
    return found & MODULES.keys()


def test_no_circle() -> None:
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    assert {"focus.call", "focus.terms"} <= graph["focus.interface"]
    TopologicalSorter(graph).prepare()  # CycleError names it
