"""Rules of other methods on the same frozen model (Tables 1 and 10, Figure 1, audit point 8, our
own claim), and of what else could explain the routers' perplexity: masks that learnt no routing
(audit point 9), any training at all (11), the luck of a seed (10).

The paper compares on GPT-2; here every method runs on the model that we have, so that only the
direction of a change can be judged, not a figure.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import scope
from analysis.cells import LEARNT_NOTHING, ROLES, labels
from analysis.comparisons import PAIRED, SAME, Headline, compared, headline, in_common, quality
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rivals import ABOUT, BUDGET, CONTROLS, EQUAL, OURS, against_ours, opponent, rows
from analysis.rows import need, only, row_of, wide
from analysis.rules.ablations import beside_paper
from analysis.rules.registry import EARLY, Outcome, Verdict, changed, facts, judged, rule, told
from analysis.rules.table7 import paper_way
from analysis.words import plural
from experiments.settings import Tolerances

# The paper's name of a method, and the experiment that stands for it here.
STANDS_FOR = {
    "longformer": "longformer", "performer": "performer",
    "routing-transformer": "routing_transformer", "sparq": "sparq_plain",
    "sparq-mean-reallocation": "sparq", "magicpig": "magicpig",
}  # fmt: skip
KEYS = 32  # a query, of Table 10


@rule(
    *(f"{entry}.{method}.ppl" for entry in ("table1", "table10") for method in STANDS_FOR),
    refuted="where the paper's rival harms the pretrained model, an interval against full "
    "attention below zero or wholly within the limit same_ppl, with no more keys a query than the "
    "paper's where it names them",
)
def rival(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """What a rival changes, against the model that it runs on."""
    entry, method, _ = claim.id.split(".")
    row = measured(results, entry, STANDS_FOR[method])
    change = claim.figure / theirs(entry, "ppl", method="pretrained") - 1
    verdict, said = beside_paper(row, change, limits)
    if change < 0 and verdict == Verdict.NOT_REPRODUCED:
        # Our model was adapted before; what the paper's gain owes to training, nobody knows.
        verdict, said = Verdict.INCONCLUSIVE, f"{said}, on a model that has gained before"
    keys = row["density"] * row["context"] / 2  # a query, in the mean over a causal mask
    if entry == "table10" and verdict == Verdict.NOT_REPRODUCED and keys > KEYS:
        verdict = Verdict.INCONCLUSIVE
        said += f", with {keys:.0f} keys a query in the mean, not {KEYS}"
    kept = "all" if row["budget"] == "own" else f"{row['distant_density']:.1%}"
    kept += " of the distant pairs"
    if entry == "table10":
        kept = f"{keys:.0f} keys a query in the mean over {row['context']:,.0f} tokens"
    if method == "longformer":
        kept += " (the paper names no window)"
    why = (f"{changed(row)} with {kept}, against full attention of an adapted model; the paper has "
           f"{change:+.1%} against pretrained: {said}")  # fmt: skip
    return Outcome.of(verdict, why, row, results)


def measured(results: Results, entry: str, name: str) -> pd.Series:
    """A rival on the common reading; of Table 10 with as few keys as it can, where so read."""
    few = row_of(quality(results), experiment=f"{name}_few", base_role="adapted", condition="hard")
    if entry == "table10" and few is not None:
        return few
    return need(row_of(rows(results), experiment=name, budget=[BUDGET, "own"]))


@rule("audit.8", refuted="every rival on the frozen model, oracles aside, costs more than "
      "far_worse by more than its interval")  # fmt: skip
def others_do_it(results: Results, limits: Tolerances) -> Outcome:
    """Rivals that score no pair in full and keep a part of them, against full attention."""
    partly = [role for role, about in ABOUT.items()
              if not about.every and role != "performer" and role not in CONTROLS]  # fmt: skip
    own = need(only(rows(results), role=partly, budget=BUDGET)).sort_values("change")
    best, limit = own.iloc[0], limits.far_worse
    verdict = told(best["high"] <= limit, (own["low"] > limit).all())
    first = own.drop_duplicates("role").head(4)
    why = f"At {BUDGET} of the distant pairs, against full attention: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)}" for _, row in first.iterrows())  # fmt: skip
    why += f" (limit {limit:+.0%}); on a model that was adapted, then frozen"
    return Outcome.of(verdict, why, best, results)


@rule("ours.rivals", refuted="one rival, oracles aside, with no more pairs than ours reads better "
      "by more than the interval")  # fmt: skip
def none_is_better(results: Results) -> Outcome:
    """Rivals against the recipe at its own budget."""
    others = [role for role, about in ABOUT.items() if not about.every]
    own = need(only(against_ours(results), budget=BUDGET, role=others)).sort_values("change")
    equal = own["distant_density"] <= own["base_distant_density"] + EQUAL
    beaten = (equal & (own["high"] < 0)).any()
    verdict = told((own["low"] > 0).all() and not beaten, beaten, Verdict.REPRODUCED)
    why = "Against the recipe at its own budget: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)} at {row['distant_density']:.1%}"
        f"{as_much_lora(row, OURS)}"
        for _, row in own.drop_duplicates("role").head(4).iterrows()
    )
    best = own.iloc[0]
    return Outcome.of(verdict, why, best, results, same_setting=True)


@rule("ours.masked", refuted="an interval wholly above same_ppl")
def adapted_under_the_mask(results: Results, limits: Tolerances) -> Outcome:
    """LoRA under the mask against as much LoRA under full attention."""
    row = need(row_of(quality(results), role="masked", against="adapted_again", condition="hard",
                      final=True, texts="unseen"))  # fmt: skip
    limit = limits.same_ppl
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs; {plural(row['seeds'], 'seed')} (limit {limit:+.0%})")  # fmt: skip
    return Outcome.of(verdict, why, row, results, same_setting=True)


@rule("figure1.pareto.finding", refuted="after as many steps, two of four groups are slower than "
      "full attention or read worse than it, by more than the interval")  # fmt: skip
def faster_and_better(claim: Claim, results: Results) -> Outcome:
    """Whether the paper's mask is both, against the pretrained model as in the paper."""
    own = paper_way(results, 2)
    mask = need(row_of(results.table("masks"), method="groups", K=own["K"], k=own["top_k"]))
    few = scope.fewer_steps(claim, results, own["cell"])
    slower, worse = mask["time_low"] > 1, own["low"] > 0 and not few
    verdict = told(mask["time_high"] < 1 and own["high"] < 0, slower or worse)
    window = results.cells[own["cell"]].method.get("window", 128)
    why = (f"Perplexity on {own['texts']} is {changed(own)} at {own['context']:,.0f} tokens under "
           f"two of {own['K']:.0f} groups and a window of {window}{EARLY * few}"
           f"; such a mask takes {mask['time']:.0%} of full attention's time at "
           f"{mask['length']:,.0f} tokens on a CPU (window 128), no card timed it")  # fmt: skip
    return Outcome.of(verdict, why, own, results)


FEWEST = 3  # seeds from which a spread says anything


def learnt_nothing(results: Results, known: Headline) -> pd.DataFrame:
    """Masks that learnt no routing against routers at equal budget, in readings of test documents;
    one whose weights learnt under it, against routers with as much of that."""
    rows: list[dict[str, Any]] = []
    for cell in results.cells.values():
        base = opponent(results, cell, known.cell)
        if base and cell.role in LEARNT_NOTHING and cell.model == base.model:
            found = compared(results, cell, base, final=True, texts=known.texts)
            rows += found.to_dict("records")
    return pd.DataFrame(rows)


@rule("audit.9", refuted="every mask that learnt no routing is worse than the trained routers by "
      "more than the interval, with no fewer pairs")  # fmt: skip
def routing_against_chance(results: Results) -> Outcome:
    """Perplexity of each control relative to the trained routers at the same budget."""
    known = headline(results)
    others = need(learnt_nothing(results, known))
    nearest = others.sort_values("low").groupby("cell", sort=False).head(1)
    names = labels(results.cells[name] for name in nearest["cell"])
    why = f"Perplexity relative to {known.cell}, best budget of each: " + "; ".join(
        f"{names[row['cell']]} {changed(row)} at {row['distant_density']:.1%} of the distant pairs "
        f"(the routers: {row['base_distant_density']:.1%}{as_much_lora(row, known.cell)})"
        for _, row in nearest.iterrows()
    )  # fmt: skip
    fewer = others["base_distant_density"] - others["distant_density"]
    better = others["high"] < 0
    why += f". Comparisons: {len(others)}, at 95% each"
    verdict, first = Verdict.INCONCLUSIVE, "One is as good within the interval"
    if (better & (fewer >= -EQUAL)).any():
        verdict, first = Verdict.DIRECTION, "One beats the trained routers"
    elif better.any():
        first = "One beats the trained routers, but keeps more pairs"
    elif (others["low"] > 0).all() and (fewer > EQUAL).any():
        first = "The trained routers beat every one, but keep more pairs than some"
    elif (others["low"] > 0).all():
        verdict = Verdict.NOT_REPRODUCED
        first = "The trained routers beat every one by more than the interval"
    row = nearest.iloc[0]
    return Outcome.of(verdict, f"{first}. {why}", row, results)


def as_much_lora(row: pd.Series, routers: str) -> str:
    """What routers a row is against, where they are other ones."""
    return "" if row["against"] == routers else f", {row['against']}: as much LoRA"


@rule("audit.10", refuted="at no mask is the standard error of one seed greater than that of the "
      "documents")  # fmt: skip
def spread_of_seeds(results: Results) -> Outcome:
    """What one seed leaves open beside what the documents do, as standard errors, of the paper's
    setup on test documents, at every mask that leaves out pairs."""
    frame = need(only(quality(results), base_role="pretrained", final=True, condition="hard"))
    frame = frame[[results.cells[name].method.get("routers") == "paper" for name in frame["cell"]]]
    frame = need(frame[(frame["seeds"] >= FEWEST) & (frame["density"] < 1)])
    found = frame.assign(**_errors(results, frame))
    found = found.assign(wider=found["seed"] > found["document"])
    share, first = float(found["wider"].mean()), found.loc[found["seed"].idxmax()]
    verdict = told(share > 0.5, not share, Verdict.DIRECTION)
    why = (
        f"One seed leaves more open than the documents at {found['wider'].sum()} of {len(found)} "
        f"masks of {found['cell'].nunique()} experiments of the paper's setup; most: "
        f"{first['cell']} on {first['texts']} ({first['budget']}), a standard error of "
        f"{first['seed']:.3f} nats a token ({first['seeds']:.0f} seeds), the documents "
        f"{first['document']:.3f}"
    )
    return Outcome(verdict, why, ours=float(first["seed"]), unit="nats a token",
                   **facts(first, results, "seeds"))  # fmt: skip


def _errors(results: Results, frame: pd.DataFrame) -> dict[str, list[float]]:
    """Standard errors of a change in nats a token: that one seed leaves, and that documents do in
    the mean over seeds."""
    seed, document = [], []
    for row in frame.to_dict("records"):
        own = only(results.rows, **{name: row[name] for name in SAME})
        base = only(results.rows_of(row["against"]), reading=row["reading"], texts=row["texts"],
                    condition="full")  # fmt: skip
        own, base = in_common(own, base)
        full = base.groupby(PAIRED)["nll"].mean().reindex(pd.MultiIndex.from_frame(own[PAIRED]))
        more = (own["nll"].to_numpy() - full.to_numpy()) / own["tokens"].to_numpy()
        table_SD = wide(own, pd.Series(more, own.index), ["document", "sha"])
        seed.append(float(table_SD.mean(1).std(ddof=1)))
        document.append(float(table_SD.mean(0).std(ddof=1) / table_SD.shape[1] ** 0.5))
    return {"seed": seed, "document": document}
