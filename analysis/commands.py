"""How a row of the ledger would be measured: its command, the cell of params.yaml and scales/ that
this resolves to, and what that needs: weights, texts, devices, hours."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from analysis import hours, scope
from analysis.paper import Claim, model_name, paper
from experiments import plans, settings, sources
from experiments.settings import Experiment, Settings

ROOT = Path(__file__).parents[1]
FEW = 0.1  # hours: below, an estimate from operations says nothing


@cache
def chosen(scale: str) -> Settings | None:
    """The settings of a scale; None where it does not fit a params.yaml that somebody has cut."""
    try:
        return settings.load(ROOT / "params.yaml", scale, ROOT / "scales")
    except ValueError:  # `python -m experiments.settings` says why; the ledger does without
        return None


@cache
def listed() -> dict[str, sources.Source]:
    """Sources by name; the list takes a second to read."""
    return sources.sources()


def place(claim: Claim) -> tuple[str, str] | None:
    """Scale and experiment that have the claim's own model; None where it names none, or no
    experiment reads it."""
    stage, _, experiment = claim.stage.partition("@")
    model = paper()["models"].get(claim.model or "")
    if stage != "read" or not experiment or not model:
        return None
    scale = "cluster" if claim.setting.get("cluster") else model.get("scale", "gpu")
    return scale, experiment


def cell(claim: Claim) -> Experiment | None:
    """The cell that a claim's command trains and reads: of its model, and of its text, where one
    is; None where the command has no cell of its model."""
    found = place(claim)
    known = chosen(found[0]) if found else None
    if found is None or known is None or found[1] not in known.experiments:
        return None
    own = [each for each in known.cells(found[1]).values()
           if scope.same_model(claim, each.model)]  # fmt: skip
    text = scope.text_of(claim)
    return next((each for each in own if scope.same(each.texts, text)), own[0] if own else None)


def command(claim: Claim) -> str | None:
    """The command that would measure a claim, None where it is not built."""
    stage, _, experiment = claim.stage.partition("@")
    if stage == "analysis":
        return "python -m analysis"
    if importlib.util.find_spec(f"experiments.stages.{stage}") is None:
        return None
    if stage != "read":
        return f"python -m experiments.stages.{stage}"
    if found := place(claim):
        scale, experiment = found
        own = cell(claim) is not None
        return f"FOCUS_HUB=1 make reproduce SCALE={scale} ONLY={experiment}" if own else None
    return f"dvc repro read@{experiment}" if experiment else None


def reason(claim: Claim) -> str:
    """Why a claim has not been run, in concrete terms; the same words for the same reason."""
    needs, model, own = [], paper()["models"].get(claim.model or ""), cell(claim)
    if claim.setting.get("cluster"):
        needs.append("a cluster to train on 2B tokens")
    if claim.setting.get("hardware"):
        needs.append(f"a GPU (the paper: {claim.setting['hardware']})")
    elif model:
        drawn = own is not None and own.regime.name.startswith("scratch")
        what = "the shape and tokenizer" if drawn else "the weights"
        needs.append(f"{what} of {model_name(str(claim.model))} ({weights(own, model['hub'])})")
    if own is not None and (found := place(claim)):
        needs += [*texts(own, chosen(found[0])), *took(own, chosen(found[0]))]
    if command(claim) is None:
        needs.append("an experiment of its own (`docs/how-to-add.md`)")
    elif not needs:
        needs.append(f"its result files: `{command(claim)}`")
    return "needs " + "; ".join(needs)


def weights(own: Experiment | None, theirs: str) -> str:
    """Where weights come from; beside it what the paper names, where that is something else."""
    source = listed().get(own.model) if own is not None else None
    if source is None:
        return theirs
    gated = ", gated" if "gated" in source.what else ""
    return f"{source.repo}{gated}" + (f"; the paper: {theirs}" if source.repo != theirs else "")


def texts(own: Experiment, known: Settings) -> list[str]:
    """Where the texts of a cell come from, but for those of the package index."""
    read = [text for name in own.readings for text in known.readings[name].texts]
    blocks = plans.texts([*read, *plans.trained_on(own, known)], known).values()
    wanted = [listed()[name] for name in sorted({block["source"] for block in blocks})]
    hub = [each.repo for each in wanted if each.kind == "hub"]
    folders = [each.name for each in wanted if each.kind == "folder"]
    found = [f"texts of the hub ({', '.join(hub)})"] if hub else []
    return [*found, f"folders of FOCUS_DATA ({', '.join(folders)})"] if folders else found


def took(own: Experiment, known: Settings) -> list[str]:
    """Devices and hours of a cell, as the table has them; nothing where it does not."""
    row = hours.known(own, known)
    return [] if row is None else [told(row)]


def told(row: Mapping[str, Any]) -> str:
    """A row of the table in words."""
    parts = []
    if row["train_hours"] > 0:
        parts.append(f"{_hours(row['train_hours'])} of training on {row['train_devices']:.0f} x "
                     f"{row['device']} ({_gibibytes(row['train_total'])} of each)")  # fmt: skip
    devices = math.ceil(row["read_total"] / (row["gibibytes"] * 2**30))
    shared = "" if devices == 1 else " in all, one working at a time"
    parts.append(f"{_hours(row['read_hours'])} of reading on {devices} x {row['device']} "
                 f"({_gibibytes(row['read_total'])}{shared})")  # fmt: skip
    return f"by estimate {', '.join(parts)}"


def _hours(value: float) -> str:
    if value < FEW:
        return f"less than {FEW} hours"
    return f"{value:.1f} hours" if value >= 1 else f"{value:.1g} hours"


def _gibibytes(value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if value < 10 * 2**30 else f"{value / 2**30:.0f} GiB"
