"""What masks lose on long-context tasks that perplexity does not show."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import ruler
from analysis.cells import ROLES
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Tasks in the manner of RULER, all together, in prompts of our own. Left: what the right "
    "answers cost above the same model under full attention. Right: answers every token of which "
    "is the likeliest; RULER lets a model write freely, so its scores are not these. In brackets: "
    "distant pairs kept. Question in full: the last 128 tokens see every pair. 72 questions at 1K "
    "and 2K, 36 at 4K, 18 at 8K. Bars: 95% intervals over questions (and seeds, where there are "
    "several), paired. None of these figures is the "
    "paper's."
)


def draw(results: Results) -> Figure:
    """Cost and answers found against length."""
    frame = need(only(ruler.table(results), task=ruler.EVERY))
    figure, (cost, found) = style.axes(2, 9.2, 3.9)
    frame = frame[frame["against"].map(lambda name: results.cells[name].role) != "ours"]
    shown = only(frame, role=ruler.SHOWN).drop_duplicates(["role", "length"])
    roles = [each for each in ruler.SHOWN if each in set(shown["role"])][: style.MOST - 2]
    shown = only(shown, role=roles)
    for number, role in enumerate(roles):
        own = only(shown, role=role).sort_values("length")
        look = style.look(role, number)
        label = f"{ROLES[role]} ({own['distant_density'].mean():.0%})"
        style.bars(cost, own["length"], own, "nats", 1, label=label, **look)
        ends = own.assign(low=own["base_found"] + own["points_low"],
                          high=own["base_found"] + own["points_high"])  # fmt: skip
        style.bars(found, own["length"], ends, "found", 1, **look)
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
        axis.set_xlabel("tokens of the prompt")
    style.legend(figure, [cost, found], 2)
    return figure
