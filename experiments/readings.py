"""Scores of trained routers, and of controls, under the hard masks of ``recipe.readings``.

Scores are averaged over seeds before documents are resampled; every change is paired over
documents.

Shapes: N windows, T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation
from experiments.controls import controlled, equal_window, groups_keeping
from experiments.data import TRAINING, WindowSequence, load_split
from experiments.evaluation import DocumentScore
from experiments.oracle import oracle
from experiments.recipe_settings import ORACLES, Reading, Trial
from experiments.record import Run
from experiments.settings import Settings
from focus.density import PairCounts

ROUTED, PRETRAINED = "routed", "pretrained"
Documents = list[tuple[str, Tensor]]
Groups = dict[tuple[str, str], list[dict[str, Any]]]  # rows of every seed by kind and reading


def scores(model: PreTrainedModel, trial: Trial, documents: Documents, score_from: int,
           chosen: Settings, with_controls: bool) -> list[dict[str, Any]]:  # fmt: skip
    """A row for the pretrained model and for every reading of the routers and of controls that
    masks anything.

    Args:
        model: with the trial's trained routers, in evaluation mode.
        documents: title and windows (N, T) of each.
        score_from: first scored position of a window.
        chosen: gives the readings, the controls and their seed.
        with_controls: whether controls are scored too.
    """
    recipe = chosen.recipe
    controls = recipe.controls if with_controls else ()
    calibration: list[Tensor] = []
    if "random" in controls:
        context = documents[0][1].shape[1]
        texts = load_split("train", TRAINING[trial.retrofit.texts])
        drawn = WindowSequence(texts, context, recipe.calibration, chosen.seed)
        calibration = [drawn[i]["input_ids"].unsqueeze(0) for i in range(len(drawn))]
    masking = [each for each in recipe.readings if each.masks(trial.focus.num_groups)]
    # Oracles take whatever weighs most: further keys would only move their density a little.
    wanted = [(kind, each) for kind, each in itertools.product((ROUTED, *controls), masking)
              if kind not in ORACLES or not each.ngram]  # fmt: skip
    with evaluation.progress() as bar:
        windows = sum(len(w) for _, w in documents)
        task = bar.add_task(trial.name, total=(1 + len(wanted)) * windows)
        scorer = Scorer(model, documents, score_from, lambda: bar.advance(task))
        rows = [scorer.pretrained()]
        for kind, reading in wanted:
            name = f"{trial.name} seed {chosen.seed} {kind} {reading.name}"
            bar.update(task, description=name)
            place: AbstractContextManager = nullcontext()
            if kind not in (ROUTED, *ORACLES):
                groups = _groups(model, kind, reading, rows, documents)
                place = controlled(model, kind, calibration, chosen.seed, groups)
            with place:
                measure = scorer.oracle if kind in ORACLES else scorer.hard
                rows.append(measure(kind, reading, rows))
    return rows


def _groups(model: PreTrainedModel, kind: str, reading: Reading, before: Sequence[dict[str, Any]],
            documents: Documents) -> int | None:  # fmt: skip
    """Groups of a control that keeps at least as many pairs as the trained routers did; None: it
    has none."""
    if kind == "window":
        return None
    routed = _routed(reading, before)
    if kind == "random":
        return reading.groups_for(routed["distant_density"], routed["K"])
    mask = model.focus_state.config.replace(**reading.mask)
    return groups_keeping(routed["distant_density"], kind, mask, [w for _, w in documents])


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
        groups = self.model.focus_state.config.num_groups
        return {
            "kind": PRETRAINED, "reading": PRETRAINED, "K": groups, "top_k": 0, "probe": "none",
            "ngram": 0, "window": 0, "density": 1.0, "distant_density": 1.0, "scores": found,
        }  # fmt: skip

    def hard(self, kind: str, reading: Reading, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One hard mask; a window without groups is widened until it alone keeps as many pairs as
        the routers did, whose row is among those before, and has their further keys beside."""
        config = self.model.focus_state.config
        window, routed = config.window, None
        if kind == "window":
            routed = _routed(reading, before)
            tokens = self.documents[0][1].shape[1]
            window = equal_window(tokens, config.sinks, routed["density"])
        counts: list[PairCounts | None] = []

        def after() -> None:
            counts.extend(focus.pair_counts(self.model).values())
            self.after_window()

        with focus.mode(self.model, "hard", balance="causal", window=window, **reading.mask):
            found = self._score(after)
        pairs = PairCounts.total(counts)
        own = pairs.distant_density if pairs.distant else 0.0
        return {
            "kind": kind, "reading": reading.name, "K": config.num_groups, "top_k": reading.top_k,
            "probe": reading.probe, "ngram": reading.ngram, "window": window,
            "density": pairs.density,
            "distant_density": _beyond(pairs.density, routed) if routed else own,
            "scores": found,
        }  # fmt: skip

    def oracle(self, kind: str, reading: Reading,
               before: Sequence[dict[str, Any]]) -> dict[str, Any]:  # fmt: skip
        """As many distant pairs as the routers keep, chosen by full attention's own weights, for
        each key head or query head."""
        config, routed = self.model.focus_state.config, _routed(reading, before)
        with oracle(self.model, routed["distant_density"], config.window, config.sinks,
                    each_head=kind == "oracle_heads"):  # fmt: skip
            found = self._score(self.after_window)
        return {**routed, "kind": kind, "ngram": 0, "scores": found}

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


def record(run: Run, trial: Trial, chosen: Settings, context: int,
           found: Sequence[dict[str, Any]]) -> None:  # fmt: skip
    """table.csv, documents.csv and metrics of one trial: changes against the pretrained model and,
    for controls, against the routers at equal reading.

    Args:
        run: where they go.
        context: tokens of a window.
        found: one entry a seed: ``{"seed": ..., "rows": scores(...)}``.
    """
    groups = grouped(found)
    # Controls were made with the first seed, to its density: that seed is what they stand beside.
    routed = {
        reading: scores_of(rows[0]) for (kind, reading), rows in groups.items() if kind == ROUTED
    }
    baseline = mean_scores(groups[PRETRAINED, PRETRAINED])
    table = []
    for (kind, reading), rows in groups.items():
        own = mean_scores(rows)
        intervals = {"delta": _change(own, baseline, chosen)}
        if kind not in (PRETRAINED, ROUTED):
            intervals["versus_routed"] = _change(own, routed[reading], chosen)
        by_seed = [evaluation.perplexity(scores_of(r)) / evaluation.perplexity(baseline) - 1
                   for r in rows]  # fmt: skip
        flat: dict[str, float] = {"ppl": evaluation.perplexity(own)}
        for key, each in intervals.items():
            run.metric(f"{kind}.{reading}.{key}", each.value, each.low, each.high, n=len(own))
            flat |= {key: each.value, f"{key}_low": each.low, f"{key}_high": each.high}
        flat |= {"delta_least": min(by_seed), "delta_most": max(by_seed), "seeds": len(rows)}
        first = {key: rows[0][key] for key in ("K", "top_k", "probe", "ngram", "window")}
        means = {key: sum(r[key] for r in rows) / len(rows)
                 for key in ("density", "distant_density")}  # fmt: skip
        run.metric(f"{kind}.{reading}.distant_density", means["distant_density"])
        table.append({"trial": trial.name, "final": trial.final, "kind": kind, "reading": reading,
                      **first, **means, **flat,
                      "context": context, "n_documents": len(own)})  # fmt: skip
    run.table(pd.DataFrame(table), "table.csv")
    run.table(documents_table(trial, groups), "documents.csv")


def grouped(found: Sequence[dict[str, Any]]) -> Groups:
    """Rows of all seeds by kind and reading, in the order of the first seed."""
    groups: Groups = {}
    for seed in found:
        for row in seed["rows"]:
            groups.setdefault((row["kind"], row["reading"]), []).append(row)
    return groups


def mean_scores(rows: Sequence[dict[str, Any]]) -> list[DocumentScore]:
    """Each document's nats averaged over seeds."""
    seeds = [scores_of(row) for row in rows]
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
        for score in scores_of(row)
    ])  # fmt: skip


def scores_of(row: dict[str, Any]) -> list[DocumentScore]:
    """A row's scores, document by document."""
    return evaluation.score_from_plain(row["scores"])


def _change(scores: list[DocumentScore], base: list[DocumentScore],
            chosen: Settings) -> evaluation.Interval:  # fmt: skip
    return evaluation.relative_change(scores, base, chosen.bootstrap, chosen.seed)
