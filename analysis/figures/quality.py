"""What masks cost beside full attention: against pairs kept, by kind of text, beside other methods,
and against time (the paper's Figure 1)."""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import rivals, tables
from analysis.cells import ROLES, labels
from analysis.comparisons import Headline, above, headline, quality
from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, need, only
from analysis.words import either, plural

# Of the lines; then rivals, if there is room.
FIRST = ("ours", "allocated", "paper_adapted", "window", "random", "longer_allocated", "heavy",
         "paper")  # fmt: skip
# Of the figure of other methods: ours, and rivals that leave the weights alone and are no oracles.
MINE = ("ours", "allocated", "longer_allocated", "sparq_groups")
FROZEN = [role for role, about in rivals.ABOUT.items()
          if role not in rivals.CONTROLS and not about.every]  # fmt: skip
FOUND = style.MOST - len(MINE)  # of these
CLOCKED = ("ours", "heavy", "allocated", "longer_allocated", "window", tables.ON_ADAPTED)
TEXTS = {"unseen": "held-out books", "books": "development books"}


def draw(results: Results) -> Figure:
    """Lines of everything that was read on the headline's texts, as far as an eye keeps apart."""
    known = headline(results)
    frame = known.masks(quality(results))
    figure, (axis,) = style.axes(1, 8.0, 5.2)
    names = labels((results.cells[name] for name in frame["cell"].unique()), known.cell)
    for number, (cell, line) in enumerate(lines(frame, known, style.MOST - 2)):
        look = style.look(line["role"].iloc[0], number)
        # One and two of four groups are masks of their own, with nothing between.
        look = look | {"linestyle": ""} if "paper" in line["role"].iloc[0] else look
        style.bars(axis, 100 * line["distant_density"], line, label=names[cell], **look)
    axis.axhline(0, color=style.INK, linewidth=1.4, label=counted_against(results, known))
    full = above(results, known)
    if full is not None:
        axis.axhline(100 * full["change"], color=style.INK, linestyle="--", linewidth=1.3,
                     label="pretrained model, full attention")  # fmt: skip
    by_density(axis, frame)
    return style.finished(figure, 2, _title(known, frame))


def by_density(axis: Axes, rows: pd.DataFrame) -> None:
    """Changes against pairs kept: axes that fit the rows."""
    style.changes(axis, 100 * rows["low"].min(), 100 * rows["change"].max())
    axis.set(xlim=(0, None), xlabel="distant pairs kept (%)",
             ylabel=f"change of perplexity (%{style.scale(axis)})")  # fmt: skip


def lines(frame: pd.DataFrame, known: Headline, most: int) -> list[tuple[str, pd.DataFrame]]:
    """At most so many cells, those that matter first; the paper's under its own balance."""
    order = {role: place for place, role in enumerate(FIRST)}
    cells = frame[["cell", "role"]].drop_duplicates()
    shown = cells["role"].isin(FIRST) | ~cells["role"].isin(ROLES)
    cells = cells[shown & ((cells["role"] != "ours") | (cells["cell"] == known.cell))]
    cells = cells.assign(place=cells["role"].map(order).fillna(len(order)))
    found = []
    for cell in cells.sort_values("place", kind="stable")["cell"][:most]:
        own = only(frame, cell=cell)
        leaks = own["balance"] == "sinkhorn"
        own = own[leaks if own["role"].isin(("paper", "paper_adapted")).all() else ~leaks]
        found.append((cell, own.sort_values("distant_density")))
    return found


def counted_against(results: Results, known: Headline) -> str:
    """What changes are counted against, in words."""
    return ROLES[results.cells[known.against].role]


def _title(known: Headline, frame: pd.DataFrame) -> str:
    own = known.rows(frame).iloc[0]
    texts = TEXTS.get(known.texts, known.texts)
    return (f"{own['model']}, {int(own['documents'])} {texts}, {own['context']:,} tokens, "
            f"{either(frame['seeds'], 'seed')} a mark")  # fmt: skip


def kinds(results: Results) -> Figure:
    """A row a kind of text, Missing where only one was read."""
    known = headline(results)
    own = only(quality(results), cell=known.cell, against=known.against, condition="hard",
               final=True)  # fmt: skip
    texts = own[["reading", "texts"]].drop_duplicates("texts").to_dict("records")
    if len(texts) < 2:
        raise Missing
    figure, (axis,) = style.axes(1, 8.0, 1.6 + 0.62 * len(texts))
    middle = known.rows(quality(results))["budget"].iloc[1:2]
    for place, found in enumerate(texts):
        _kind(axis, results, dataclasses.replace(known, **found), list(middle), place)
    axis.axvline(0, color=style.INK, linewidth=1.4)
    count = own.groupby("texts")["documents"].max()
    named = [f"{TEXTS.get(text, text)} ({count[text]:.0f})"
             for text in (found["texts"] for found in texts)]  # fmt: skip
    axis.set_yticks(range(len(texts)), named)
    axis.invert_yaxis()
    axis.set_xlabel(f"change of perplexity against the {counted_against(results, known)} (%)")
    read = f"in brackets: documents; {either(own['seeds'], 'seed')} of ours"
    return style.finished(figure, 2, read)


def _kind(axis: Axes, results: Results, known: Headline, middle: list[str], place: int) -> None:
    """The marks of one kind of text: the pretrained model, ours, and masks that learnt nothing."""
    frame = known.masks(quality(results))
    (budget,) = middle or frame["budget"].iloc[:1]
    marks = [(cell, only(rows, budget=budget)) for cell, rows in lines(frame, known, 5)]
    full = above(results, known)
    if full is not None:
        marks.append((known.pretrained, pd.DataFrame([full])))
    names = labels(results.cells[cell] for cell, _ in marks)
    shown = [(cell, rows) for cell, rows in marks if len(rows)]
    for number, (cell, rows) in enumerate(shown):
        look = style.look(results.cells[cell].role, number) | {"linestyle": ""}
        axis.errorbar(
            100 * rows["change"], [place + 0.13 * (number - (len(shown) - 1) / 2)] * len(rows),
            xerr=style.spread(rows), label=names[cell], **style.BAR, **look,
        )  # fmt: skip


def beside_rivals(results: Results) -> Figure:
    """Missing where no rival was read beside ours."""
    frame = rivals.rows(results)
    frame = frame[pd.to_numeric(frame["budget"], errors="coerce").notna()]  # no mask by name
    if not frame["role"].isin(list(rivals.ABOUT)).any():
        raise Missing
    middle = sorted(frame["budget"].unique(), key=float)[frame["budget"].nunique() // 2]
    frame = rivals.variants(frame)
    order = only(frame, budget=middle)
    ours = order["role"].isin(MINE)
    best = order[ours | order["role"].isin(FROZEN)]
    best = best[best["role"].isin(MINE) | (best["role"].isin(FROZEN).cumsum() <= FOUND)]
    figure, (axis,) = style.axes(1, 8.0, 5.4)
    names = labels((results.cells[cell] for cell in best["cell"]), rivals.OURS)
    for number, (cell, role) in enumerate(zip(best["cell"], best["role"], strict=True)):
        line = only(frame, role=role).sort_values("distant_density")
        style.bars(axis, 100 * line["distant_density"], line, label=names[cell],
                   **style.look(role, number))  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.4)
    by_density(axis, frame[frame["role"].isin(best["role"])])
    axis.set_ylabel("change of perplexity against the\n"
                    f"adapted model, full attention (%{style.scale(axis)})")  # fmt: skip
    first = frame.iloc[0]
    title = (f"{first['model']}, {plural(first['documents'], 'held-out book')}, "
             f"{first['context']:,} tokens, {either(best['seeds'], 'seed')} a line")  # fmt: skip
    return style.finished(figure, 2, f"{title}\n{not_drawn(order, best)}")


def not_drawn(order: pd.DataFrame, best: pd.DataFrame) -> str:
    """How many other methods are in the table alone, and which controls beat what is drawn."""
    others = order["role"].isin(FROZEN) & ~order["role"].isin(best["role"])
    better = order[order["role"].isin(rivals.CONTROLS) & (order["change"] < best["change"].max())]
    better = better[~better["role"].str.startswith("trained_")]  # has another baseline
    left_out = [f"{plural(others.sum(), 'method')} that cost more"] * bool(others.any())
    left_out += [f"{ROLES[row['role']]} ({row['change']:+.1%})" for _, row in better.iterrows()]
    return f"in the table alone: {'; '.join([*left_out, 'oracles'])}"


def by_time(results: Results) -> Figure:
    """A mark a mask."""
    frame, known = need(tables.timed(results)), headline(results)
    figure, (axis,) = style.axes(1, 8.0, 5.0)
    for number, role in enumerate(each for each in CLOCKED if each in set(frame["role"])):
        own = only(frame, role=role).sort_values("time")
        look = style.look(role, number) | ({"linestyle": ""} if role == tables.ON_ADAPTED else {})
        axis.errorbar(
            100 * own["time"], 100 * own["change"], style.spread(own), style.spread(own, "time"),
            label=ROLES[role], **look, **style.BAR,
        )  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.4, label=counted_against(results, known))
    axis.plot([100], [0], color=style.INK, marker="D", markersize=7)
    style.changes(axis, 100 * frame["low"].min(), 100 * frame["change"].max())
    length = int(frame["length"].iloc[0])
    axis.set(
        xlim=(0, 104),
        xlabel=f"time of attention at {length:,} tokens, groups at random (% of full)",
        ylabel=f"change of perplexity at 2,048 tokens\n(%{style.scale(axis)})",
    )
    read = f"{either(frame['documents'], 'book')}, {either(frame['seeds'], 'seed')} a mark"
    at = f"quality at 2,048 tokens, time at {length:,}"
    return style.finished(figure, 2, f"{read}; {at}")
