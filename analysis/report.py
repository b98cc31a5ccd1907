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
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))


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
    """Hard top-k at a glance: perplexity against pretrained, by variant, k and balance."""
    frame = results.topk
    if frame.empty:
        return "<p>No results of the top-k stage yet.</p>"
    body = []
    for row in frame[frame["mode"].isin(["hard", "pretrained"])].to_dict("records"):
        hard = row["mode"] == "hard"
        name = (
            f"top-{row['top_k']:.0f} of {row['K']:.0f}, {row['sinks']:.0f} sinks, {row['balance']}"
            if hard
            else "pretrained"
        )
        change = (
            f"{row['delta']:+.2%} <small>({row['delta_low']:+.2%} to "
            f"{row['delta_high']:+.2%})</small>"
            if hard
            else ""
        )
        kept = (
            f"{row['density']:.1%} <small>({row['distant_density']:.1%} of distant)</small>"
            if hard
            else "100%"
        )
        body.append(
            f"<tr><td>{esc(row['variant'])}</td><td>{esc(name)}</td><td "
            f"class=n>{kept}</td><td class=n>{row['ppl']:.2f} "
            f"<small>({row['ppl_low']:.2f} to {row['ppl_high']:.2f})</small></td><td "
            f"class=n>{change}</td>"
            f"<td class=n>{row['n_documents']:.0f}</td></tr>"
        )
    head = (
        "<tr><th>variant<th>setting<th class=n>pairs kept<th class=n>perplexity<th "
        "class=n>against pretrained<th class=n>documents</tr>"
    )
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


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
