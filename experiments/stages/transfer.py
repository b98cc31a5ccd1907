"""Stage transfer: trained routers on texts that they were not trained on.

`python -m experiments.stages.transfer --cell SOURCE` loads the adapters that `recipe` left in
data/adapters/recipe/TRIAL/ (the trial that `transfer.trial` names) and scores every hard mask of
`recipe.readings` on held-out documents of SOURCE: one of `transfer.sources`, or any other corpus,
say a folder of $FOCUS_DATA (fetch it first). `--trial NAME` takes another trial's, and every trial
has results of its own (results/transfer/TRIAL-SOURCE/), as has `--first-window N`, which passes
over the windows before (TRIAL-SOURCE-fromN): text that no choice was made on. That the documents
share no book with the training texts is not checked; nothing is trained here. A killed run goes on
from the last finished seed, and several processes can share the seeds, as those of `recipe` do:
`--seed N`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedTokenizerBase

import focus
from experiments import models, readings, settings, sources, texts
from experiments.data import TRAINING as TEXTS
from experiments.data import manifest, windows
from experiments.evaluation import Partial
from experiments.readings import Documents
from experiments.recipe_settings import CopyingSettings, TransferSettings, Trial
from experiments.record import Run
from experiments.settings import Settings
from experiments.stages import corpus
from experiments.texts import Text
from experiments.trained import adapter_folder, trial_named

PARTIAL = Path("checkpoints/transfer")


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a corpus of sources.yaml or $FOCUS_DATA")
    parser.add_argument("--trial", help="whose routers; without it those of `transfer.trial`")
    parser.add_argument("--seed", type=int, help="this one of the trial's seeds alone")
    parser.add_argument("--first-window", type=int, default=0, help="pass over as many first")
    options = parser.parse_args()
    cell, chosen = options.cell, settings.load()
    trial = trial_named(options.trial or chosen.transfer.trial, chosen)
    first = options.first_window
    if first < 0:
        raise SystemExit(f"--first-window: must be 0 or more, got {first}")
    how = replace(chosen.transfer, trial=trial.name,
                  first_window=chosen.transfer.first_window + first)  # fmt: skip
    chosen = replace(chosen, transfer=how)
    torch.set_num_threads(chosen.threads)
    if options.seed is not None and options.seed not in trial.seeds:
        raise SystemExit(f"recipe.trials.{trial.name}.seeds: {options.seed} is not among them")
    try:
        folders = {seed: adapter_folder(trial, seed) for seed in trial.seeds}
        documents = other_documents(cell, chosen)
    except ValueError as error:
        raise SystemExit(f"transfer: {error}") from error
    cell += f"-from{first}" if first else ""
    if options.seed is not None:
        finished(cell, options.seed, folders[options.seed], documents, chosen)
        return
    with Run("transfer", f"{trial.name}-{cell}", chosen) as run:
        transfer(run, cell, folders, documents, chosen)


def transfer(run: Run, name: str, folders: dict[int, Path], documents: Documents,
             chosen: Settings) -> None:  # fmt: skip
    """Scores the trial's routers of every seed on another corpus, and records it."""
    trial = chosen.recipe.trials[chosen.transfer.trial]
    found = [finished(name, seed, folders[seed], documents, chosen) for seed in trial.seeds]
    readings.record(run, trial, chosen, chosen.transfer.context, found)
    run.note("corpus", name)
    run.note("seeds", list(trial.seeds))
    run.note("trained_on", sources_of(trial, chosen))
    shutil.rmtree(PARTIAL / trial.name / name)


def finished(name: str, seed: int, folder: Path, documents: Documents,
             chosen: Settings) -> dict[str, Any]:  # fmt: skip
    """A seed's scores, from disk where an earlier process made them; controls come with the first
    seed."""
    trial = chosen.recipe.trials[chosen.transfer.trial]

    def score() -> dict[str, Any]:
        model, _ = models.load(chosen.model.name, chosen.model.dtype)
        focus.load_adapter(model, folder)
        here = replace(chosen, seed=seed)
        with_controls = trial.controls and seed == trial.seeds[0]
        return {"seed": seed, "rows": readings.scores(model, trial, documents, 1, here,
                                                      with_controls)}  # fmt: skip

    path = PARTIAL / trial.name / name / f"seed{seed}.json"
    named = fingerprint(trial, documents, folder, chosen, chosen.transfer)
    return Partial(path, named).get("scores", score)


def other_documents(name: str, chosen: Settings) -> Documents:
    """Windows of the first held-out documents of a corpus that are long enough, in a fixed order.

    Raises:
        ValueError: no such corpus, it is the one that the routers were trained on, it is not
            fetched, or it has too few such documents.
    """
    source = sources.find(name, sources.sources())
    kind = chosen.recipe.trials[chosen.transfer.trial].retrofit.texts
    every = texts.read(sources.ROOT / name, source.layout) if name != chosen.corpus.source else []
    refuse_training_texts(name, chosen, kind, [text.split is not None for text in every])
    found, _, _ = texts.distinct(held_out(every), chosen.corpus.max_overlap)
    tokenizer = models.load_tokenizer(chosen.model.name, sources.ROOT)
    return take(sorted(found, key=corpus.fingerprint), tokenizer, chosen.transfer, name)


def sources_of(trial: Trial, chosen: Settings) -> list[str]:
    """The corpora that a trial's routers were trained on."""
    if trial.retrofit.texts == "corpus":
        return [chosen.corpus.source]
    return list(manifest(TEXTS["mixture"])["tokens"])


def refuse_training_texts(name: str, chosen: Settings, kind: str,
                          sides: list[bool]) -> None:  # fmt: skip
    """Raises ValueError for texts that routers were trained on: the corpus, or a source of the
    mixture whose documents have no test side of their own (``kind``: ``corpus`` or ``mixture``;
    ``sides``: whether each document has a side)."""
    if name == chosen.corpus.source:
        raise ValueError(f"{name}: is what the routers were trained on; name another corpus")
    if kind != "mixture" or all(sides):
        return
    if name in chosen.mixture.sources or name in manifest(TEXTS["mixture"])["tokens"]:
        raise ValueError(
            f"{name}: is among mixture.sources, and its documents have no sides of their own; name "
            "another corpus"
        )


def held_out(found: list[Text]) -> list[Text]:
    """All but the training side, where a source has sides: what no model of a user's own was
    trained on either."""
    return [text for text in found if text.split != "train"]


def take(found: Iterable[Text], tokenizer: PreTrainedTokenizerBase, how: TransferSettings,
         name: str) -> Documents:  # fmt: skip
    """The first documents with enough tokens."""
    ready: Documents = []
    wanted = slice(how.first_window, how.first_window + how.windows_per_document)
    least = how.context * wanted.stop
    for text in track(list(found), f"transfer: tokenising {name}"):
        tokens = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) >= least:
            every = windows(torch.tensor(tokens), how.context, how.context)
            ready.append((text.title, every[wanted]))
        if len(ready) == how.documents:
            return ready
    raise ValueError(
        f"transfer.documents: {how.documents} asked for, {name} has {len(ready)} held-out "
        f"documents of {least} tokens; lower it or the windows of each"
    )


def fingerprint(trial: Trial, documents: Documents, folder: Path, chosen: Settings,
                how: TransferSettings | CopyingSettings) -> str:  # fmt: skip
    """Names everything that the scores of one seed's routers depend on; the files of ``folder``
    tell of the training texts too.

    Args:
        how: the stage's own block.
    """
    recipe = chosen.recipe
    known = [asdict(how), asdict(chosen.model), asdict(trial),
             [asdict(reading) for reading in recipe.readings],
             recipe.controls, recipe.calibration, manifest()]  # fmt: skip
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for _, each in documents:
        digest.update(each.numpy().tobytes())
    for path in sorted(folder.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
