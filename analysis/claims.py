"""The claims ledger: one row for every figure of the paper and every doubt, verdicts by rule from
result files.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from analysis import rules
from analysis.paper import Claim, claims, model_name, paper
from analysis.results import Results
from analysis.settings import LedgerSettings
from analysis.tables import cell

FIELDS = (
    "id",
    "source",
    "statement",
    "kind",
    "paper",
    "ours",
    "low",
    "high",
    "n",
    "scale",
    "verdict",
    "why",
    "command",
    "evidence",
)
KINDS = (
    "perplexity",
    "score",
    "count",
    "parameters",
    "speed",
    "density",
    "balance",
    "categorical",
    "identity",
    "audit",
)
TEXTS_OF_A_BARE_MACHINE = ("shakespeare", "sotu", "wikitext-2", "enwik8", "GSM8K")


def stage_exists(stage: str) -> bool:
    """Whether the experiment that would measure a claim has been built."""
    return (
        stage == "analysis" or importlib.util.find_spec(f"experiments.stages.{stage}") is not None
    )


def reason(claim: Claim) -> str:
    """Why a claim has not been run, in concrete terms."""
    needs, model = [], paper()["models"].get(claim.model or "")
    built = stage_exists(claim.stage)
    if not built:
        needs.append(f"the stage `{claim.stage}` is not built yet")
    if claim.setting.get("hardware"):
        needs.append(f"needs a GPU (the paper: {claim.setting['hardware']})")
    elif model:
        needs.append(
            f"needs the weights of {model_name(str(claim.model))} ({model['hub']}) from the hub"
        )
    if claim.setting.get("cluster"):
        needs.append("needs a cluster to train on 2B tokens")
    text = claim.setting.get("text")
    if model and text and text not in TEXTS_OF_A_BARE_MACHINE and not claim.setting.get("hardware"):
        needs.append(f"needs {text} (hub, or a folder named by FOCUS_DATA)")
    if built:
        needs.append(f"no result that settles it under results/{claim.stage}/")
    return "; ".join(needs)


def command(claim: Claim) -> str | None:
    """The command that would measure a claim, None where its stage is not built."""
    if claim.stage == "analysis":
        return "python -m analysis"
    return f"python -m experiments.stages.{claim.stage}" if stage_exists(claim.stage) else None


def _number(value: float | None) -> float | None:
    """A finite float, None otherwise: JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


def row(claim: Claim, results: Results, settings: LedgerSettings) -> dict[str, Any]:
    """One row of the ledger."""
    found = rules.decide(claim, results, settings)
    known: dict[str, Any] = {
        "id": claim.id,
        "source": claim.source,
        "statement": claim.statement,
        "kind": claim.kind,
        "paper": claim.paper,
    }
    if found is None:
        empty = dict.fromkeys(("ours", "low", "high", "n", "scale", "evidence"))
        return {
            name: (
                known
                | empty
                | {"verdict": rules.NOT_RUN, "why": reason(claim), "command": command(claim)}
            )[name]
            for name in FIELDS
        }
    measured = {
        "ours": _number(found.ours),
        "low": _number(found.low),
        "high": _number(found.high),
        "n": found.n,
        "scale": found.scale or settings.scale,
        "verdict": found.verdict,
        "why": found.why,
        "command": found.command,
        "evidence": found.evidence,
    }
    return {name: (known | measured)[name] for name in FIELDS}


def build(results: Results, settings: LedgerSettings) -> list[dict[str, Any]]:
    """The whole ledger in the order of the paper, audit points last. Validated."""
    rows = [row(claim, results, settings) for claim in claims()]
    validate(rows)
    return rows


def validate(rows: list[dict[str, Any]]) -> None:
    """Raise ValueError, naming the row, where the ledger breaks its schema."""
    counts = Counter(entry.get("id") for entry in rows)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{twice[0]}: the ledger has this id more than once")
    for entry in rows:
        if tuple(entry) != FIELDS:
            raise ValueError(f"{entry.get('id')}: fields must be {', '.join(FIELDS)}")
        if entry["verdict"] not in rules.VERDICTS:
            raise ValueError(f"{entry['id']}: unknown verdict {entry['verdict']!r}")
        if entry["kind"] not in KINDS:
            raise ValueError(f"{entry['id']}: unknown kind {entry['kind']!r}")
        if not entry["why"]:
            raise ValueError(f"{entry['id']}: a verdict needs its reason in `why`")
        _validate_measured(entry)


def _validate_measured(entry: dict[str, Any]) -> None:
    measured = entry["verdict"] != rules.NOT_RUN
    if measured and not (entry["evidence"] and entry["command"] and entry["scale"]):
        raise ValueError(f"{entry['id']}: {entry['verdict']!r} needs evidence, command and scale")
    if not measured and entry["ours"] is not None:
        raise ValueError(f"{entry['id']}: not run, yet it has a figure of ours")
    if entry["low"] is not None and entry["high"] is not None and entry["low"] > entry["high"]:
        raise ValueError(f"{entry['id']}: the interval is upside down")


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many rows each verdict has, all verdicts named."""
    counts = Counter(entry["verdict"] for entry in rows)
    return {verdict: counts.get(verdict, 0) for verdict in rules.VERDICTS}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The ledger as Markdown: totals, then a table a source."""
    lines = [
        "# Claims ledger",
        "",
        "Written by `python -m analysis`; verdicts come from result files by rule, never by hand.",
        "",
    ]
    lines += [
        "`paper` is the paper's figure, `ours` was measured or computed here, at the scale named "
        "(of the model, text and length of the file's run). In audit rows the statement is the "
        "doubt itself. Commands are in `claims.csv`.",
        "",
        "| verdict | rows |",
        "| --- | ---: |",
    ]
    lines += [f"| {verdict} | {count} |" for verdict, count in totals(rows).items()]
    for source in dict.fromkeys(entry["source"] for entry in rows):
        lines += [
            "",
            f"## {source}",
            "",
            "| id | statement | paper | ours | interval | n | scale | verdict | why | evidence |",
        ]
        lines.append("| --- | --- | ---: | ---: | --- | ---: | --- | --- | --- | --- |")
        lines += [_markdown_row(entry) for entry in rows if entry["source"] == source]
    return "\n".join(lines) + "\n"


def _markdown_row(entry: dict[str, Any]) -> str:
    span = f"{cell(entry['low'])} to {cell(entry['high'])}" if entry["low"] is not None else ""
    evidence = f"`{entry['evidence']}`" if entry["evidence"] else ""
    values = [
        f"`{entry['id']}`",
        entry["statement"],
        entry["paper"],
        entry["ours"],
        span,
        entry["n"],
        entry["scale"],
        entry["verdict"],
        entry["why"],
        evidence,
    ]
    return "| " + " | ".join(cell(value) for value in values) + " |"


def write(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write claims.json, claims.csv and claims.md below `folder`; the schema is checked first."""
    validate(rows)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"claims.{suffix}" for suffix in ("json", "csv", "md")]
    paths[0].write_text(
        json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
    with paths[1].open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    paths[2].write_text(markdown(rows), encoding="utf-8")
    return paths
