"""Stage recipe: ways to train routers for the hard mask, trial by trial, with causal potentials.

`python -m experiments.stages.recipe --cell TRIAL` trains the trial once with each of its seeds
(adapters stay in data/adapters/recipe/TRIAL/) and scores every hard mask of `recipe.readings`: on
validation books while searching; on test books for finalists. `controls: true` adds
`recipe.controls`, which keep no fewer pairs than the first seed's routers. Scores are averaged over
seeds before documents are resampled, and every change is paired over documents. A killed run goes
on from the last checkpoint and finished seed.

Several processes can share the seeds: `--seed N` trains and scores that one and leaves the rest to
the plain command, which then finds it done. `--score` trains nothing: it scores the routers that an
earlier run left, under other readings, say.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import focus
from experiments import evaluation, models, readings, settings
from experiments.data import TRAINING, manifest
from experiments.evaluation import Partial
from experiments.readings import Documents
from experiments.recipe_settings import Trial
from experiments.record import Run, write_json
from experiments.settings import ProtocolSettings, Settings
from experiments.stages.retrofit import fingerprint, train
from experiments.trained import (
    ADAPTERS,
    TRAINED,
    config_in,
    routed_so,
    told,
    trained_on,
    trained_so,
    trial_named,
)

CHECKPOINTS = Path("checkpoints/recipe")


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a name under `recipe.trials`")
    parser.add_argument("--seed", type=int, help="this one of the trial's seeds alone")
    parser.add_argument("--score", action="store_true", help="train nothing")
    options = parser.parse_args()
    cell, chosen = options.cell, settings.load()
    trial = trial_named(cell, chosen)
    torch.set_num_threads(chosen.threads)
    seeds = trial.seeds if options.seed is None else (options.seed,)
    if not set(seeds) <= set(trial.seeds):
        raise SystemExit(f"recipe.trials.{cell}.seeds: {options.seed} is not among {trial.seeds}")
    if options.score:
        refuse_others(trial, seeds)
    if options.seed is None:
        with Run("recipe", cell, chosen) as run:
            recipe(run, trial, chosen, options.score)
    else:
        finished(trial, options.seed, chosen, options.score)


def refuse_others(trial: Trial, seeds: Sequence[int]) -> None:
    """Raises SystemExit where there are no routers of the trial as params.yaml has it."""
    for seed in seeds:
        folder = ADAPTERS / trial.name / f"seed{seed}"
        known = trained_so(folder, trial) and routed_so(folder, trial)
        if not (known and "losses" in told(folder)):
            raise SystemExit(
                f"{folder}: has no routers that were trained as params.yaml says; leave out --score"
            )


def recipe(run: Run, trial: Trial, chosen: Settings, score: bool = False) -> None:
    """Trains and scores one trial with every seed, and records it; ``score``: trains nothing."""
    found = [finished(trial, seed, chosen, score) for seed in trial.seeds]
    run.note("trained", "in an earlier run" if score else "in this run")
    record(run, trial, chosen, protocol_of(trial, chosen), found)
    shutil.rmtree(CHECKPOINTS / trial.name)


def finished(trial: Trial, seed: int, chosen: Settings, score: bool = False) -> dict[str, Any]:
    """A seed's adapter and scores, from disk where an earlier process made them; controls come
    with the first seed.

    Args:
        score: take the adapter that there is and train nothing.
    """
    protocol = protocol_of(trial, chosen)
    split, block = ("test", "protocol") if trial.final else ("validation", "search")
    documents = evaluation.protocol_windows(protocol, split, f"recipe.{block}")
    own = Partial(
        CHECKPOINTS / trial.name / f"seed{seed}.json", parts_fingerprint(trial, protocol, chosen)
    )
    with_controls = trial.controls and seed == trial.seeds[0]
    if config_in(ADAPTERS / trial.name / f"seed{seed}") is None:
        own.forget("scores")  # the routers are wanted too, not their scores alone
    return own.get("scores", lambda: one_seed(trial, seed, documents, chosen, with_controls, score))


def protocol_of(trial: Trial, chosen: Settings) -> ProtocolSettings:
    """How a trial is scored: finalists otherwise than those in search."""
    return chosen.recipe.protocol if trial.final else chosen.recipe.search


def one_seed(trial: Trial, seed: int, documents: Documents, chosen: Settings,
             with_controls: bool, score: bool) -> dict[str, Any]:  # fmt: skip
    """Adapter, losses and scores of one seed, as plain values."""
    model, _ = models.load(chosen.model.name, chosen.model.dtype)
    here, adapter = replace(chosen, seed=seed), ADAPTERS / trial.name / f"seed{seed}"
    if score:
        focus.load_adapter(model, adapter)
    else:
        folder = CHECKPOINTS / trial.name / fingerprint(trial.focus, trial.retrofit, here)
        module = train(model, trial.focus, trial.retrofit, seed, folder, folder / "dvclive").module
        focus.save_adapter(model, adapter)
        course = {"losses": module.losses, "seconds": module.seconds}
        write_json(adapter / TRAINED, trained_on(trial) | course)
    score_from = protocol_of(trial, chosen).score_from
    rows = readings.scores(model, trial, documents, score_from, here, with_controls)
    course = told(adapter)
    return {"seed": seed, "losses": course["losses"], "train_seconds": course["seconds"],
            "rows": rows}  # fmt: skip


def parts_fingerprint(trial: Trial, protocol: ProtocolSettings, chosen: Settings) -> str:
    """Names everything that a seed's scores depend on."""
    recipe = chosen.recipe
    known = [
        trial.focus.to_dict(), asdict(trial.retrofit), trial.seeds, trial.final, trial.controls,
        asdict(protocol),
        [asdict(r) for r in recipe.readings], recipe.controls, recipe.calibration,
        asdict(chosen.model), manifest(), manifest(TRAINING[trial.retrofit.texts]),
    ]  # fmt: skip
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(run: Run, trial: Trial, chosen: Settings, protocol: ProtocolSettings,
           found: Sequence[dict[str, Any]]) -> None:  # fmt: skip
    """Tables and metrics of the scores, and how the training went."""
    readings.record(run, trial, chosen, protocol.context, found)
    run.table(losses_table(found), "train.csv")
    training = trial.retrofit
    run.metric("train_tokens", training.steps * training.batch_size * training.context)
    run.note("seeds", list(trial.seeds))
    run.note("train_seconds", [round(each["train_seconds"], 1) for each in found])


def losses_table(found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Loss of every step and seed."""
    return pd.DataFrame([
        {"seed": seed["seed"], "step": step, "loss": loss}
        for seed in found
        for step, loss in enumerate(seed["losses"], 1)
    ])  # fmt: skip


if __name__ == "__main__":
    main()
