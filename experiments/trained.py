"""Routers that were trained before, as other stages take them: a variant's from results/retrofit, a
trial's from data/adapters/recipe, with what stands beside them about their training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

import focus
from experiments import models
from experiments.blocks import RetrofitSettings
from experiments.data import TRAINING, manifest
from experiments.recipe_settings import Trial
from experiments.settings import Settings

ADAPTERS = Path("data/adapters/recipe")  # too large for git
VARIANTS = Path("results/retrofit")
TRAINED = "training.json"  # beside a seed's routers
NO_MASK: Mapping[str, Any] = MappingProxyType({})  # the adapter's own config


@dataclass(frozen=True)
class Routed:
    """Trained routers, and the hard mask that they are read under.

    Attributes:
        name: in tables and, without dots, in metrics.
        adapter: what focus.load_adapter takes.
        mask: overrides of :class:`focus.mode`; none: the adapter's own config.
    """

    name: str
    adapter: Path
    mask: Mapping[str, Any]

    def load(self, chosen: Settings, dtype: str | None = None) -> tuple[PreTrainedModel, Any]:
        """The model of params.yaml with these routers, and its tokenizer; ``dtype``: another than
        ``model.dtype``."""
        model, tokenizer = models.load(chosen.model.name, dtype or chosen.model.dtype)
        focus.load_adapter(model, self.adapter)
        return model, tokenizer


def of_variants(names: Sequence[str], chosen: Settings) -> list[Routed]:
    """Routers of variants, each under its own config; ValueError where there is no such variant."""
    for name in names:
        chosen.variant(name)
    return [Routed(name, VARIANTS / name / "adapter", NO_MASK) for name in names]


def of_trial(trial: Trial, names: Sequence[str], chosen: Settings) -> list[Routed]:
    """A trial's routers of its first seed under hard masks with causal potentials.

    Args:
        names: of ``recipe.readings``; none: all that mask anything.

    Raises:
        ValueError: as :func:`adapter_folder`; the trial is no finalist; none of the masks masks
            anything.
    """
    refuse_searched(trial)
    folder = adapter_folder(trial, trial.seeds[0])
    masking = [each for each in chosen.recipe.readings if each.masks(trial.focus.num_groups)]
    every = [each for each in masking if not names or each.name in names]
    if not every:
        raise ValueError(f"recipe.trials.{trial.name}: none of the readings masks anything")
    return [Routed(f"{trial.name}-{each.name.replace('.', '-')}", folder,
                   {"balance": "causal", **each.mask})
            for each in every]  # fmt: skip


def asked_for(doc: str | None, block: str, chosen: Settings) -> tuple[str | None, list[Routed]]:
    """What a stage's command line asks for: the trial of ``--trial NAME``, under the masks of the
    block's ``readings``, or nothing, and then the block's ``variants``.

    Args:
        doc: the stage's description.
        block: the stage's block of params.yaml: ``leak`` or ``generation``.

    Returns:
        The trial's name, None for variants; the routers. SystemExit, naming the cure, where there
        are none.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--trial", help="whose routers; without it those of the block's variants")
    name, how = parser.parse_args().trial, getattr(chosen, block)
    if name is None:
        return None, of_variants(how.variants, chosen)
    try:
        return name, of_trial(trial_named(name, chosen), how.readings, chosen)
    except ValueError as error:
        raise SystemExit(f"{block}: {error}") from error


def refuse_searched(trial: Trial) -> None:
    """Raises ValueError for a trial whose choice is still open: test books must not decide it."""
    if not trial.final:
        raise ValueError(f"recipe.trials.{trial.name}.final: only finalists are read on test books")


def trial_named(name: str, chosen: Settings) -> Trial:
    """A trial of params.yaml; SystemExit with the names that there are."""
    if name not in chosen.recipe.trials:
        known = ", ".join(chosen.recipe.trials)
        raise SystemExit(f"recipe.trials.{name}: no such trial; there are {known}")
    return chosen.recipe.trials[name]


def adapter_folder(trial: Trial, seed: int) -> Path:
    """Where the recipe stage left the routers of a seed.

    Raises:
        ValueError: it has not been run here, or with other routing, training or texts: params.yaml
            would then say of these routers what is not so.
    """
    folder = ADAPTERS / trial.name / f"seed{seed}"
    if not folder.is_dir():
        raise ValueError(f"{folder} is missing: run `dvc repro recipe@{trial.name}` first")
    if not routed_so(folder, trial):
        raise ValueError(
            f"{folder}: its routers are not those of recipe.trials.{trial.name} in params.yaml; "
            f"run `dvc repro recipe@{trial.name}` again"
        )
    if not trained_so(folder, trial):
        texts = TRAINING[trial.retrofit.texts]
        raise ValueError(
            f"{folder}: its routers were not trained as params.yaml and {texts} say; bring these "
            "back (`python -m experiments.scale NAME`, `dvc repro mixture`), or run "
            f"`dvc repro recipe@{trial.name}` again"
        )
    return folder


def trained_on(trial: Trial) -> dict[str, Any]:
    """How a trial is trained under the present settings, and on which texts."""
    training = json.loads(json.dumps(asdict(trial.retrofit)))  # lists, as they are read again
    gate = {"probes": trial.focus.probes, "hard_keys": trial.focus.hard_keys}
    return {"retrofit": training, "gate": gate,
            "texts": manifest(TRAINING[trial.retrofit.texts])}  # fmt: skip


def trained_so(folder: Path, trial: Trial) -> bool:
    """Whether the routers of a folder were trained as :func:`trained_on` says of the trial.

    A setting that there was not yet when they were had the effect of its default. Routers of before
    the gate was recorded are taken to have had the trial's.
    """
    known = told(folder)
    if not known:
        return False
    since = {each.name: each.default for each in fields(RetrofitSettings)
             if each.default is not MISSING}  # fmt: skip
    retrofit = json.loads(json.dumps(since)) | known["retrofit"]
    wanted = trained_on(trial)
    gate = known.get("gate", wanted["gate"])
    return {"retrofit": retrofit, "gate": gate, "texts": known["texts"]} == wanted


def told(folder: Path) -> dict[str, Any]:
    """What stands beside a seed's routers: settings and texts of their training, its losses and
    seconds; {} where nothing does."""
    path = folder / TRAINED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def routed_so(folder: Path, trial: Trial) -> bool:
    """Whether the routers of a folder route as the trial says; how many groups queries and keys
    take, and further keys, are each reading's own."""
    found = config_in(folder)
    own = {name: getattr(trial.focus, name) for name in ("top_k", "probe", "ngram", "ngram_keys")}
    return found is not None and found.replace(**own) == trial.focus


def config_in(folder: Path) -> focus.FocusConfig | None:
    """The config of the routers that a folder holds; None: it holds none."""
    try:
        return focus.FocusAdapter.from_pretrained(folder).config
    except ValueError:
        return None
