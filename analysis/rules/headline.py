"""Rules of our own statements: what the recipe costs, finds again and saves; whether a gap grows
with size, and whether the forecast came true. Each names its limit; the setting is our own, so a
statement that holds is plainly reproduced.

A forecast is held against a model that was read after it was written. An interval so wide that it
would have held nearly anything forecasts nothing: then a value inside it is no success.
"""

from __future__ import annotations

from analysis import ladder, tables
from analysis.comparisons import overall, quality
from analysis.ladder import Law
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import need, only, row_of
from analysis.rules.registry import Outcome, Verdict, changed, facts, fair, interval, judged, rule
from analysis.rules.speed import times, timing
from analysis.words import listed, plural, ranged
from experiments.settings import Tolerances

# The experiment of a statement, where it has another name; where it is read: reading, texts.
BLOCKS = {"headline": "recipe", "plays": "plays_recipe", "paper_books": "paper_books_adapted",
          "heavy": "heavy_untrained"}  # fmt: skip
PLACES = {"plays": ("plays", "plays"), "searched": ("rivals", "unseen")}
# What of results.whole each statement of speed is about: the recipe may have any routers.
TIMED = {"recipe": ("ours", "untrained"), "allocated": ("allocated",)}
ONE = "k1.symmetric.sinkhorn"
MASKS = {"k1": ONE, "k2": "k2.symmetric.sinkhorn", "k3": "k3.multi_probe.sinkhorn"}
PLACE = "next rung"
# What is counted against what on the documents of the reading `fresh`.
FRESH = {"recipe": ("fresh_recipe", "fresh_adapted"),
         "calibrated": ("fresh_allocated", "fresh_adapted"),
         "calibration": ("fresh_allocated", "fresh_recipe")}  # fmt: skip
ROLE = {"recipe": "ours"}  # of what it is counted against, where its name is another


@rule(
    "ours.{place}.adapted.{budget}", "ours.{place}.pretrained.{budget}",
    "ours.{place}.recipe.{budget}", "ours.{place}.heavy.{budget}",
    "ours.{place}.allocated.{budget}", "ours.{place}.sparq.{budget}",
    refuted="an interval wholly above the limit: same_ppl against the adapted model, "
    "zero against another one",
)  # fmt: skip
def cost(claim: Claim, results: Results, limits: Tolerances, place: str, budget: str) -> Outcome:
    """A mask at a budget against a full model, or against another mask."""
    base, (reading, texts) = claim.id.split(".")[2], PLACES.get(place, ("final", "unseen"))
    row = need(row_of(quality(results), experiment=BLOCKS.get(place, place), reading=reading,
                      texts=texts, budget=budget, base_role=ROLE.get(base, base),
                      condition="hard"))  # fmt: skip
    limit = limits.same_ppl if base == "adapted" else 0.0
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs, {row['density']:.1%} of all; {int(row['documents'])} documents, "
           f"{plural(row['seeds'], 'seed')} (limit {limit:+.0%})")  # fmt: skip
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    more = row["distant_density"] - row["base_distant_density"]
    if base not in ("adapted", "pretrained") and fair(verdict, more) != verdict:
        verdict = Verdict.INCONCLUSIVE
        why += f"; but the other keeps {row['base_distant_density']:.1%}"
    return Outcome.of(verdict, why, row, results, same_setting=True)


@rule("ours.fresh.{what}", refuted="an interval wholly above the limit: same_ppl against the "
      "adapted model, zero against the recipe")  # fmt: skip
def elsewhere(results: Results, limits: Tolerances, what: str) -> Outcome:
    """All kinds of text of the reading `fresh` together."""
    name, base = FRESH[what]
    row = overall(results, name, base, "fresh")
    limit = limits.same_ppl if base == "fresh_adapted" else 0.0
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs; {int(row['documents'])} {listed(row['texts'])}, "
           f"{plural(row['seeds'], 'seed')} (limit {limit:+.0%})")  # fmt: skip
    if base != "fresh_adapted":
        verdict = fair(verdict, row["distant_density"] - row["base_distant_density"])
        why += f"; the other keeps {row['base_distant_density']:.1%}"
    return Outcome.of(verdict, why, row, results, same_setting=True)


@rule("ours.copying", refuted="an interval of the share that is found again below the limit")
def found_again(results: Results, limits: Tolerances) -> Outcome:
    """The recipe's default mask, of the first of its experiments that was read so."""
    own = need(only(tables.copying(results), role="ours"))
    default = row_of(own, budget="0.125")
    row, limit = own.iloc[0] if default is None else default, limits.copied
    why = (f"{row['cell']} at {row['distant_density']:.0%} of the distant pairs finds "
           f"{ranged(row, 'copied', '.0%')} of what full attention gains from having read the "
           f"passage (limit {limit:.0%})")  # fmt: skip
    groups = row_of(own, cell=row["cell"], ngram=0)
    if row["ngram"] and groups is not None:
        why += (f"; {row['ngram']:.0f}-gram keys find it: groups alone {groups['copied']:.0%} at "
                f"{groups['distant_density']:.0%} of the distant pairs")  # fmt: skip
    verdict = judged(-row["copied_high"], -row["copied_low"], -limit)
    return Outcome.of(verdict, why, row, results, "copied", same_setting=True)


@rule("ours.whole.{phase}.{what}", refuted="an interval of the ratio of times below 1")
def whole_model(results: Results, phase: str, what: str) -> Outcome:
    """Time of the whole model at the longest length, against the pretrained one."""
    row = need(only(results.whole, phase=phase, role=TIMED[what])).sort_values("length").iloc[-1]
    stage = "prefill" if phase == "forward" else "continuation"
    known = timing(row, f"{results.scale}; {row['device']}, {row['dtype']}",
                   f"python -m experiments.stages.{stage}")  # fmt: skip
    why = f"{times(row)} at {int(row['length'])} tokens"
    verdict = judged(-row["speedup_high"], -row["speedup_low"], -1.0)
    return Outcome(verdict, why, **interval(row, "speedup"), **known, same_setting=True)


@rule("ours.ladder.grows", refuted="an interval of the slope wholly below zero: larger models lose "
      "less")  # fmt: skip
def grows(results: Results) -> Outcome:
    """The slope of the law of one group of four."""
    law, rungs = need(ladder.gap(results, ONE)), ladder.of(results, "ladder", ONE)
    low, high = law.slopes
    costs = ", ".join(f"{row['change']:+.1%}" for _, row in rungs.iterrows())
    why = (f"{law.slope:+.2f} points by a factor of ten in size ({low:+.2f} to {high:+.2f}); from "
           f"the smallest rung on: {costs}")  # fmt: skip
    known = facts(rungs.iloc[-1], results) | {"n": len(law.sizes)}
    known |= {"ours": law.slope, "low": low, "high": high, "unit": "points by a factor of ten"}
    return Outcome(judged(-high, -low, 0.0), why, **known, same_setting=True)


@rule("ours.ladder.135m.{what}", refuted="an interval of what the model shows wholly outside the "
      "forecast's interval")  # fmt: skip
def forecasts(results: Results, limits: Tolerances, what: str) -> Outcome:
    """What the next rung shows beside what the ladder said of it, in percent."""
    budget = MASKS.get(what)
    law = need(ladder.gap(results, budget) if budget else ladder.density(results))
    read = need(ladder.of(results, PLACE, budget or ONE))
    seen = read if budget else need(ladder.needed(results).query("place == @PLACE"))
    ends = ("change" if budget else "density", "low", "high")
    value, low, high = (100 * float(seen.iloc[0][end]) for end in ends)
    known = facts(read.iloc[0], results) | {"ours": value, "low": low, "high": high}
    known["unit"] = "percent more" if budget else "percent of the distant pairs"
    verdict, why = held(law, low, high, 100 * limits.far_worse)
    first, line = read.iloc[0], ""
    if budget is None:  # its ends know nothing of what lies between two masks
        line, known = ", on a straight line between two masks", known | {"low": None, "high": None}
    why = (f"{value:.1f}% ({low:.1f} to {high:.1f}{line}); {why}; same masks, window of "
           f"{first['window']} and {first['texts']}, but pretrained on far more text, with longer "
           "tokens")  # fmt: skip
    return Outcome(verdict, why, **known, same_setting=True)


def held(law: Law, low: float, high: float, widest: float) -> tuple[Verdict, str]:
    """Whether an interval lies in that of the 135M model's forecast.

    Args:
        low, high: of what was seen; ``widest``: half of the widest forecast that says anything.
    """
    value, least, most = law.at(ladder.AHEAD["135M"])
    why = f"forecast {value:.1f}% ({least:.1f} to {most:.1f}), from {len(law.sizes)} rungs"
    if high < least or low > most:
        return Verdict.NOT_REPRODUCED, f"outside: {why}"
    if low < least or high > most:
        return Verdict.INCONCLUSIVE, f"across an end: {why}"
    if (most - least) / 2 > widest:
        return Verdict.INCONCLUSIVE, f"inside an interval too wide to forecast anything: {why}"
    return Verdict.REPRODUCED, f"inside: {why}"
