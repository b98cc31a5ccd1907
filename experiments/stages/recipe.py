"""Stage recipe: ways to train routers for the hard mask, trial by trial, with causal potentials.

`python -m experiments.stages.recipe --cell TRIAL` trains the trial once with each of its seeds
(adapters stay in data/adapters/recipe/TRIAL/) and scores every hard mask of `recipe.readings`: on
validation books while searching; on test books for finalists. `controls: true` adds controls at the
first seed's density. Scores are averaged over seeds before documents are resampled, and every
change is paired over documents. A killed run goes on from the last checkpoint and finished seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation, models, settings
from experiments.controls import controlled, equal_window
from experiments.data import WindowSequence, load_split, manifest
from experiments.evaluation import DocumentScore, Partial
from experiments.oracle import oracle
from experiments.recipe_settings import Reading, Trial
from experiments.record import Run
from experiments.settings import ProtocolSettings, Settings
from experiments.stages.retrofit import fingerprint, train
from focus.density import PairCounts

CHECKPOINTS = Path("checkpoints/recipe")
ADAPTERS = Path("data/adapters/recipe")  # too large for git, and no stage needs them
ROUTED, PRETRAINED, ORACLE = "routed", "pretrained", "oracle"
Documents = list[tuple[str, Tensor]]
Groups = dict[tuple[str, str], list[dict[str, Any]]]  # rows of every seed by kind and reading


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a name under `recipe.trials`")
    cell = parser.parse_args().cell
    chosen = settings.load()
    if cell not in chosen.recipe.trials:
        known = ", ".join(chosen.recipe.trials)
        raise SystemExit(f"recipe.trials.{cell}: no such trial; there are {known}")
    torch.set_num_threads(chosen.threads)
    with Run("recipe", cell, chosen) as run:
        recipe(run, chosen.recipe.trials[cell], chosen)


def recipe(run: Run, trial: Trial, chosen: Settings) -> None:
    """Trains and scores one trial with every seed, and records it."""
    protocol = chosen.recipe.protocol if trial.final else chosen.recipe.search
    split, block = ("test", "protocol") if trial.final else ("validation", "search")
    documents = evaluation.protocol_windows(protocol, split, f"recipe.{block}")
    folder = CHECKPOINTS / trial.name
    parts = Partial(folder / "parts.json", parts_fingerprint(trial, protocol, chosen))
    found = [
        parts.get(
            f"seed {seed}",
            lambda s=seed, n=n: one_seed(trial, s, documents, chosen, with_controls=n == 0),
        )
        for n, seed in enumerate(trial.seeds)
    ]
    record(run, trial, chosen, protocol, found)
    parts.done()
    shutil.rmtree(folder)


def one_seed(trial: Trial, seed: int, documents: Documents, chosen: Settings,
             with_controls: bool) -> dict[str, Any]:  # fmt: skip
    """Adapter, losses and scores of one seed, as plain values."""
    model, _ = models.load(chosen.model.name, chosen.model.dtype)
    here = replace(chosen, seed=seed)
    folder = CHECKPOINTS / trial.name / fingerprint(trial.focus, trial.retrofit, here)
    trained = train(model, trial.focus, trial.retrofit, seed, folder, folder / "dvclive")
    focus.save_adapter(model, ADAPTERS / trial.name / f"seed{seed}")
    rows = scores(model, trial, documents, here, with_controls)
    losses = trained.module.losses
    return {"seed": seed, "losses": losses, "train_seconds": trained.seconds, "rows": rows}


def scores(model: PreTrainedModel, trial: Trial, documents: Documents, chosen: Settings,
           with_controls: bool) -> list[dict[str, Any]]:  # fmt: skip
    """A row for the pretrained model and for every reading of the routers and of controls."""
    recipe = chosen.recipe
    controls = recipe.controls if trial.controls and with_controls else ()
    calibration: list[Tensor] = []
    if "random" in controls:
        context = documents[0][1].shape[1]
        drawn = WindowSequence(load_split("train"), context, recipe.calibration, chosen.seed)
        calibration = [drawn[i]["input_ids"].unsqueeze(0) for i in range(len(drawn))]
    protocol = recipe.protocol if trial.final else recipe.search
    with evaluation.progress() as bar:
        masks = 1 + (1 + len(controls)) * len(recipe.readings)
        task = bar.add_task(trial.name, total=masks * sum(len(w) for _, w in documents))
        scorer = Scorer(model, documents, protocol.score_from, lambda: bar.advance(task))
        rows = [scorer.pretrained()]
        for kind in (ROUTED, *controls):
            place: AbstractContextManager = (
                nullcontext() if kind in (ROUTED, ORACLE)
                else controlled(model, kind, calibration, chosen.seed)
            )  # fmt: skip
            with place:
                for reading in recipe.readings:
                    name = f"{trial.name} seed {chosen.seed} {kind} {reading.name}"
                    bar.update(task, description=name)
                    measure = scorer.oracle if kind == ORACLE else scorer.hard
                    rows.append(measure(kind, reading, rows))
    return rows


class Scorer:
    """Scores one attached model on the same documents under one mask after the other."""

    def __init__(self, model: PreTrainedModel, documents: Documents, score_from: int,
                 after_window: Callable[[], None]) -> None:  # fmt: skip
        self.model, self.documents = model, documents
        self.score_from, self.after_window = score_from, after_window

    def pretrained(self) -> dict[str, Any]:
        """The model as it was."""
        with focus.mode(self.model, "full"):
            found = self._score(self.after_window)
        return {"kind": PRETRAINED, "reading": PRETRAINED, "top_k": 0, "probe": "none",
                "window": 0, "density": 1.0, "distant_density": 1.0, "scores": found}  # fmt: skip

    def hard(self, kind: str, reading: Reading, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One hard mask; the window alone is widened until it keeps as many pairs as the routers
        did, whose row is among those before."""
        config = self.model.focus_state.config
        window, routed = config.window, None
        if kind == "window":
            routed = _routed(reading, before)
            tokens = self.documents[0][1].shape[1]
            window = equal_window(tokens, config.sinks, routed["density"])
        counts: list[PairCounts] = []

        def after() -> None:
            counts.extend(c for c in focus.pair_counts(self.model).values() if c is not None)
            self.after_window()

        with focus.mode(self.model, "hard", balance="causal", top_k=reading.top_k,
                        probe=reading.probe, window=window):  # fmt: skip
            found = self._score(after)
        kept, distant = sum(c.distant_kept for c in counts), sum(c.distant for c in counts)
        near, causal = sum(c.near for c in counts), sum(c.causal for c in counts)
        share = (near + kept) / causal
        return {
            "kind": kind, "reading": reading.name, "top_k": reading.top_k, "probe": reading.probe,
            "window": window, "density": share,
            "distant_density": _beyond(share, routed) if routed else kept / max(1, distant),
            "scores": found,
        }  # fmt: skip

    def oracle(self, kind: str, reading: Reading,
               before: Sequence[dict[str, Any]]) -> dict[str, Any]:  # fmt: skip
        """As many distant pairs as the routers keep, chosen by full attention's own weights."""
        config, routed = self.model.focus_state.config, _routed(reading, before)
        with oracle(self.model, routed["distant_density"], config.window, config.sinks):
            found = self._score(self.after_window)
        return {**routed, "kind": kind, "scores": found}

    def _score(self, after: Callable[[], None]) -> list[dict]:
        found = evaluation.score_documents(self.model, self.documents, self.score_from, after)
        return evaluation.score_to_plain(found)


def _routed(reading: Reading, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The trained routers' row of that reading."""
    return next(row for row in before if (row["kind"], row["reading"]) == (ROUTED, reading.name))


def _beyond(density: float, routed: dict[str, Any]) -> float:
    """The distant pairs, by the routers' own window, that a wider window keeps: a share of them."""
    if routed["distant_density"] == 1.0:
        return 1.0
    near = (routed["density"] - routed["distant_density"]) / (1 - routed["distant_density"])
    return (density - near) / (1 - near) if near < 1 else 1.0


def parts_fingerprint(trial: Trial, protocol: ProtocolSettings, chosen: Settings) -> str:
    """Names everything that a seed's scores depend on."""
    recipe = chosen.recipe
    known = [
        trial.focus.to_dict(), asdict(trial.retrofit), trial.seeds, trial.final, trial.controls,
        asdict(protocol),
        [asdict(r) for r in recipe.readings], recipe.controls, recipe.calibration,
        asdict(chosen.model), manifest(),
    ]  # fmt: skip
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(run: Run, trial: Trial, chosen: Settings, protocol: ProtocolSettings,
           found: Sequence[dict[str, Any]]) -> None:  # fmt: skip
    """Tables and metrics: changes against pretrained and against the routers at equal reading."""
    groups = grouped(found)
    # Controls were made with the first seed, to its density: that seed is what they stand beside.
    routed = {
        reading: _scores(rows[0]) for (kind, reading), rows in groups.items() if kind == ROUTED
    }
    baseline = mean_scores(groups[PRETRAINED, PRETRAINED])
    table = []
    for (kind, reading), rows in groups.items():
        own = mean_scores(rows)
        intervals = {"delta": _change(own, baseline, chosen)}
        if kind not in (PRETRAINED, ROUTED):
            intervals["versus_routed"] = _change(own, routed[reading], chosen)
        by_seed = [evaluation.perplexity(_scores(r)) / evaluation.perplexity(baseline) - 1
                   for r in rows]  # fmt: skip
        flat: dict[str, float] = {"ppl": evaluation.perplexity(own)}
        for key, each in intervals.items():
            run.metric(f"{kind}.{reading}.{key}", each.value, each.low, each.high, n=len(own))
            flat |= {key: each.value, f"{key}_low": each.low, f"{key}_high": each.high}
        flat |= {"delta_least": min(by_seed), "delta_most": max(by_seed), "seeds": len(rows)}
        first = {key: rows[0][key] for key in ("top_k", "probe", "window")}
        means = {key: sum(r[key] for r in rows) / len(rows)
                 for key in ("density", "distant_density")}  # fmt: skip
        run.metric(f"{kind}.{reading}.distant_density", means["distant_density"])
        table.append({"trial": trial.name, "final": trial.final, "kind": kind, "reading": reading,
                      "K": trial.focus.num_groups, **first, **means, **flat,
                      "context": protocol.context, "n_documents": len(own)})  # fmt: skip
    run.table(pd.DataFrame(table), "table.csv")
    run.table(documents_table(trial, groups), "documents.csv")
    run.table(losses_table(found), "train.csv")
    training = trial.retrofit
    run.metric("train_tokens", training.steps * training.batch_size * training.context)
    run.note("seeds", list(trial.seeds))
    run.note("train_seconds", [round(each["train_seconds"], 1) for each in found])


def grouped(found: Sequence[dict[str, Any]]) -> Groups:
    """Rows of all seeds by kind and reading, in the order of the first seed."""
    groups: Groups = {}
    for seed in found:
        for row in seed["rows"]:
            groups.setdefault((row["kind"], row["reading"]), []).append(row)
    return groups


def mean_scores(rows: Sequence[dict[str, Any]]) -> list[DocumentScore]:
    """Each document's nats averaged over seeds."""
    seeds = [_scores(row) for row in rows]
    return [
        replace(each[0], nll=sum(score.nll for score in each) / len(each))
        for each in zip(*seeds, strict=True)
    ]


def documents_table(trial: Trial, groups: Groups) -> pd.DataFrame:
    """One row a mask, seed and document: what paired comparisons are made from."""
    return pd.DataFrame([
        {"trial": trial.name, "kind": kind, "reading": reading, "seed": seed,
         "document": score.title, "nll": score.nll, "tokens": score.tokens}
        for (kind, reading), rows in groups.items()
        for seed, row in zip(trial.seeds, rows, strict=False)  # controls: the first seed alone
        for score in _scores(row)
    ])  # fmt: skip


def losses_table(found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Loss of every step and seed."""
    return pd.DataFrame([
        {"seed": seed["seed"], "step": step, "loss": loss}
        for seed in found
        for step, loss in enumerate(seed["losses"], 1)
    ])  # fmt: skip


def _scores(row: dict[str, Any]) -> list[DocumentScore]:
    return evaluation.score_from_plain(row["scores"])


def _change(scores: list[DocumentScore], base: list[DocumentScore],
            chosen: Settings) -> evaluation.Interval:  # fmt: skip
    return evaluation.relative_change(scores, base, chosen.bootstrap, chosen.seed)


if __name__ == "__main__":
    main()
