"""What did not work, as the result files tell it."""

from __future__ import annotations

import pandas as pd

from analysis import lengths
from analysis.comparisons import MAIN_READING, Headline, headline, quality, versus
from analysis.pages.words import percent
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.tables import markdown, plural

LONGEST = "long_8192"  # the reading of the longest texts
# The same but for sinks, gate, scores and balance, under the balance that each is meant for.
SINKS = {"paper": "k2.symmetric.sinkhorn", "paper_sinks": "k2.symmetric.causal"}
SHORT = 512  # tokens
NAMES = {"forward": "a forward pass", "generation": "generation"}


def failed(results: Results) -> str:
    """What did not work, with the figures of the files that tell."""
    known, every = headline(results), quality(results)
    frame = known.family.of(every)
    found = [paper(results, every, known), quarter(frame, known), *longer(results), short(results)]
    return need("\n".join(f"- {each}" for each in found if each))


def paper(results: Results, frame: pd.DataFrame, known: Headline) -> str | None:
    """The paper's own mask on the headline's texts, against the model that it was trained on."""
    own = only(known.family.others(frame), role="paper", balance="sinkhorn",
               against=known.pretrained).set_index("top_k")  # fmt: skip
    if not {1, 2} <= set(own.index):
        return None
    return (f"**The paper's setup.** Two of its four groups keep "
            f"{own.loc[2, 'distant_density']:.0%} of the distant pairs and still cost "
            f"{percent(own.loc[2])} on the pretrained model. One group costs "
            f"{own.loc[1, 'change']:+.0%}.{on_adapted(results)}{with_sinks(results)}")  # fmt: skip


def on_adapted(results: Results) -> str:
    """The same mask of routers that were trained on the adapted model, as ours are."""
    pair = [results.cells.get(name) for name in ("paper_books_adapted", "adapted")]
    rows = versus(results, *pair) if all(pair) else ()
    found = [percent(row) for row in rows if row["budget"] == "k2.symmetric.sinkhorn"]
    return f" On the adapted model two groups cost {found[0]}." if found else ""


def with_sinks(results: Results) -> str:
    """What sinks and our gate change of it, on the text of the core path."""
    frame = only(quality(results), base_role="pretrained", reading="plays")
    plain, sinks = (row_of(frame, cell=cell, budget=budget) for cell, budget in SINKS.items())
    if plain is None or sinks is None:
        return ""
    steps = results.cells[sinks["cell"]].steps
    return (" Four sinks, our gate, cosine scores and causal balance together repair it. On plays, "
            f"after {steps} steps each, two groups then cost {percent(sinks)}; without them "
            f"{percent(plain)}.")  # fmt: skip


def quarter(frame: pd.DataFrame, known: Headline) -> str | None:
    """Trained groups beside a wider window at the largest budget that both were read at."""
    ours, window = known.rows(frame), only(frame, role="window")
    shared = sorted(set(ours["budget"]) & set(window["budget"]), key=float)
    if not shared:
        return None
    own, theirs = (only(each, budget=shared[-1]).iloc[0] for each in (ours, window))
    if own["change"] <= theirs["change"]:
        return None
    return (f"**More groups, not calibrated.** At {own['distant_density']:.0%} of the distant "
            f"pairs our groups cost {percent(own)}. A wider window with n-gram keys costs "
            f"{percent(theirs)}, with {theirs['distant_density']:.0%}.")  # fmt: skip


def longer(results: Results) -> list[str]:
    """What groups alone cost on the longest texts, and what calibration and more steps leave."""
    frame = lengths.table(results)
    own = only(frame, context=frame["context"].max()).set_index("cell")
    if not {"long_recipe", "long_longer_allocated"} <= set(own.index):
        return []
    one, other = own.loc["long_recipe"], own.loc["long_longer_allocated"]
    read = f"{plural(one['documents'], 'play')}, {plural(one['seeds'], 'seed')}"
    return [f"**Long texts, not calibrated.** Groups hide the few tokens that nearly every query "
            f"attends to. At {int(one['context']):,} tokens that costs {percent(one)} ({read}). "
            f"Calibrated, with 3x steps, it costs {percent(other)} "
            "([figure](results/figures/lengths.png))."]  # fmt: skip


def short(results: Results) -> str | None:
    """The least and the greatest ratio of times up to a few tokens, where something is lost."""
    own = results.whole
    own = own[own["length"] <= SHORT]
    ends = own.groupby("phase")["speedup"].agg(["min", "max"])
    told = [f"{NAMES[phase]} runs at {low:.2f} to {high:.2f} times"
            for phase, (low, high) in ends.iterrows() if low < 1]  # fmt: skip
    if not told:
        return None
    return (f"**Short texts.** Up to {SHORT} tokens {', '.join(told)} the speed of the pretrained "
            "model ([figure](results/figures/whole.png)).")  # fmt: skip


def sharing(results: Results) -> str:
    """What groups per head change, beside heavy hitters for every head: a row each measurement."""
    pairs = [("allocated", "heavy_untrained", MAIN_READING),
             ("long_longer_allocated", "long_longer_heavy", LONGEST)]  # fmt: skip
    if not {name for pair in pairs for name in pair[:2]} <= set(results.cells):
        raise Missing
    told = []
    for *names, reading in pairs:
        one, other = (results.cells[name] for name in names)
        rows = [row for row in versus(results, one, other) if row["reading"] == reading]
        told += [[f"{int(row['context']):,}", f"{row['distant_density']:.0%}", percent(row)]
                 for row in rows]  # fmt: skip
    head = ["tokens", "distant pairs", "groups per head, against the same number for all"]
    return "\n".join(markdown(head, told, "rrr"))
