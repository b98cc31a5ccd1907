"""Pages whose figures come from result files: what stands between `<!-- name -->` and
`<!-- /name -->` is rendered, the rest is written by hand. docs/findings.md is rendered whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from analysis import claims
from analysis.pages import findings, headline, rivals
from analysis.results import Results
from analysis.rules import Verdict
from analysis.rules.ablations import FAR_LESS
from analysis.words import or_nothing

PAGES = ("README.md", "docs/rivals.md", "docs/speed.md", "docs/train.md")
FINDINGS = "docs/findings.md"
OURS, AUDIT = "ours", "Audit"  # sources of rows that are no figures of the paper
SHORT = re.compile(r"few(er)? (steps|than in the paper)")  # why a run refutes nothing
NOTES = {Verdict.ARITHMETIC: " (no evidence)"}
MEASURED = re.compile(r"[+-][\d.]+(%| points) \([^)]*\)")  # the first change in a row's words
MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.S)


def ledger(rows: list[claims.Row]) -> str:
    """How many rows have each verdict, by where they come from."""
    papers = [row for row in rows if row["source"] not in (OURS, AUDIT)]
    doubts, ours = ([row for row in rows if row["source"] == source] for source in (AUDIT, OURS))
    named = {"the paper's figures": papers, "doubts about the paper": doubts, "our additions": ours}
    lines = [["", *named], ["---", *["---:"] * len(named)]]
    for verdict in Verdict:
        counts = (str(claims.totals(own)[verdict]) for own in named.values())
        lines.append([verdict + NOTES.get(verdict, ""), *counts])
    lines.append(["all", *(str(len(own)) for own in named.values())])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(filter(None, [table, caveats(papers)]))


def caveats(rows: list[claims.Row]) -> str:
    """How many verdicts rest on the same measurement, and how many wait for longer runs."""
    agree, differ = (measurements(rows, verdict)
                     for verdict in (Verdict.DIRECTION, Verdict.NOT_REPRODUCED))  # fmt: skip
    left = [row["why"] for row in rows if row["verdict"] == Verdict.INCONCLUSIVE]
    short = sum(bool(SHORT.search(why)) for why in left)
    less = sum(FAR_LESS in why and not SHORT.search(why) for why in left)
    told = ""
    if agree and differ:
        told = (f"The rows at reduced scale rest on {agree} separate measurements, those not "
                f"reproduced on {differ}.")  # fmt: skip
    if short:
        told += f" For {short} of the inconclusive our training was too short."
    if less:
        told += f" Another {less} have the paper's direction, at less than half its size."
    return told.strip()


def measurements(rows: list[claims.Row], verdict: Verdict) -> int:
    """Of the rows with this verdict, those that do not repeat another's measurement."""
    return len({(row["evidence"],
                 found[0] if (found := MEASURED.search(row["why"])) else row["ours"])
                for row in rows if row["verdict"] == verdict})  # fmt: skip


# What can stand between markers, by name; and the ledger.
BLOCKS: dict[str, Callable[[Results], str]] = {
    "headline": headline.sentence, "results": headline.table, "speed": headline.speed,
    "spans": headline.spans, "gpu": headline.on_gpu, "gpu_spans": headline.on_gpu_shortly,
    "bfloat16": headline.in_bfloat16, "rounds": headline.rounds, "budgets": headline.budgets,
    "question": rivals.question, "rivals": rivals.beside, "methods": rivals.methods,
    "reached": rivals.reached, "shares": rivals.shares, "kinds": rivals.kinds,
    "sharing": rivals.sharing, "best": partial(findings.told, name="best"),
    "failed": partial(findings.told, name="failed"),
}  # fmt: skip


def rendered(text: str, results: Results, rows: list[claims.Row]) -> str:
    """A text with everything between markers written anew.

    Raises:
        ValueError: a marker that nothing is known for, or that has no end.
    """
    known = {**BLOCKS, "ledger": lambda _: ledger(rows)}
    opened = re.findall(r"<!-- (\w+) -->", text)
    ended = {match[1] for match in MARKED.finditer(text)}
    for name in opened:
        if name not in known or name not in ended:
            what = "has no end" if name in known else f"is unknown; there are {', '.join(known)}"
            raise ValueError(f"marker {name!r}: {what}")
    return MARKED.sub(lambda m: f"<!-- {m[1]} -->\n{or_nothing(partial(known[m[1]], results))}\n"
                                f"<!-- /{m[1]} -->", text)  # fmt: skip


def write(root: Path, results: Results, rows: list[claims.Row]) -> list[Path]:
    """Renders every page below a folder in place."""
    paths = [root / page for page in PAGES if (root / page).is_file()]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        path.write_text(rendered(text, results, rows), encoding="utf-8")
    if (root / FINDINGS).is_file():
        paths.append(root / FINDINGS)
        paths[-1].write_text(findings.page(results, rows), encoding="utf-8")
    return paths
