"""Rules of benchmark scores, and whether a mask reached them at all (Tables 1, 2, 4 and 10, GSM8K,
audit point 4).

The paper's rivals have no trained parameters in Table 1, and neither have ours: a frozen model's
score can change where its mask reaches a question, and nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from analysis import answers, scope
from analysis.cells import WINDOW
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rows import need, only, row_of
from analysis.rules.ablations import beside
from analysis.rules.registry import Outcome, Verdict, agreed, interval, judged, points, rule, told
from analysis.rules.rivals import KEYS, STANDS_FOR
from experiments import statistics
from experiments.settings import Tolerances

# The paper's name of a benchmark, and lm-eval's.
TASKS = {"hellaswag": "hellaswag", "arc_easy": "arc_easy", "piqa": "piqa",
         "lambada": "lambada_openai"}  # fmt: skip
FOCUS = ("table1.focus", "table3.focus-r16", "table10.focus")  # the same row in three tables
NAMES = {**TASKS, "truthfulqa_mc1": "truthfulqa_mc1"}
FINETUNED = "full-attention-finetune"
STAYS = ("it stays here, too", "it changes here", "it stays here")  # in place of SMALL
ANSWERED = {name: f"answers_{own}" for name, own in {**STANDS_FOR, FINETUNED: "finetuned"}.items()}


def scored(verdict: Verdict, why: str, row: pd.Series, results: Results,
           same_setting: bool = False) -> Outcome:  # fmt: skip
    """Of a row of scores, in points."""
    seeds = ", ".join(map(str, results.run_of(row["evidence"]).get("seeds") or [0]))
    asked = f"{int(row['questions'])} questions, {int(row['shots'])} shots"
    scale = f"{results.scale}; {results.cells[row['cell']].model}; {asked}; seed {seeds}"
    return Outcome.of(verdict, why, row, results, "points", "questions", scale, same_setting)


def zero_shot(results: Results, **where: Any) -> pd.DataFrame:
    """Rows under masks, of prompts without worked examples."""
    own = need(only(answers.scores(results), shots=0, **where))
    return own[own["budget"] != "own"]


@rule(
    *(f"{row}.{task}" for row in FOCUS for task in TASKS),
    *(f"table4.focus-k2.{task}" for task in NAMES),
    refuted="an interval of the difference to the pretrained model's score below zero, and not "
    "within same_score",
)
def unchanged(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """The paper's setup on our model: scores with and without the mask, question by question."""
    own = only(zero_shot(results, window=WINDOW), role="paper", texts=NAMES[claim.column])
    found = kept(need(own).loc[own["questions"].idxmax()], results, limits, claim)
    if claim.id.startswith("table10") and found.verdict == Verdict.ARITHMETIC:
        return replace(
            found, verdict=Verdict.INCONCLUSIVE, why=found.why + fewer_keys(claim, results)
        )
    if claim.id.startswith("table4"):
        return replace(found, why=f"{found.why}; two of four groups, where the paper has K = 2")
    return found


def fewer_keys(claim: Claim, results: Results) -> str:
    """Words where Table 10's number of keys is not that of our mask."""
    few = row_of(answers.scores(results), texts=NAMES[claim.column],
                 experiment="answers_magicpig_keys")  # fmt: skip
    share = "" if few is None else (f", and {few['exposed_questions_percent']:.0f}% of the "
                                    "questions have more")  # fmt: skip
    return f"; but Table 10 leaves a query {KEYS} keys, where this window alone has {WINDOW}{share}"


def kept(row: pd.Series, results: Results, limits: Tolerances, claim: Claim) -> Outcome:
    """Whether a score stays under a mask: by arithmetic, where it reaches too few questions for
    more points than same_score to change, in the tokens of the claim's model, too."""
    verdict, more = Verdict.ARITHMETIC, ""
    if row["exposed_questions_percent"] <= limits.same_score:
        more = in_other_tokens(row, claim)
        if more and row["exposed_elsewhere_percent"] > limits.same_score:
            verdict = Verdict.INCONCLUSIVE
    else:
        stays = -limits.same_score <= row["low"] and row["high"] <= limits.same_score
        verdict = told(stays, row["high"] < 0)
    why = (f"our model has {row['score']:.0f}% under the mask, {row['base_score']:.0f}% without, "
           "difference "
           f"{points(row)}; {row['changed_percent']:.0f}% of the answers changed. The mask"
           f"{causal(row)} reaches {row['exposed_questions_percent']:.0f}% of the questions and "
           f"{row['exposed_pairs_percent']:.1f}% of their pairs{more}")  # fmt: skip
    return scored(verdict, why, row, results)


def in_other_tokens(row: pd.Series, claim: Claim) -> str:
    """How many questions a mask reaches in the tokens of another model than ours and GPT-2, in
    words; empty for these."""
    if scope.same_model(claim, str(row["model"])) or (claim.model or "").startswith("gpt2"):
        return ""
    return (f"; in the tokens of Mistral or Llama 2, up to {answers.MORE_TOKENS - 1:.0%} more, at "
            f"most {row['exposed_elsewhere_percent']:.0f}% of the questions")  # fmt: skip


def causal(row: pd.Series) -> str:
    """Words where the paper's groups have our causal balance, since the paper's own would leak."""
    return ", under causal balance," if str(row["budget"]).endswith(".causal") else ""


@rule("ours.many_shot.{role}", refuted="an interval of the points lost on the four benchmarks "
      "together wholly above same_score, and so that over the four")  # fmt: skip
def after_examples(results: Results, limits: Tolerances, role: str) -> Outcome:
    """Scores under a mask that worked examples put within its reach, question by question. A
    verdict needs the interval over questions and that over benchmarks to agree."""
    frame, limit = need(answers.scores(results)), limits.same_score
    row = need(row_of(frame[frame["shots"] > 0], role=role, texts=answers.ALL_FOUR))
    why = (f"{points(row)} of {row['base_score']:.0f}% against {row['against']} (limit "
           f"-{limit:.0f}); the mask{causal(row)} reaches "
           f"{row['exposed_questions_percent']:.0f}% of the questions and "
           f"{row['exposed_pairs_percent']:.0f}% of their pairs")  # fmt: skip
    same = {name: row[name] for name in ("cell", "reading", "shots", "budget", "against")}
    tasks = need(only(frame, texts=answers.FOUR, **same).iloc[: len(answers.FOUR)])
    over = statistics.mean(tasks["points"], results.confidence)
    why += f"; over the four benchmarks {over.low:+.1f} to {over.high:+.1f}"
    verdict = agreed(
        judged(-high, -low, limit)
        for low, high in ((row["low"], row["high"]), (over.low, over.high))
    )
    return scored(verdict, why, row, results, same_setting=True)


@rule("audit.4", refuted="most zero-shot prompts are longer than the window and the sinks")
def unexposed(results: Results) -> Outcome:
    """How many zero-shot questions of the paper's four benchmarks a mask can reach."""
    own = need(zero_shot(results, window=WINDOW, texts=list(TASKS.values())))
    own = own.drop_duplicates("texts")
    reached, elsewhere = (
        float((own[f"exposed_{where}_percent"] * own["questions"]).sum() / own["questions"].sum())
        for where in ("questions", "elsewhere")
    )
    verdict = told(elsewhere < 50, reached >= 50)
    why = "Questions with a pair beyond the window of 128, and such pairs: " + "; ".join(
        f"{row['texts']} {row['exposed_questions_percent']:.0f}%, "
        f"{row['exposed_pairs_percent']:.1f}%" for _, row in own.iterrows()
    )  # fmt: skip
    why += f"; in the tokens of Mistral or Llama 2 at most {elsewhere:.0f}% of all questions"
    return replace(scored(verdict, why, own.iloc[0], results), n=int(own["questions"].sum()),
                   ours=reached, low=None, high=None, unit="percent of the questions")  # fmt: skip


@rule(
    *(f"table1.{method}.{task}" for method in ANSWERED for task in TASKS),
    *(f"table10.{method}.{task}" for method in ANSWERED for task in TASKS),
    refuted="where the paper's score changes by more than the limit same_score, an interval within "
    "that limit or on the other side of zero, if the mask reaches the questions",
)
def rival_score(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A benchmark under a rival, or after fine-tuning, beside the pretrained model's."""
    entry, method, _ = claim.id.split(".")
    row = measured(claim, results, ANSWERED[method])
    more = claim.figure - theirs(entry, claim.column, method="pretrained")
    limit, trained = limits.same_score, method == FINETUNED
    few = trained and scope.fewer_steps(claim, results, str(row["cell"]))
    verdict, said = beside(interval(row, "points"), more, limit, limits.much_less, few, STAYS)
    masked = not trained and method != "performer"
    if masked and row["exposed_questions_percent"] <= limit:  # a mask reaches hardly a question
        verdict = Verdict.INCONCLUSIVE  # of the paper's masks, 32 keys a query reach most
    elif verdict == Verdict.DIRECTION and (most := unseen(row)) > limit:
        verdict, said = Verdict.INCONCLUSIVE, f"no answer changes, but up to {most:.0f}% may"
    reach = f"{reached(row, results)}{narrower(claim, results, method)}" if masked else ""
    why = (f"{points(row)} against the pretrained model, the paper {more:+.1f}: "
           f"{said}{reach}")  # fmt: skip
    return scored(verdict, why, row, results)


def measured(claim: Claim, results: Results, name: str) -> pd.Series:
    """The row of a benchmark under a method; with Table 10's own number of keys, where so read."""
    every = only(answers.scores(results), texts=TASKS[claim.column])
    as_few = row_of(every, experiment=f"{name}_keys")
    if as_few is not None and claim.id.startswith("table10"):
        return as_few
    return need(row_of(every, experiment=name))


def unseen(row: pd.Series) -> float:
    """Percent of the answers that may change although none of n did, 3 in n (95%); 0 where the
    interval has a width that tells."""
    return 300 / row["questions"] if row["low"] == row["high"] else 0.0


def reached(row: pd.Series, results: Results) -> str:
    """How many questions a mask reaches, in words."""
    share = f"{row['exposed_questions_percent']:.0f}%"
    if most := results.cells[row["cell"]].method.get("keys"):
        return (f"; at most {most} keys a query, {row['keys']:.1f} in the mean, and {share} of the "
                "questions have more")  # fmt: skip
    return f"; {share} of the questions are longer than its window, which is ours"


def narrower(claim: Claim, results: Results, method: str) -> str:
    """The score under the narrowest window that was read; the paper names none."""
    own = only(answers.scores(results), texts=TASKS[claim.column], shots=0,
               experiment="answers_window")  # fmt: skip
    if method != "longformer" or own.empty:
        return ""
    row = own.sort_values("window").iloc[0]
    return f", the paper names none; of {int(row['window'])} tokens {points(row)}"


@rule("gsm8k.mistral-7b.focus.accuracy", refuted="an interval wholly beyond same_score, where the "
      "full model answers enough to lose that much, after as many steps")  # fmt: skip
def sums(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Answers generated under the paper's mask, beside the pretrained model's."""
    row = need(row_of(answers.scores(results), experiment="sums_paper", texts="gsm8k"))
    more = claim.figure - theirs("gsm8k", "accuracy", method="full-attention")
    few = scope.fewer_steps(claim, results, row["cell"])
    own = interval(row, "points")
    verdict, said = beside(own, more, limits.same_score, limits.much_less, few, STAYS)
    if verdict == Verdict.DIRECTION and row["base_score"] <= limits.same_score:
        verdict, said = Verdict.INCONCLUSIVE, "nothing that a mask could lose"
    why = (f"{points(row)} against the pretrained model's {row['base_score']:.0f}%"
           f"{causal(row) or ','} the paper {more:+.1f}: {said}")  # fmt: skip
    return scored(verdict, why, row, results)
