"""The recipe's cost and speed: the sentence and the table that open README."""

from __future__ import annotations

import pandas as pd

from analysis.cells import ROLES
from analysis.comparisons import SAME, Headline, compared, headline, overall, quality
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.words import NONE, markdown, percent, plural, ranged
from experiments import imports

# FocusConfig.recipe() at its default: the configuration whose speed is timed.
RECIPE = {"K": 18, "top_k": 2, "probe": "multi_probe", "ngram": 3}
MOST_ROWS = 5
ADDED = ("allocated", "longer_allocated")  # roles: the recipe, and more
PAPER = ("paper_adapted", "paper")  # on the model that ours start from, or else as it has it
BASES = {
    "adapted": "the same model with full attention, adapted by LoRA to other books",
    "pretrained": "the pretrained model",
}
TEXTS = {"unseen": "held-out books"}
TIMED = {"ours": "recipe", "allocated": "calibrated"}
PHASES = {"forward": "forward pass", "generation": "generation"}


def sentence(results: Results) -> str:
    """The recipe's cost, and what calibration leaves of it."""
    known = headline(results)
    row = default_row(results, known)
    read = f"{int(row['documents'])} {TEXTS.get(row['texts'], row['texts'])}"
    text = (f"On {read} `FocusConfig.recipe()` changes perplexity by **{percent(row)}** and keeps "
            f"{row['distant_density']:.1%} of the distant pairs.")  # fmt: skip
    beside = better(results, known, row)
    if "allocated" in beside.index:
        text += f" Calibrated: {at(beside.loc['allocated'])}."
    return (f"{text} The baseline is {BASES[row['base_role']]}.{elsewhere(results)} Intervals are "
            f"95%, over documents and {plural(row['seeds'], 'seed')}.")  # fmt: skip


def at(row: pd.Series) -> str:
    """A cost, and the share of the distant pairs that was kept for it."""
    return f"**{percent(row)}** at {row['distant_density']:.1%}"


def elsewhere(results: Results) -> str:
    """What both cost on other kinds of text; empty where none was read."""
    try:
        own, more = (overall(results, name, "fresh_adapted", "fresh")
                     for name in ("fresh_recipe", "fresh_allocated"))  # fmt: skip
    except Missing:
        return ""
    return (
        f" On {int(own['documents'])} documents of other kinds ({', '.join(own['texts'])}), "
        f"opened only after everything was fixed: {at(own)}, calibrated {at(more)}.")  # fmt: skip


def table(results: Results) -> str:
    """At most five configurations: quality, density and speed of each in its row."""
    known = headline(results)
    frame = known.masks(quality(results))
    own, middle = known.rows(frame), default_row(results, known)
    same = only(frame, budget=middle["budget"])
    beside = better(results, known, middle)
    if len(beside):
        own = pd.concat([only(own, budget=middle["budget"]), beside])
    paper = only(frame, role=PAPER, top_k=2, balance="sinkhorn")
    paper = paper.sort_values("role", key=lambda role: role.map(PAPER.index)).head(1)
    window, random = (only(same, role=role) for role in ("window", "random"))
    rows = pd.concat([own, window, paper, random]).head(MOST_ROWS)
    head = ["perplexity on books", "distant pairs", f"against {middle['base_role']}",
            "against pretrained", "forward pass (tokens)", "from"]  # fmt: skip
    cells = [_row(results, known, row) for _, row in rows.iterrows()]
    return "\n".join(markdown(head, cells))


def budgets(results: Results) -> str:
    """What one, two and four groups per query keep and cost, alone and calibrated."""
    known = headline(results)
    roles = ("ours", *ADDED)
    frame, rows = only(known.masks(quality(results)), role=roles), []
    for top_k, own in frame.groupby("top_k"):
        kept = own["distant_density"].agg(["min", "max"])
        ends = dict.fromkeys(f"{each:.0%}" for each in kept)  # one where both are the same
        costs = [percent(row_of(own, role=role)) for role in roles]
        rows.append([f"{top_k:.0f}", " to ".join(ends), *costs])
    head = ["groups per query", "distant pairs", *(ROLES[role] for role in roles)]
    return "\n".join(markdown(head, rows, "r" * len(head)))


def is_recipe(rows: pd.DataFrame) -> pd.Series:
    """Which rows have the mask of FocusConfig.recipe() at its default."""
    return (rows[list(RECIPE)] == list(RECIPE.values())).all(axis=1)


def default_row(results: Results, known: Headline) -> pd.Series:
    """The headline's row under the recipe's default mask, or else at its middle budget."""
    own = known.rows(quality(results))
    same = own[is_recipe(own)]
    return same.iloc[0] if len(same) else own.iloc[(len(own) - 1) // 2]


def against_pretrained(results: Results, known: Headline, row: pd.Series) -> pd.Series | None:
    """The same mask and texts against the pretrained model; None where that is the base."""
    if known.pretrained in (None, row["against"]):
        return None
    own, base = results.cells[row["cell"]], results.cells[known.pretrained]
    return row_of(compared(results, own, base, **row[SAME]))


def better(results: Results, known: Headline, default: pd.Series) -> pd.DataFrame:
    """What was added to the recipe, on the headline's texts and at its default budget, by role."""
    own = only(known.masks(quality(results)), role=ADDED, budget=default["budget"])
    place = own["role"].map(list(ADDED).index)
    return own.assign(place=place).sort_values("place").set_index("role", drop=False)


def _row(results: Results, known: Headline, row: pd.Series) -> list[str]:
    """Cells of a line of the table."""
    default = row["role"] == "ours" and bool(is_recipe(pd.DataFrame([row])).iloc[0])
    name = ROLES.get(row["role"], row["cell"])
    if row["role"] in ("ours", *ADDED, *PAPER):
        name += f", {int(row['top_k'])} of {int(row['K'])} groups"
    name = f"**{name}**" if default else name
    beside = against_pretrained(results, known, row)
    fair = row["base_role"] == "pretrained" or starts_from(results, row["cell"], row["against"])
    return [name, f"{row['distant_density']:.1%}", percent(row if fair else None), percent(beside),
            forward(results, row),
            f"[{plural(row['seeds'], 'seed')}]({row['evidence']})"]  # fmt: skip


def starts_from(results: Results, name: str, base: str) -> bool:
    """Whether a cell was trained on, or read as, the model that another one trained: without that,
    what lies between the two is the other's training, too."""
    found: str | None = name
    while found is not None and found != base:
        cell = results.cells.get(found)
        found = None if cell is None else cell.start
    return found == base


def forward(results: Results, row: pd.Series) -> str:
    """How many times as fast a forward pass by the same routers and mask is: on texts as long as
    those read, and on the longest that were timed."""
    own = only(results.whole, phase="forward", experiment=row["cell"])
    if own.empty or not is_recipe(pd.DataFrame([row])).iloc[0]:
        return NONE
    longest = own["length"].max()
    own = own[own["length"].isin([row["context"], longest])].sort_values("length")
    told = ", ".join(f"{each['speedup']:.1f}x at {int(each['length']):,}"
                     for _, each in own.iterrows())  # fmt: skip
    return f"[{told}]({own['evidence'].iloc[-1]})"


def speed(results: Results) -> str:
    """Speed of the whole model over the pretrained one, by length, phase, and what was timed."""
    return "\n".join(by_length(columns(results.whole)))


def in_bfloat16(results: Results) -> str:
    """The same in bfloat16, which some processors have tile registers for."""
    frame = need(only(results.timed, dtype="bfloat16", device="cpu"))
    tiles = f" {'with' if frame['amx'].iloc[0] else 'without'} AMX"
    return "\n".join([*by_length(columns(frame)), "", made(results, frame, tiles)])


def made(results: Results, rows: pd.DataFrame, tiles: str = "") -> str:
    """When rows were timed, on what, and of which library."""
    run = results.run_of(rows["evidence"].iloc[0])
    return (f"{run['finished'][:10]}, {run['hardware']['cpu']}{tiles}, "
            f"commit {run['commit']['id'][:7]}.")  # fmt: skip


def columns(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Timings by phase and by what was timed."""
    known = need(frame).groupby(["phase", "role"], sort=False)
    return {f"{PHASES[phase]}, {TIMED.get(role, role)}": own.set_index("length")
            for (phase, role), own in known}  # fmt: skip


def by_length(timed: dict[str, pd.DataFrame]) -> list[str]:
    """A table of timings that are indexed by length, a column each."""
    lengths = sorted({int(each) for own in timed.values() for each in own.index})
    rows = [[f"{length:,}", *(times(own, length) for own in timed.values())] for length in lengths]
    return markdown(["context (tokens)", *timed], rows)


def spans(results: Results) -> str:
    """The recipe's speed: at the shortest length, one between, and the longest; and where it is
    slowest, and calibrated slowest."""
    every = need(results.whole)
    frame, told = need(only(every, role="ours")), []
    for phase in PHASES:
        own = only(frame, phase=phase).set_index("length").sort_index()
        if len(own):
            told.append(phrase(phase, own.iloc[sorted({0, len(own) // 2, len(own) - 1})]))
    for name, own in (("Slowest", frame), ("Slowest calibrated", only(every, role="allocated"))):
        if len(own):
            least = own.loc[own["speedup"].idxmin()]
            told.append(f"{name}: {PHASES[least['phase']]}, {int(least['length']):,} tokens, "
                        f"{least['speedup']:.2f}x.")  # fmt: skip
    return " ".join(told)


def phrase(phase: str, rows: pd.DataFrame) -> str:
    """Speeds of one phase, indexed by length, in words."""
    where = "at" if phase == "forward" else "after"
    found = [f"{speed:.2f}x {where} {length:,}" for length, speed in rows["speedup"].items()]
    return f"{PHASES[phase].capitalize()}: {', '.join(found)} tokens."


def gpu_times(results: Results, phase: str, name: str) -> pd.DataFrame:
    """Speeds of a whole model with random weights on a GPU, indexed by length."""
    own = need(results.gpu_steps("prefill" if phase == "forward" else phase))
    ends = {"low": "speedup_low", "high": "speedup_high"}
    return pd.DataFrame([*own[name]], index=own["length"]).rename(columns=ends)


def on_gpu_shortly(results: Results) -> str:
    """The recipe's speed on a GPU, at every length that was timed."""
    return " ".join(phrase(phase, gpu_times(results, phase, "recipe")) for phase in PHASES)


def on_gpu(results: Results) -> str:
    """As :func:`speed`, of a GPU."""
    timed = {f"{words}, {name}": gpu_times(results, phase, name)
             for phase, words in PHASES.items() for name in ("recipe", "8 groups")}  # fmt: skip
    return "\n".join([*by_length(timed), "", measured(results)])


def measured(results: Results) -> str:
    """When the GPU was at hand, and whether the kernels are those of that day."""
    report = need(results.gpu)[0]
    since = "" if report.get("code") == imports.attention() else (
        ", before the kernels were changed; the present ones are not yet timed"
    )  # fmt: skip
    return f"Measured on {report['started'][:10]}{since}."


def rounds(results: Results) -> str:
    """What the brackets of :func:`speed` are, and which library was timed, when and on what."""
    count = need(results.whole)["repetitions"]
    told = (f"In brackets: 95% intervals over rounds ({count.min():.0f} to {count.max():.0f}). "
            "Where there are three rounds it is their range.")  # fmt: skip
    for phase, own in results.whole.groupby("phase", sort=False):
        told += f" {PHASES[str(phase)].capitalize()}: {made(results, own)}"
    return f"{told} Later changes of the library are not timed."


def times(timed: pd.DataFrame, length: int) -> str:
    """A speed at a length, with its interval."""
    if length not in timed.index:
        return NONE
    return ranged(timed.loc[length], "speedup", ".2f", "x")
