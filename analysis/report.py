"""The report page: one HTML file without network, from the ledger, the tables and the figures."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import claims, figures, rules, tables
from analysis.cells import ROLES
from analysis.comparisons import quality
from analysis.pages import headline
from analysis.results import Results
from analysis.rules import Verdict
from analysis.words import cell, or_nothing, percent

HERE = Path(__file__).parent
SHADES = {
    Verdict.REPRODUCED: "good",
    Verdict.DIRECTION: "fair",
    Verdict.ARITHMETIC: "plain",
    Verdict.CONTRADICTS: "odd",
    Verdict.NOT_REPRODUCED: "bad",
    Verdict.INCONCLUSIVE: "open",
    Verdict.NOT_RUN: "none",
}
SHORT = {Verdict.DIRECTION: "direction only"}


def write(results: Results, rows: list[claims.Row], path: Path) -> Path:
    """Write the page beside the results; figures are taken from the folder `figures` there."""
    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["number"] = cell
    made.filters["figure"] = claims.figure
    judged = [row for row in rows if row["verdict"] != Verdict.NOT_RUN]
    first = [row for row in judged if row["source"] in ("ours", "Audit")]
    page = made.get_template("page.html").render(
        scale=results.scale,
        shades=SHADES,
        short=SHORT,
        totals=claims.totals(rows),
        headline=re.sub(r"\[(.*?)\]\(.*?\)|`|\*\*", r"\1",
                        or_nothing(lambda: headline.sentence(results))),
        figures=pictures(path.parent / "figures"),
        first=first,
        rest=[row for row in judged if row not in first],
        refuted={row["id"]: rules.registry.matching(row["id"])[0][0].refuted
                 for row in judged},
        not_run=claims.not_run(rows),
        readings=readings(results),
        tables={name: len(frame) for name, frame in tables.every(results).items() if len(frame)},
    )  # fmt: skip
    path.write_text(page, encoding="utf-8")
    return path


def pictures(folder: Path) -> list[dict[str, str]]:
    """Figures as embedded SVG, with title and caption; those that were not drawn have no data."""
    found = []
    for name, shown in figures.FIGURES.items():
        path = folder / f"{name}.svg"
        data = base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""
        found.append({"title": shown.title, "caption": shown.caption, "data": data})
    return found


def readings(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The central table by reading, texts and base, in few columns that a page holds."""
    frame = quality(results)
    found: dict[str, list[dict[str, Any]]] = {}
    for (reading, texts, against), own in frame.groupby(
        ["reading", "texts", "against"], sort=False
    ):
        title = f"{texts}, against {against} ({reading})"
        found[title] = [_shown(row) for row in own.to_dict("records")]
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """One row for people."""
    kept = row["condition"] if row["condition"] != "hard" else f"{row['distant_density']:.1%}"
    groups = f"{row['top_k']:.0f} of {row['K']:.0f}" if row["K"] > 0 else ""
    return {
        "name": ROLES.get(row["role"], ""), "cell": row["cell"], "kept": kept, "groups": groups,
        "all": f"{row['density']:.1%}", "change": percent(row), "ppl": f"{row['ppl']:.2f}",
        "balance": row["balance"], "n": f"{row['documents']} x {row['seeds']}",
    }  # fmt: skip
