"""Other methods beside ours: what each costs, and what it loses."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis import rivals, ruler
from analysis.cells import ROLES
from analysis.comparisons import quality
from analysis.pages.words import NONE, NOTHING, percent, pointed
from analysis.results import Results

LEFT_OUT = ("longer", "longer_heavy", "heavy", "masked")
MOST = 12
BEST = 7
KINDS = ("sparq", "ours", "quest", "window", "moba")


def shown(results: Results) -> pd.DataFrame:
    """Rivals and ours at the recipe's own budget, the best first."""
    frame = rivals.rows(results)
    own = frame[frame["budget"] == rivals.BUDGET].sort_values("change") if len(frame) else frame
    # A rival's variants, and most of ours, stand in the table of results/tables alone.
    return own[~own["role"].isin(LEFT_OUT)].drop_duplicates("role")


def best(results: Results) -> str:
    """The best that are no oracles: what each costs and loses."""
    own = shown(results)
    oracles = [role for role, about in rivals.ABOUT.items() if about.every]
    return compared(results, own[~own["role"].isin(oracles)].head(BEST))


def beside(results: Results) -> str:
    """What each costs and loses, a row each, full attention first."""
    own = shown(results).head(MOST)
    lost, _, full = answers(results)
    above = [] if full is None else [
        f"| full attention, adapted | 100% | {NONE} | 0 | {full:.0f}% found |"
    ]  # fmt: skip
    below = [f"| {ROLES[role]} | {kept:.1%} | {NONE} | {NONE} | {told} |"
             for role, (kept, told) in lost.items() if role == "window"]  # fmt: skip
    return compared(results, own, above, below)


def compared(results: Results, own: pd.DataFrame, above: Iterable[str] = (),
             below: Iterable[str] = ()) -> str:  # fmt: skip
    """A table of methods with their answers, and further rows."""
    if own.empty:
        return NOTHING
    lost, length, _ = answers(results)
    found = f"answers, {length:,} tokens" if length else "long-context answers"
    told = [f"{costs(row)} | {lost.get(row['role'], (0, NONE))[1]} |" for _, row in own.iterrows()]
    return "\n".join([f"| | distant pairs | computed to choose keys | perplexity | {found} |",
                      "| --- | ---: | --- | ---: | ---: |", *above, *told, *below])  # fmt: skip


def question(results: Results) -> str:
    """What full attention for a question and its answer brings back of the answers lost."""
    lost, length, _ = answers(results)
    told = [f"| {ROLES[role]} | {lost[role][1]} | {lost[f'{role}_last'][1]} |"
            for role in ("ours", "allocated") if {role, f"{role}_last"} <= set(lost)]  # fmt: skip
    if not told:
        return NOTHING
    return "\n".join([f"| answers, {length:,} tokens | mask alone | question in full |",
                      "| --- | ---: | ---: |", *told])  # fmt: skip


def kinds(results: Results) -> str:
    """The cost of the recipe and of rivals at its own budget, a row a kind of text."""
    frame = quality(results)
    own = frame[(frame["reading"] == "kinds") & (frame["budget"] == rivals.BUDGET)]
    own = own[(own["base_role"] == "adapted") & own["role"].isin(KINDS)]
    if own.empty:
        return NOTHING
    roles = [role for role in KINDS if role in set(own["role"])]
    lines = [f"| | {' | '.join(ROLES[role] for role in roles)} |",
             f"| --- {'| ---: ' * len(roles)}|"]  # fmt: skip
    for texts, rows in own.groupby("texts"):
        told = [rows[rows["role"] == role] for role in roles]
        cells = [percent(each.iloc[0]) if len(each) else NONE for each in told]
        lines.append(f"| {texts} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(row: pd.Series) -> str:
    """Name, pairs, what is computed to choose them, perplexity: cells of a row."""
    about = rivals.ABOUT.get(row["role"])
    chosen = about.scores if about else "each token with each centroid"
    return (f"| {ROLES.get(row['role'], row['cell'])} | {row['distant_density']:.1%} | {chosen} | "
            f"{percent(row)}")  # fmt: skip


def answers(results: Results) -> tuple[dict[str, tuple[float, str]], int, float | None]:
    """By role, the share of the distant pairs kept and the points of long-context answers lost
    against the adapted model; the length of the prompts, the longest that all were asked at;
    percent that the adapted model finds."""
    frame = ruler.table(results)
    every = frame[(frame["task"] == ruler.EVERY) & frame["role"].isin(ruler.SHOWN)]
    based = every["against"].map(lambda name: results.cells[name].role) == "adapted"
    own = every[based]
    if own.empty:
        return {}, 0, None
    asked = own.groupby("length")["role"].nunique()
    length = int(asked[asked == asked.max()].index.max())
    own = own[own["length"] == length].sort_values("points", ascending=False)
    told = {row["role"]: (row["distant_density"], pointed(row)) for _, row in own.iterrows()}
    return told, length, float(own["base_found"].iloc[0])
