"""Stage copying: do routers find a passage again that the window has already held?

`python -m experiments.stages.copying --cell TRIAL` loads the adapters that `recipe` left in
data/adapters/recipe/TRIAL/ and scores every hard mask of `recipe.readings`, and `copying.controls`,
on windows of the test documents whose end repeats a passage word for word, at each of
`copying.distances`. Beside them stands the same passage as the pretrained model reads it for the
first time: the two make the scale on which a mask's share is measured (1: copies as the pretrained
model does, 0: as if it had not read the passage before). A killed run goes on from the last
finished distance and seed; `--seed N` scores that seed alone.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

import focus
from experiments import copying, models, readings, settings
from experiments.data import load_split
from experiments.evaluation import DocumentScore, Partial
from experiments.readings import PRETRAINED, Documents
from experiments.recipe_settings import Trial
from experiments.record import Run
from experiments.settings import Settings
from experiments.stages.transfer import fingerprint, sources_of
from experiments.trained import adapter_folder, refuse_searched, trial_named

PARTIAL = Path("checkpoints/copying")
NEW = "new"  # kind of the row in which nothing was read before
Rows = list[dict[str, Any]]


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a name under `recipe.trials`")
    parser.add_argument("--seed", type=int, help="this one of the trial's seeds alone")
    options = parser.parse_args()
    chosen = settings.load()
    trial = trial_named(options.cell, chosen)
    torch.set_num_threads(chosen.threads)
    try:
        refuse_searched(trial)
        folders = {seed: adapter_folder(trial, seed) for seed in trial.seeds}
        texts = windows(chosen)
    except ValueError as error:
        raise SystemExit(f"copying: {error}") from error
    if options.seed is not None:
        if options.seed not in folders:
            raise SystemExit(f"recipe.trials.{trial.name}.seeds: {options.seed} is not among them")
        finished(trial, options.seed, folders[options.seed], texts, chosen)
        return
    with Run("copying", trial.name, chosen) as run:
        every = [finished(trial, seed, folders[seed], texts, chosen) for seed in trial.seeds]
        record(run, trial, every, chosen)
    shutil.rmtree(PARTIAL / trial.name)


def windows(chosen: Settings) -> dict[int, tuple[Documents, Documents]]:
    """By distance: a window (1, T) of each document whose end it has read before, and the same with
    other text there.

    Raises:
        ValueError: too few test documents, or too short ones.
    """
    how, documents = chosen.copying, load_split("test")
    if len(documents) < how.documents:
        raise ValueError(
            f"copying.documents: {how.documents} asked for, the test split has {len(documents)}; "
            "lower it or change corpus.test_every"
        )
    made = [(each.title, *copying.windows(each, how)) for each in documents[: how.documents]]
    return {
        distance: (
            [(title, seen[n : n + 1]) for title, seen, _ in made],
            [(title, new[n : n + 1]) for title, _, new in made],
        )
        for n, distance in enumerate(how.distances)
    }


def finished(trial: Trial, seed: int, folder: Path,
             texts: dict[int, tuple[Documents, Documents]],
             chosen: Settings) -> dict[int, Rows]:  # fmt: skip
    """A seed's rows by distance, from disk where an earlier process made them; controls come with
    the first seed."""
    loaded: list[PreTrainedModel] = []

    def model() -> PreTrainedModel:
        if not loaded:
            loaded.append(models.load(chosen.model.name, chosen.model.dtype)[0])
            focus.load_adapter(loaded[0], folder)
        return loaded[0]

    documents = [each for seen, new in texts.values() for each in (*seen, *new)]
    path = PARTIAL / trial.name / f"seed{seed}.json"
    chosen = replace(chosen, recipe=replace(chosen.recipe, controls=chosen.copying.controls))
    own = Partial(path, fingerprint(trial, documents, folder, chosen, chosen.copying))
    return {
        distance: own.get(
            str(distance), lambda both=both: {"rows": scores(model(), trial, seed, both, chosen)}
        )["rows"]
        for distance, both in texts.items()
    }


def scores(model: PreTrainedModel, trial: Trial, seed: int, both: tuple[Documents, Documents],
           chosen: Settings) -> Rows:  # fmt: skip
    """Rows of every mask on the passages read again, and of the pretrained model on them as new."""
    how, (seen, new) = chosen.copying, both
    score_from = how.context - how.passage + how.lead
    here = replace(chosen, seed=seed)
    with_controls = trial.controls and seed == trial.seeds[0]
    rows = readings.scores(model, trial, seen, score_from, here, with_controls)
    unread = readings.Scorer(model, new, score_from, lambda: None).pretrained()
    return [*rows, {**unread, "kind": NEW}]


def record(run: Run, trial: Trial, every: Sequence[dict[int, Rows]], chosen: Settings) -> None:
    """table.csv over all distances, distances.csv of each, and metrics."""
    distances = list(every[0])
    all_rows = [copying.together([seed[distance] for distance in distances]) for seed in every]
    run.table(pd.DataFrame(table(trial, all_rows, chosen, run)), "table.csv")
    apart = [
        {"distance": distance, **row}
        for distance in distances
        for row in table(trial, [seed[distance] for seed in every], chosen)
    ]
    run.table(pd.DataFrame(apart), "distances.csv")
    run.note("seeds", list(trial.seeds))
    run.note("trained_on", sources_of(trial, chosen))


def table(trial: Trial, seeds: Sequence[Rows], chosen: Settings,
          run: Run | None = None) -> Rows:  # fmt: skip
    """A row a mask: nats a token of the passage, those above the pretrained model's, and the share
    of its gain from the first reading; means over seeds, intervals over documents."""
    groups = readings.grouped([{"rows": rows} for rows in seeds])
    seen = readings.mean_scores(groups[PRETRAINED, PRETRAINED])
    new = readings.mean_scores(groups[NEW, PRETRAINED])
    made = []
    for (kind, reading), rows in groups.items():
        every = [readings.mean_scores(rows), *(readings.scores_of(row) for row in rows)]
        share, *own = [
            copying.found(each, seen, new, chosen.bootstrap, chosen.seed) for each in every
        ]
        if run is not None:
            name = f"{kind}.{reading}.copied"
            run.metric(name, share.value, share.low, share.high, n=len(seen))
        made.append({
            "trial": trial.name, "kind": kind, "reading": reading,
            **{key: rows[0][key] for key in ("K", "top_k", "probe", "ngram", "window")},
            "distant_density": sum(row["distant_density"] for row in rows) / len(rows),
            "nats": nats(every[0]), "above": nats(every[0]) - nats(seen),
            "copied": share.value, "copied_low": share.low, "copied_high": share.high,
            "copied_least": min(each.value for each in own),
            "copied_most": max(each.value for each in own),
            "seeds": len(rows), "context": chosen.copying.context,
            "passage": chosen.copying.passage, "n_documents": len(seen),
        })  # fmt: skip
    return made


def nats(scores: Sequence[DocumentScore]) -> float:
    """Nats a token over all documents."""
    return sum(each.nll for each in scores) / sum(each.tokens for each in scores)


if __name__ == "__main__":
    main()
