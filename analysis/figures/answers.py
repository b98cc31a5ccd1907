"""What masks and training do to answers: benchmark scores, distance from the original model's,
long-context tasks, and passages that are read twice."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import answers, tables
from analysis.cells import ROLES, labels
from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, need, only
from analysis.words import either

# What masks a line has: its label, its look, and the experiments that it goes through.
LINES = (
    ("the paper's setup", "paper", ("answers_paper", "answers_paper_window")),
    ("the window alone", "window", ("answers_longformer", "answers_window")),
    ("ours (recipe)", "ours", ("answers", "answers_ours_window")),
)
# What was not read on these windows of plays (the paper's setup after all steps, on shorter ones).
UNREAD = {"adapted": "full attention, adapted to books", "ours": "ours (recipe), on books",
          "paper_steps": "the paper's setup, its 4,000 steps"}  # fmt: skip
# The role whose look a block has.
LORA = {"lora4": "adapted", "lora16": "random", "lora4_steps": "sparq", "lora16_steps": "heavy"}


def scores(results: Results) -> Figure:
    """Points against window and worked examples; Missing where only one of them was read."""
    own = need(only(answers.scores(results), texts=answers.ALL_FOUR,
                    experiment=[name for line in LINES for name in line[2]]))  # fmt: skip
    places = own[["shots", "window"]].drop_duplicates().sort_values(
        ["shots", "window"], ascending=[True, False]
    )  # fmt: skip
    if len(places) < 2:
        raise Missing
    order = {place: n for n, place in enumerate(places.itertuples(index=False, name=None))}
    figure, (axis,) = style.axes(1, 8.0, 4.2)
    for number, (label, role, names) in enumerate(LINES):
        line = only(own, experiment=names)
        where = line[["shots", "window"]].itertuples(index=False, name=None)
        at = [order[place] + 0.09 * (number - 1) for place in where]
        look = style.look(role) | {"linestyle": "none"}
        style.bars(axis, at, line, "points", 1, label=label, **look)
    axis.axhline(0, color=style.INK, linewidth=1.2, label="without a mask")
    axis.set_xticks(list(order.values()), [told(own, *place) for place in order])
    axis.set(xlim=(-0.6, len(order) - 0.4), ylabel="change of the score (points)",
             xlabel="window of the mask, worked examples, questions within its reach")  # fmt: skip
    return style.finished(figure, 4)


def told(rows: pd.DataFrame, shots: int, window: int) -> str:
    """A place on the axis in words."""
    own = only(rows, shots=shots, window=window)
    before = f"{shots} examples" if shots else "no examples"
    reached = (own["exposed_questions_percent"] * own["questions"] / 100).round().astype(int)
    least_and_most = dict.fromkeys((reached.min(), reached.max()))  # sinks differ by method
    counts = " to ".join(map(str, least_and_most))
    return f"{window} tokens\n{before}\n{counts} of {own['questions'].max()}"


def distances(results: Results) -> Figure:
    """Divergence against the change of perplexity."""
    every = need(answers.distances(results))
    frame = every.dropna(subset=["gain"])
    lengths = sorted(frame["before"].unique())
    if len(lengths) < 2:
        raise Missing
    figure, axes = style.axes(len(lengths), 10.4, 5.6, share=True)
    for axis, before in zip(axes, lengths, strict=True):
        for block, own in only(frame, before=before).groupby("experiment", sort=False):
            look = LORA.get(str(block), str(own["role"].iloc[0]))
            line(axis, own.sort_values("rate"), named(results, own), look)
        levels(axis, results, only(every[every["gain"].isna()], before=before))
        axis.axhline(0, color=style.INK, linewidth=1.2, zorder=0)
        axis.set_xlabel("change of perplexity on plays\nagainst the original model (%)")
        axis.set_title("bare questions" if not before else f"after {before:,} tokens of a play")
    axes[0].set_ylabel("KL divergence of answers (nats per token)")
    read = f"{either(frame['questions'], 'question')}; a line of LoRA goes through its learning"
    return style.finished(figure, 2, f"{read} rates from below")


def levels(axis: Axes, results: Results, rows: pd.DataFrame) -> None:
    """Lines across, of what has no perplexity on these windows of plays."""
    tuned = rows["cell"].map(lambda name: fully(results, name)).astype(bool)
    shown = rows[~tuned].to_dict("records")
    for number, row in enumerate(shown):
        role = "paper_steps" if row["role"] == "paper" else row["role"]
        dashes = (2 * number, (2, 2 * len(shown) - 2))  # one in the gaps of another
        axis.axhline(row["divergence"], color=style.look(role)["color"], linestyle=dashes,
                     label=f"{UNREAD.get(role, role)} (not read on these plays)")  # fmt: skip


def fully(results: Results, name: str) -> bool:
    """Whether a cell starts from weights that were all trained, on plays: it is in the table."""
    start = results.cells.get(results.cells[name].start or "")
    return start is not None and start.regime.get("name") == "full"


def named(results: Results, rows: pd.DataFrame) -> str:
    """What was trained, for how long, and at which rates."""
    cell = results.cells[rows["cell"].iloc[0]]
    if cell.block not in LORA:
        return ROLES[cell.role]
    rates = ", ".join(f"{rate:.0e}".replace("e-0", "e-") for rate in sorted(rows["rate"]))
    word = "rates" if len(rows) > 1 else "rate"
    return f"LoRA, rank {cell.regime['rank']}, {cell.steps:,} steps, {word} {rates}"


def line(axis: Axes, rows: pd.DataFrame, label: str, role: str) -> None:
    """One way to train or to mask."""
    axis.errorbar(
        100 * rows["gain"], rows["divergence"],
        style.spread(rows, "divergence", 1), style.spread(rows, "gain"),
        label=label, **style.look(role), **style.BAR,
    )  # fmt: skip


def tasks(results: Results) -> Figure:
    """Cost and answers found against length."""
    frame = need(only(answers.tasks(results), task=answers.ALL_TASKS))
    figure, (cost, found) = style.axes(2, 9.2, 3.9)
    frame = frame[frame["against"].map(lambda name: results.cells[name].role) != "ours"]
    shown = only(frame, role=answers.SHOWN).drop_duplicates(["role", "length"])
    roles = [each for each in answers.SHOWN if each in set(shown["role"])][: style.MOST - 2]
    shown = only(shown, role=roles)
    for number, role in enumerate(roles):
        own = only(shown, role=role).sort_values("length")
        look, aside = style.look(role, number), 2 ** (0.06 * (number - (len(roles) - 1) / 2))
        label = f"{ROLES[role]} ({shares(own['distant_density'])})"
        style.bars(cost, aside * own["length"], own, "nats", 1, label=label, **look)
        ends = own.assign(low=own["base_found"] + own["points_low"],
                          high=own["base_found"] + own["points_high"])  # fmt: skip
        style.bars(found, aside * own["length"], ends, "found", 1, **look)
    full = shown.drop_duplicates(["against", "length"]).sort_values("length")
    for base, own in full.groupby("against", sort=False):
        role = results.cells[str(base)].role
        found.plot(own["length"], own["base_found"], **style.look(role), markersize=5.5,
                   label=ROLES[role])  # fmt: skip
    cost.set_title("Cost against full attention", loc="left")
    found.set_title("Answers found", loc="left")
    cost.axhline(0, color=style.INK, linewidth=1.2)
    cost.set_ylabel("cost of the answer (nats per token)")
    found.set(ylabel="answers found (%)", ylim=(0, None))
    for axis in (cost, found):
        style.lengths(axis, sorted(shown["length"].unique()))
        asked = shown.groupby("length")["questions"].max()
        axis.set_xticks(list(asked.index), [f"{style.short(int(tokens))}\n{count}"
                                            for tokens, count in asked.items()])  # fmt: skip
        axis.set_xlabel("tokens of the prompt; questions")
    return style.finished(figure, 2)


def shares(kept: pd.Series) -> str:
    """Shares of the distant pairs kept at all lengths, in words."""
    ends = dict.fromkeys(f"{share:.0%}" for share in (kept.min(), kept.max()))
    return " to ".join(ends)


def copies(results: Results) -> Figure:
    """A bar an experiment and budget, at most seven."""
    frame = need(tables.copying(results))
    names = labels(results.cells[cell] for cell in dict.fromkeys(frame["cell"]))
    frame = frame.sort_values("copied").head(style.MOST)
    figure, (axis,) = style.axes(1, 8.0, 1.6 + 0.5 * len(frame))
    told = [f"{names[row['cell']]}, {'with' if row['ngram'] else 'without'} n-gram keys\n"
            f"{row['distant_density']:.0%} of the distant pairs"
            for _, row in frame.iterrows()]  # fmt: skip
    axis.barh(told, 100 * frame["copied"], 0.55, color=style.BLUE,
              xerr=style.spread(frame, "copied"),
              error_kw={"capsize": 3, "ecolor": style.INK})  # fmt: skip
    axis.axvline(100, color=style.INK, linewidth=1.3, label="as full attention")
    axis.set_xlim(left=min(0.0, 110 * frame["copied_low"].min()))
    axis.set_xlabel("gain from the first reading that is kept (%)")
    first = frame.iloc[0]
    return style.finished(figure, 2, f"{first['documents']} documents ({first['texts']})")
