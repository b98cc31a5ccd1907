"""Rules of what else could explain the routers' perplexity: masks that learnt no routing (audit
point 9), any training at all (11), the luck of a seed (10)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.cells import LEARNT_NOTHING, labels
from analysis.comparisons import (
    PAIRED,
    SAME,
    Headline,
    against_full,
    change,
    headline,
    in_common,
    quality,
    versus,
)
from analysis.results import Results
from analysis.rivals import EQUAL, opponent
from analysis.rows import need, only, row_of
from analysis.rules.registry import Outcome, Verdict, changed, facts, interval, rule, told

FEWEST = 3  # seeds from which a spread says anything


def against_ours(results: Results, known: Headline) -> pd.DataFrame:
    """Masks that learnt no routing against the headline's routers, at equal budget, in every
    reading of test documents that both have; one whose weights learnt under it, against routers
    with as much of that."""
    rows: list[dict[str, Any]] = []
    for cell in results.cells.values():
        base = opponent(results, cell, known.cell)
        if base and cell.role in LEARNT_NOTHING and cell.model == base.model:
            rows += [row for row in versus(results, cell, base)
                     if row["final"] and row["texts"] == known.family.texts]  # fmt: skip
    return pd.DataFrame(rows)


@rule("audit.9", refuted="every mask that learnt no routing is worse than the trained routers by "
      "more than the interval, with no fewer pairs")  # fmt: skip
def routing_against_chance(results: Results) -> Outcome:
    """Perplexity of each control relative to the trained routers at the same budget."""
    known = headline(results)
    others = need(against_ours(results, known))
    nearest = others.sort_values("low").groupby("cell", sort=False).head(1)
    names = labels(results.cells[name] for name in nearest["cell"])
    why = f"Perplexity relative to {known.cell}, best budget of each: " + "; ".join(
        f"{names[row['cell']]} {changed(row)} at {row['distant_density']:.1%} of the distant pairs "
        f"(the routers: {row['base_distant_density']:.1%}{alike(row, known)})"
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
    return Outcome(verdict, f"{first}. {why}", **interval(row), **facts(row, results))


def alike(row: pd.Series, known: Headline) -> str:
    """What routers those are, where they are not the headline's."""
    return "" if row["against"] == known.cell else f", {row['against']}: as much LoRA"


@rule("audit.10", refuted="at no budget do the seeds lie further apart than half the interval over "
      "documents")  # fmt: skip
def spread_of_seeds(results: Results) -> Outcome:
    """Seeds against documents: from the best to the worst seed, beside half the interval over
    documents of their mean, at every reading, text and budget of experiments with three seeds."""
    frame = quality(results)
    frame = need(against_full(frame[frame["seeds"] >= FEWEST]))
    found = frame.assign(**_spread(results, frame))
    found = found.assign(wider=found["spread"] > found["half"])
    share, first = float(found["wider"].mean()), found.loc[found["spread"].idxmax()]
    verdict = told(share > 0.5, not share)
    why = (
        f"Seeds lie further apart than half the documents' interval at {int(found['wider'].sum())} "
        f"of {len(found)} readings and budgets; furthest: {first['cell']} on {first['texts']} at "
        f"{first['budget']}, {first['spread']:.1%} from best to worst (half the documents' "
        f"interval {first['half']:.1%})"
    )
    return Outcome(verdict, why, ours=100 * float(first["spread"]),
                   **facts(first, results, "seeds"))  # fmt: skip


def _spread(results: Results, frame: pd.DataFrame) -> dict[str, list[float]]:
    """From the best to the worst seed, and half the interval over documents of the seeds' mean."""
    spread, half = [], []
    for row in frame.to_dict("records"):
        own = only(results.rows, **{name: row[name] for name in SAME})
        base = only(results.rows, cell=row["against"], reading=row["reading"], texts=row["texts"],
                    condition="full")  # fmt: skip
        own, base = in_common(own, base)
        seeds = [change(each, base, results.confidence)["change"]
                 for _, each in own.groupby("seed")]  # fmt: skip
        mean = own.groupby(PAIRED, as_index=False)["nll"].mean()
        over = change(mean.assign(seed=0), base, results.confidence)
        spread.append(max(seeds) - min(seeds))
        half.append((over["high"] - over["low"]) / 2)
    return {"spread": spread, "half": half}


@rule("audit.11", refuted="full attention trained alike is not better than the pretrained model, "
      "or gains less than the routers do")  # fmt: skip
def any_training(results: Results) -> Outcome:
    """The adapted full model against the pretrained one on the headline's texts, beside the routers
    against the pretrained one."""
    known = headline(results)
    frame = only(known.family.others(quality(results)), base_role="pretrained")
    row = need(row_of(frame, cell=known.family.against, condition="full"))
    best = need(row_of(frame.sort_values("change"), cell=known.cell, condition="hard"))
    why = (f"{row['cell']}, full attention: {changed(row)} against pretrained; {best['cell']} at "
           f"{best['distant_density']:.0%} of the distant pairs: {changed(best)}")  # fmt: skip
    verdict = told(row["high"] < 0 and row["change"] <= best["change"],
                   row["low"] >= 0 or row["low"] > best["high"])  # fmt: skip
    return Outcome(verdict, why, **interval(row), **facts(row, results))
