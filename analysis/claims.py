"""The claims ledger: one row for every figure of the paper, every doubt and every statement of our
own; verdicts by rule from result files."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from analysis import rules
from analysis.commands import command, reason
from analysis.paper import Claim, claims
from analysis.results import Results
from analysis.rules import Verdict
from analysis.words import cell, number
from analysis.words import markdown as table_of
from experiments.settings import Tolerances

FIELDS = (
    "id", "source", "statement", "kind", "paper", "ours", "low", "high", "unit", "n", "scale",
    "verdict", "why", "command", "evidence",
)  # fmt: skip
Row = dict[str, Any]


def _number(value: float | None) -> float | None:
    """A finite float, None otherwise: JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


def row(claim: Claim, results: Results, limits: Tolerances) -> Row:
    """One row of the ledger."""
    found = rules.decide(claim, results, limits)
    known = {name: getattr(claim, name) for name in ("id", "source", "statement", "kind", "paper")}
    if found is None:
        told = {"verdict": Verdict.NOT_RUN, "why": reason(claim), "command": command(claim)}
        return dict.fromkeys(FIELDS) | known | told
    numbers = {name: _number(getattr(found, name)) for name in ("ours", "low", "high")}
    every = vars(found) | known | numbers | {"scale": found.scale or results.scale}
    return {name: every[name] for name in FIELDS}


def build(results: Results, limits: Tolerances) -> list[Row]:
    """The whole ledger in the order of the paper, our own statements and doubts last."""
    return [row(claim, results, limits) for claim in claims()]


def totals(rows: list[Row]) -> dict[str, int]:
    """How many rows each verdict has, all verdicts named."""
    counts = Counter(entry["verdict"] for entry in rows)
    return {verdict: counts.get(verdict, 0) for verdict in Verdict}


def not_run(rows: list[Row]) -> dict[str, list[str]]:
    """Ids of the rows that were not run, by reason, the most first."""
    found: dict[str, list[str]] = {}
    for entry in rows:
        if entry["verdict"] == Verdict.NOT_RUN:
            found.setdefault(entry["why"], []).append(entry["id"])
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def figure(entry: Row) -> str:
    """Our figure with its interval, in words; empty where there is none."""
    if entry["ours"] is None:
        return ""
    text = number(entry["ours"])
    if entry["low"] is not None and entry["high"] is not None:
        text += f" ({number(entry['low'])} to {number(entry['high'])})"
    return text


INTRODUCTION = """# Claims ledger

Written by `python -m analysis`; verdicts come from result files by rule, never by hand.
A statement has the paper's figure; *measured* has ours, and what the rule compared. In rows of \
the audit the statement is the doubt itself, and a verdict in its favour bears it out.
A command makes a row's measurement. What it is compared with is read by its own (`against` in \
`params.yaml`); `make report` then decides. A committed result that is up to date is not made \
again: delete its folder below `results/` first. The same rows in columns: \
[claims.csv](claims.csv); for programs: [claims.json](claims.json).
Trainings are told apart by their steps; the paper does not say how many tokens each of its has.
Hours of rows that were not run are estimates (`docs/reproduction.md`), of the row's own model; a \
command does all models of its experiment.
"""


def by_source(rows: list[Row]) -> list[str]:
    """Lines of Markdown: how many rows of each table have which verdict, the sum last."""
    head = ["of", *(verdict.partition(" (")[0] for verdict in Verdict)]
    found: dict[str, list[Row]] = {}
    for entry in rows:
        found.setdefault(entry["source"], []).append(entry)
    counted = [[name, *(str(count or "") for count in totals(own).values())]
               for name, own in (*found.items(), ("**all**", rows))]  # fmt: skip
    return table_of(head, counted)


def markdown(rows: list[Row]) -> str:
    """The ledger as Markdown: counts, a line a row that was judged, the others by reason."""
    lines = [INTRODUCTION, *by_source(rows)]
    for source in dict.fromkeys(entry["source"] for entry in rows):
        own = [e for e in rows if e["source"] == source and e["verdict"] != Verdict.NOT_RUN]
        if own:
            head = ["statement", "verdict", "measured", "scale", "id, command, file"]
            lines += ["", f"## {source}", "", *table_of(head, map(_cells, own), "lllll")]
    left = [[str(len(ids)), cell(why), " ".join(f"`{name}`" for name in ids)]
            for why, ids in not_run(rows).items()]  # fmt: skip
    lines += ["", "## Not run", "", *table_of(["rows", "reason", "ids"], left, "rll")]
    return "\n".join(lines) + "\n"


def _cells(entry: Row) -> list[str]:
    made = f"`{entry['id']}` `{entry['command']}` `{entry['evidence']}`"
    values = (entry["statement"], entry["verdict"], entry["why"], entry["scale"], made)
    return [cell(value) for value in values]


def write(rows: list[Row], folder: Path) -> list[Path]:
    """Write claims.csv, claims.json and claims.md below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"claims.{suffix}" for suffix in ("csv", "json", "md")]
    with paths[0].open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    # A row a line: a diff then shows the rows that changed.
    lines = (json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in rows)
    paths[1].write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    paths[2].write_text(markdown(rows), encoding="utf-8")
    return paths
