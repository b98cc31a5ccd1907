"""Rules of our own statements: what the recipe costs, finds again and saves. Each names its limit;
the setting is our own, so a statement that holds is plainly reproduced."""

from __future__ import annotations

from typing import Any

from analysis.comparisons import quality
from analysis.copied import copied
from analysis.paper import Claim
from analysis.results import Results
from analysis.rivals import EQUAL
from analysis.rows import need, only, row_of
from analysis.rules.registry import Outcome, Verdict, changed, facts, interval, rule, told
from experiments.settings import Tolerances

# Where each statement is read: experiment, reading, texts.
PLACES = {"headline": ("recipe", "final", "unseen"), "plays": ("plays_recipe", "plays", "plays"),
          "paper_books": ("paper_books_adapted", "final", "unseen"),
          "heavy": ("heavy_untrained", "final", "unseen"),
          "longer": ("longer", "final", "unseen"),
          "longer_heavy": ("longer_heavy", "final", "unseen"),
          "allocated": ("allocated", "final", "unseen"),
          "longer_allocated": ("longer_allocated", "final", "unseen"),
          "searched": ("searched", "rivals", "unseen")}  # fmt: skip
# What of results.whole each statement of speed is about: the recipe may have any routers.
TIMED = {"recipe": ("ours", "untrained"), "allocated": ("allocated",)}
ROLE = {"recipe": "ours"}  # of what it is counted against, where its name is another


def judged(low: float, high: float, limit: float) -> Verdict:
    """A statement that something lies below a limit, by its interval."""
    return told(high <= limit, low > limit, Verdict.REPRODUCED)


@rule(
    "ours.{place}.adapted.{budget}", "ours.{place}.pretrained.{budget}",
    "ours.{place}.recipe.{budget}", "ours.{place}.heavy.{budget}",
    "ours.{place}.allocated.{budget}", "ours.{place}.sparq.{budget}",
    refuted="an interval wholly above the limit: same_ppl against the adapted model, "
    "zero against another one",
)  # fmt: skip
def cost(claim: Claim, results: Results, limits: Tolerances, place: str, budget: str) -> Outcome:
    """A mask at a budget against a full model, or against another mask."""
    base, (block, reading, texts) = claim.id.split(".")[2], PLACES[place]
    row = need(row_of(quality(results), experiment=block, reading=reading, texts=texts,
                      budget=budget, base_role=ROLE.get(base, base), condition="hard"))  # fmt: skip
    limit = limits.same_ppl if base == "adapted" else 0.0
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs, {row['density']:.1%} of all; {int(row['documents'])} documents, "
           f"{int(row['seeds'])} seeds (limit {limit:+.0%})")  # fmt: skip
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    more = row["distant_density"] - row["base_distant_density"]
    odd = (verdict == Verdict.REPRODUCED and more > EQUAL) or (
        verdict == Verdict.NOT_REPRODUCED and more < -EQUAL
    )
    if odd and base not in ("adapted", "pretrained"):
        verdict = Verdict.INCONCLUSIVE
        why += f"; but the other keeps {row['base_distant_density']:.1%}"
    return Outcome(verdict, why, **interval(row), **facts(row, results), same_setting=True)


@rule("ours.copying", refuted="an interval of the share that is found again below the limit")
def found_again(results: Results, limits: Tolerances) -> Outcome:
    """The recipe's default mask, of the first of its experiments that was read so."""
    own = need(only(copied(results), role="ours"))
    default = row_of(own, budget="0.125")
    row, limit = own.iloc[0] if default is None else default, limits.copied
    why = (f"{row['cell']} at {row['distant_density']:.0%} of the distant pairs finds "
           f"{row['copied']:.0%} ({row['copied_low']:.0%} to {row['copied_high']:.0%}) of what "
           f"full attention gains from having read the passage (limit {limit:.0%})")  # fmt: skip
    verdict = judged(-row["copied_high"], -row["copied_low"], -limit)
    known = interval(row, "copied") | facts(row, results)
    return Outcome(verdict, why, **known, same_setting=True)


@rule("ours.whole.{phase}.{what}", refuted="an interval of the ratio of times below 1")
def whole_model(results: Results, phase: str, what: str) -> Outcome:
    """Time of the whole model at the longest length, against the pretrained one."""
    row = need(only(results.whole, phase=phase, role=TIMED[what])).sort_values("length").iloc[-1]
    times = interval(row, "speedup", 1)
    low, high = times["low"], times["high"]
    stage = "prefill" if phase == "forward" else "continuation"
    known: dict[str, Any] = {
        **times, "n": int(row["repetitions"]),
        "evidence": row["evidence"], "command": f"python -m experiments.stages.{stage}",
        "scale": f"{results.scale}; {row['device']}, {row['dtype']}",
    }  # fmt: skip
    why = f"{row['speedup']:.2f}x ({low:.2f} to {high:.2f}) at {int(row['length'])} tokens"
    return Outcome(judged(-high, -low, -1.0), why, **known, same_setting=True)
