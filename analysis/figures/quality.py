"""Quality against density: what masks cost beside full attention, on the texts of the headline and
by kind of text."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import ROLES, labels
from analysis.comparisons import Family, Headline, headline, headlines, point, quality
from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, only
from analysis.tables import plural

CAPTION = (
    "Change of perplexity against full attention (of the model that LoRA adapted on the "
    "same texts, with as many trained parameters), against the share of distant pairs that a mask "
    "keeps (window and sinks aside). Bars: 95% interval over seeds and documents, paired. Masks "
    "are causal, but for the paper's setup, which balances its groups over the whole sequence. "
    "Where its model was not adapted, its cost is the distance from the dashed line."
)
KINDS = (
    "Change of perplexity by kind of text, at the middle budget, against the same full model, with "
    "95% intervals over seeds and documents, paired."
)
# Of the lines; then rivals, if there is room.
FIRST = ("ours", "allocated", "longer_allocated", "paper_adapted", "window", "heavy", "random",
         "paper")  # fmt: skip
TEXTS = {"unseen": "held-out books", "books": "development books"}


def draw(results: Results) -> Figure:
    """The headline's texts."""
    return of(results, headline(results))


def core(results: Results) -> Figure:
    """The same of the second headline, the core's, where the first was read too."""
    known = headlines(results)
    if len(known) < 2:
        raise Missing
    return of(results, known[1])


def of(results: Results, known: Headline) -> Figure:
    """Lines of everything that was read on the same texts, as far as an eye keeps apart."""
    frame = known.family.of(quality(results))
    figure, (axis,) = style.axes(1, 8.0, 5.2)
    names = labels((results.cells[name] for name in frame["cell"].unique()), known.cell)
    for number, (cell, line) in enumerate(lines(frame, known, style.MOST - 2)):
        look = style.look(line["role"].iloc[0], number)
        # One and two of four groups are masks of their own, with nothing between.
        look = look | {"linestyle": ""} if "paper" in line["role"].iloc[0] else look
        style.bars(axis, 100 * line["distant_density"], line, label=names[cell], **look)
    axis.axhline(0, color=style.INK, linewidth=1.4, label=counted_against(results, known))
    above = point(results, known.pretrained, known.family)
    if above is not None:
        axis.axhline(100 * above["change"], color=style.INK, linestyle="--", linewidth=1.3,
                     label="pretrained model, full attention")  # fmt: skip
    finish(figure, axis, frame)
    style.title(figure, _title(known, frame))
    return figure


def finish(figure: Figure, axis: Axes, rows: pd.DataFrame) -> None:
    """Changes against pairs kept: axes that fit the rows, and a legend."""
    style.changes(axis, 100 * rows["low"].min(), 100 * rows["change"].max())
    axis.set(xlim=(0, None), xlabel="distant pairs kept (%)",
             ylabel=f"change of perplexity (%{style.scale(axis)})")  # fmt: skip
    style.legend(figure, [axis], 2)


def lines(frame: pd.DataFrame, known: Headline, most: int) -> list[tuple[str, pd.DataFrame]]:
    """At most so many cells, those that matter first; of the paper's setup the masks as it has
    them."""
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
    return ROLES[results.cells[known.family.against].role]


def _title(known: Headline, frame: pd.DataFrame) -> str:
    own = known.rows(frame).iloc[0]
    texts = TEXTS.get(known.family.texts, known.family.texts)
    fewest, most = frame["seeds"].min(), frame["seeds"].max()
    seeds = plural(most, "seed") if fewest == most else f"{fewest:.0f} to {most:.0f} seeds"
    return (f"{own['model']}, {int(own['documents'])} {texts}, {own['context']:,} tokens, "
            f"{seeds}")  # fmt: skip


def kinds(results: Results) -> Figure:
    """A row a kind of text, Missing where only one was read."""
    known = headline(results)
    own = only(quality(results), cell=known.cell, against=known.family.against, condition="hard",
               final=True)  # fmt: skip
    texts = own[["reading", "texts"]].drop_duplicates("texts").to_dict("records")
    if len(texts) < 2:
        raise Missing
    figure, (axis,) = style.axes(1, 8.0, 1.6 + 0.62 * len(texts))
    for place, found in enumerate(texts):
        family = Family(found["reading"], found["texts"], known.family.against)
        _kind(axis, results, family, known, place)
    axis.axvline(0, color=style.INK, linewidth=1.4)
    named = [TEXTS.get(found["texts"], found["texts"]) for found in texts]
    axis.set_yticks(range(len(texts)), named)
    axis.invert_yaxis()
    axis.set_xlabel(f"change of perplexity against the {counted_against(results, known)} (%)")
    style.legend(figure, [axis], 2)
    return figure


def _kind(axis: Axes, results: Results, family: Family, known: Headline, place: int) -> None:
    """The marks of one kind of text: the pretrained model, ours, and masks that learnt nothing."""
    frame = family.of(quality(results))
    middle = known.rows(known.family.of(quality(results)))["budget"].iloc[1:2]
    budget = middle.iloc[0] if len(middle) else frame["budget"].iloc[0]
    marks = [(cell, only(rows, budget=budget)) for cell, rows in lines(frame, known, 5)]
    above = point(results, known.pretrained, family)
    if above is not None:
        marks.append((known.pretrained, pd.DataFrame([above])))
    names = labels(results.cells[cell] for cell, _ in marks)
    shown = [(cell, rows) for cell, rows in marks if len(rows)]
    for number, (cell, rows) in enumerate(shown):
        look = style.look(results.cells[cell].role, number) | {"linestyle": ""}
        axis.errorbar(
            100 * rows["change"], [place + 0.13 * (number - (len(shown) - 1) / 2)] * len(rows),
            xerr=style.spread(rows), label=names[cell], **style.BAR, **look,
        )  # fmt: skip
