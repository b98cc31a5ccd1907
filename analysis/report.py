"""The report page: one HTML file without network, from the ledger, the tables and the figures."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import claims, figures, rules, tables
from analysis.results import Results

HERE = Path(__file__).parent
TITLES = {
    "topk": "Perplexity against pairs kept",
    "speed": "Speed-up against length",
    "leak": "What Sinkhorn over the sequence leaks",
    "pareto": "Recipe, paper's way and controls",
    "transfer": "The recipe on other texts",
    "copying": "What perplexity hides: a passage that comes twice",
    "search": "One change of the recipe at a time",
    "decode": "Speed-up of a decoding step",
    "whole": "The whole model by the recipe against the pretrained one",
}
SHADES = {
    rules.REPRODUCED: "good",
    rules.DIRECTION: "fair",
    rules.ARITHMETIC: "plain",
    rules.NOT_REPRODUCED: "bad",
    rules.INCONCLUSIVE: "open",
    rules.NOT_RUN: "none",
}
# Claims that stand on the front, by id; everything else is one click away.
HEADLINES = re.compile(r"audit\..*|table7\..*\.ppl|decomposition\..*")
SHORT = {rules.DIRECTION: "direction only"}


def esc(value: Any) -> str:
    """A value as HTML text; nothing where there is none."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    return html.escape(tables.number(value) if isinstance(value, float) else str(value))


def tag(verdict: str) -> str:
    """A verdict as a coloured label."""
    return f'<span class="tag {SHADES[verdict]}">{esc(SHORT.get(verdict, verdict))}</span>'


def counts(rows: list[dict[str, Any]]) -> str:
    """How many rows each verdict has, as a strip and as tiles."""
    totals = claims.totals(rows)
    strip = "".join(
        f'<i class="{SHADES[v]}" style="flex:{n}" title="{esc(v)}: {n}"></i>'
        for v, n in totals.items()
        if n
    )
    tiles = "".join(
        f'<div class="tile"><b>{n}</b><span class="dot {SHADES[v]}"></span>{esc(v)}</div>'
        for v, n in totals.items()
    )
    return f'<div class="strip">{strip}</div><div class="tiles">{tiles}</div>'


def span(entry: dict[str, Any]) -> str:
    """Our figure with its interval and what it rests on."""
    if entry["ours"] is None:
        return ""
    text = f"<b>{esc(entry['ours'])}</b>"
    if entry["low"] is not None and entry["high"] is not None:
        text += f" <small>({esc(entry['low'])} to {esc(entry['high'])})</small>"
    return text + (f" <small>n = {entry['n']}</small>" if entry["n"] else "")


def findings(rows: list[dict[str, Any]]) -> str:
    """Doubts that were measured, then the main claims; the other measured rows folded away."""
    measured = [r for r in rows if r["verdict"] != rules.NOT_RUN and r["kind"] != "parameters"]
    if not measured:
        return "<p>Nothing has been measured yet: every row below says what it needs.</p>"
    doubts_first = sorted(measured, key=lambda r: r["kind"] != "audit")
    first = [r for r in doubts_first if HEADLINES.fullmatch(r["id"])]
    rest = [r for r in measured if r not in first]
    more = (
        f"<details><summary>{len(rest)} further measured claims</summary>{_found(rest)}</details>"
    )
    return _found(first) + (more if rest else "")


def _found(rows: list[dict[str, Any]]) -> str:
    body = []
    for r in rows:
        origin = " · ".join(esc(r[name]) for name in ("source", "scale") if r[name])
        origin += "".join(f" · <code>{esc(r[name])}</code>" for name in ("evidence", "command"))
        body.append(
            f"<tr><td>{tag(r['verdict'])}</td><td><b>{esc(r['statement'])}</b><br>{esc(r['why'])}"
            f"<br><small>{origin}</small></td>"
            f"<td class=n>{esc(r['paper'])}</td><td class=n>{span(r)}</td></tr>"
        )
    head = (
        "<tr><th>verdict<th>claim or doubt, and what was found<th class=n>paper<th "
        "class=n>ours</tr>"
    )
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def quality(results: Results) -> str:
    """Pretrained, soft and hard perplexity at a glance, by variant, k and balance."""
    frame = results.topk
    if frame.empty:
        return "<p>No results of the top-k stage yet.</p>"
    head = "".join(
        f"<th{' class=n' if i > 1 else ''}>{name}"
        for i, name in enumerate(
            ("variant", "setting", "pairs kept", "perplexity", "against pretrained", "documents")
        )
    )
    body = "".join(_quality_row(row) for row in frame.to_dict("records"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _quality_row(row: dict[str, Any]) -> str:
    change, kept, name = "", "100%", row["mode"]
    if row["mode"] != "pretrained":
        name = f"{row['mode']}, {row['balance']}"
        change = f"{row['delta']:+.2%} {between(row['delta_low'], row['delta_high'], '+.2%')}"
    if row["mode"] == "hard":
        probe = "" if row["probe"] == "symmetric" else f", {row['probe']}"
        name = f"hard top-{row['top_k']:.0f} of {row['K']:.0f}, {row['balance']}{probe}"
        kept = f"{row['density']:.1%} <small>({row['distant_density']:.1%} of distant)</small>"
    name += f", {row['sinks']:.0f} sinks" if row["mode"] != "pretrained" else ""
    ppl = f"{row['ppl']:.2f} {between(row['ppl_low'], row['ppl_high'], '.2f')}"
    return (
        f"<tr><td>{esc(row['variant'])}</td><td>{esc(name)}</td><td class=n>{kept}</td>"
        f"<td class=n>{ppl}</td><td class=n>{change}</td>"
        f"<td class=n>{row['n_documents']:.0f}</td></tr>"
    )


def between(low: float, high: float, form: str) -> str:
    """An interval in small print."""
    return f"<small>({low:{form}} to {high:{form}})</small>"


def picture(name: str, folder: Path) -> str:
    """A figure as an embedded SVG, nothing where it was not drawn."""
    path = folder / f"{name}.svg"
    if not path.is_file():
        return f"<p class=missing>{TITLES[name]}: no result files yet.</p>"
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><h3>{TITLES[name]}</h3><img alt="{TITLES[name]}" '
        f'src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{esc(figures.CAPTIONS[name])}</figcaption></figure>"
    )


def data_table(name: str, frame: pd.DataFrame) -> str:
    """A table of the stages, folded away."""
    head = "".join(f"<th>{esc(column)}" for column in frame.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{esc(value)}</td>" for value in row) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return (
        f"<details><summary>{esc(name)} <small>{len(frame)} rows, "
        f"results/tables/{esc(name)}.csv</small></summary>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def ledger(rows: list[dict[str, Any]]) -> str:
    """Every row, with filters by text, verdict and source."""
    body = "".join(
        f'<tr data-verdict="{esc(r["verdict"])}" '
        f'data-source="{esc(r["source"])}"><td><code>{esc(r["id"])}</code><br><small>{esc(r["source"])}</small></td>'
        f"<td>{esc(r['statement'])}</td><td class=n>{esc(r['paper'])}</td><td "
        f"class=n>{span(r)}</td><td>{tag(r['verdict'])}</td>"
        f"<td><small>{esc(r['why'])}</small></td><td><small><code>{esc(r['evidence'])}</code><br><code>{esc(r['command'])}</code></small></td></tr>"
        for r in rows
    )
    verdicts = "".join(f"<option>{esc(v)}" for v in rules.VERDICTS)
    sources = "".join(f"<option>{esc(s)}" for s in dict.fromkeys(r["source"] for r in rows))
    return (
        '<div class=filters><input id=text type=search placeholder="search id, '
        'statement, reason" aria-label="search">'
        f"<select id=verdict aria-label=verdict><option value=''>all verdicts{verdicts}</select>"
        "<select id=source aria-label=source><option value=''>all "
        f"sources{sources}</select><span id=shown></span></div>"
        "<table id=ledger><thead><tr><th>id<th>statement<th class=n>paper<th "
        "class=n>ours<th>verdict<th>why<th>evidence, "
        f"command</tr></thead><tbody>{body}</tbody></table>"
    )


def write(results: Results, rows: list[dict[str, Any]], path: Path) -> Path:
    """Write the page beside the results; figures are taken from the folder `figures` there."""
    shown = [picture(name, path.parent / "figures") for name in figures.FIGURES]
    made = {name: make(results) for name, make in tables.TABLES.items()} | {
        n: f() for n, f in tables.ALWAYS.items()
    }
    parts = {
        "counts": counts(rows),
        "findings": findings(rows),
        "quality": quality(results),
        "figures": "".join(shown),
        "tables": "".join(
            data_table(name, frame) for name, frame in made.items() if not frame.empty
        ),
        "ledger": ledger(rows),
        "rows": str(len(rows)),
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    path.write_text(page, encoding="utf-8")
    return path
