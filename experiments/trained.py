"""Models as experiments train and read them: what they start from, the method, what was trained."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import focus
from experiments import record, registry, texts
from experiments.methods.base import Method, built
from experiments.regimes.tensors import cast
from experiments.settings import Experiment, Settings, Training
from experiments.sources import catalogue, models, sharded
from experiments.sources.files import STAMP, sha256

if TYPE_CHECKING:
    from experiments.regimes.base import Regime

HARMLESS = ("checkpoint_every",)  # fields of a regime that change nothing about its result


@dataclass(frozen=True)
class Built:
    """A model ready to be read, its tokenizer, and the method that it runs under."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    method: Method


def build(cell: Experiment, seed: int, chosen: Settings) -> Built:
    """The model of a cell, trained, where its regime trains.

    Args:
        seed: of the cell's own.

    Raises:
        ValueError: weights are missing, or were trained under other settings.
    """
    model, method = begin(cell, seed, chosen, trained=True)
    return Built(model.requires_grad_(False), models.load_tokenizer(cell.model), method)


def begin(cell: Experiment, seed: int, chosen: Settings, trained: bool = False,
          spread: bool = False) -> tuple[PreTrainedModel, Method]:  # fmt: skip
    """The model in its number format, from the cell's start, with its method installed. Weights
    that are all trained are float32, whatever they are read in: small updates are lost on others.

    Args:
        trained: with what the cell's own regime has trained.
        spread: on the CPU, from where it is spread over devices; without weights where
            processes can read their parts of them, by :func:`fill`.

    Raises:
        ValueError: as :func:`build`.
    """
    starts = before(cell, seed, chosen)
    own = [(cell, seed)] if trained and cell.trains else []
    whole = cell.trains and cell.regime.all_weights and not trained
    wanted = models.resolve_dtype("float32" if whole else cell.dtype)
    parts = spread and in_parts(cell, chosen) and sharded.readable(cell.model)
    starts = [] if parts else starts  # they come in with the weights
    # LoRA is merged into float32 weights, and the sum rounded once.
    merges = any(each.regime.name == "lora" for each, _ in [*starts, *own])
    if parts:
        model = sharded.bare(cell.model, wanted)
    else:
        model, _ = models.load(cell.model, "float32" if merges else wanted,
                               device="cpu" if spread else None)  # fmt: skip
    for each, its_seed in starts:
        model = _loaded(model, each, its_seed, chosen)
    kind: type[Method] = registry.find("method", cell.method.name)
    if "focus_state" in model.__dict__ and not kind.takes_routers:
        focus.detach(model)  # another method starts from the model, not from its routers
    if cell.trains:
        model = registry.find("regime", cell.regime.name).original(model, seed)
    method = built(kind, cell.method.fields, seed)
    with sharded.as_on_cpu(model):
        method.install(model)
    for each, its_seed in own:
        model = _loaded(model, each, its_seed, chosen)
    model = cast(model, wanted) if merges else model
    if calibrates(cell):
        method.calibrate(model, calibration(cell, seed, chosen))
    return model.eval(), method


def in_parts(cell: Experiment, chosen: Settings) -> bool:
    """Whether processes that share a cell's model can read a part of its weights each: they are
    those of its files, or a LoRA is added to them. What else a cell starts from is made in every
    process of the whole model."""
    starts = [each.regime.name for each, _ in before(cell, cell.seeds[0], chosen)]
    drawn = isinstance(cell.regime, Training) and cell.regime.drawn
    return not drawn and starts in ([], ["lora"])


def fill(model: PreTrainedModel, cell: Experiment, seed: int, chosen: Settings) -> None:
    """Reads the weights of a model from :func:`begin` that is without, and sharded by now; every
    process must call it.

    Raises:
        ValueError: as :func:`build`; or the files do not fit the model.
    """
    if not any(parameter.is_meta for parameter in model.parameters()):
        return
    updates: dict[str, sharded.Update] = {}
    for each, its_seed in before(cell, seed, chosen):
        regime = registry.find("regime", each.regime.name)
        updates |= regime.updates(model, _there(each, its_seed, chosen))
    sharded.fill(model, cell.model, updates)


def before(cell: Experiment, seed: int, chosen: Settings) -> list[tuple[Experiment, int]]:
    """The trained experiments that a cell starts from, the first first, each with the seed that it
    is taken of: the same, where the experiment has it, else its first."""
    found: list[tuple[Experiment, int]] = []
    while cell.start is not None:
        cell = chosen.cell(cell.start)
        seed = seed if seed in cell.seeds else cell.seeds[0]
        found.insert(0, (cell, seed))
    return [(each, its_seed) for each, its_seed in found if each.trains]


def calibration(cell: Experiment, seed: int, chosen: Settings) -> list[Any]:
    """Training windows (1, T) of the cell's texts, as long as the regime's, or as there are."""
    found = texts.training_documents(cell.texts, cell.model, chosen)
    how = chosen.calibration
    longest = min(how.context, max(len(each.tokens) for each in found))
    context = getattr(cell.regime, "context", longest)
    windows = texts.training_windows(cell, chosen, context, how.windows, seed)
    return [windows[index]["input_ids"][None] for index in range(how.windows)]


def folder(cell: Experiment, seed: int, chosen: Settings) -> Path:
    """Where a cell's training is recorded."""
    return record.results(chosen) / cell.block / "train" / f"seed{seed}" / cell.name


def weights(cell: Experiment, seed: int, chosen: Settings) -> Path:
    """Where a cell's trained weights are, or will be."""
    return folder(cell, seed, chosen) / "adapter"


def chain(cell: Experiment, seed: int, chosen: Settings) -> list[Path]:
    """Folders of all trained weights that a cell's model has, the first first.

    Raises:
        ValueError: some are missing, or were trained under other settings.
    """
    own = [(cell, seed)] if cell.trains else []
    return [_there(each, its_seed, chosen)
            for each, its_seed in [*before(cell, seed, chosen), *own]]  # fmt: skip


def settings_of(cell: Experiment, seed: int, chosen: Settings) -> dict[str, Any]:
    """What a training depends on, plain: settings of the cell, of its texts, and of what it starts
    from. How it is read is no part of it."""
    regime = {key: value for key, value in cell.regime.plain().items() if key not in HARMLESS}
    starts = [settings_of(each.model_copy(update={"start": None}), its_seed, chosen)
              for each, its_seed in before(cell, seed, chosen)]  # fmt: skip
    drawn = {"calibration": chosen.calibration.plain()} if calibrates(cell) else {}
    return {"model": cell.model, "dtype": cell.dtype, "method": cell.method.plain(),
            "regime": regime, "texts": {cell.texts: chosen.texts[cell.texts].plain()},
            "seed": seed, "starts": starts, **drawn}  # fmt: skip


def calibrates(cell: Experiment) -> bool:
    """Whether the cell's method needs training windows although it trains nothing."""
    kind: type[Method] = registry.find("method", cell.method.name)
    return kind.calibrate is not Method.calibrate


def is_trained(cell: Experiment, seed: int, chosen: Settings) -> bool:
    """Whether there are weights that were trained under the present settings, as they were
    written."""
    found = record.of(folder(cell, seed, chosen)) or {}
    there = digests(weights(cell, seed, chosen))
    written = found.get("notes", {}).get("weights", there)  # records before 2026-11-27 have none
    same = found.get("settings") == settings_of(cell, seed, chosen)
    return bool(there) and same and there == written


def digests(place: Path) -> dict[str, str]:
    """sha256 of the weights in a folder, by file."""
    return {path.name: sha256(path) for path in sorted(place.glob("*.safetensors"))}


def inputs(cell: Experiment, seed: int, chosen: Settings) -> dict[str, Any]:
    """sha256 of what a training takes in beside its settings: texts, weights to start from, and a
    model of the user's own.

    Raises:
        ValueError: they are missing.
    """
    starts = {}
    for each, its_seed in before(cell, seed, chosen):
        place = _there(each, its_seed, chosen)
        starts[f"{each.name}.seed{its_seed}"] = list(digests(place).values())
    own = given(cell.model)
    known = {"texts": texts.fingerprint(cell.texts, "train"), "starts": starts}
    return {**known, "model": own} if own else known


def given(model: str) -> str | None:
    """sha256 of a model that came from FOCUS_DATA, where another may take its name; None: it is of
    the list, which is pinned."""
    stamp = catalogue.ROOT / model / STAMP
    if not stamp.is_file():
        return None
    told = json.loads(stamp.read_text(encoding="utf-8"))
    return str(told["sha256"]) if told.get("from") == "FOCUS_DATA" else None


def fingerprint(*known: Any) -> str:
    """Names plain values."""
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _there(cell: Experiment, seed: int, chosen: Settings) -> Path:
    place = weights(cell, seed, chosen)
    if not is_trained(cell, seed, chosen):
        raise ValueError(
            f"{place}: is missing, not as it was written, or trained under other settings; run "
            f"`python -m experiments.stages.train {cell.block} --seed {seed}` first"
        )
    return place


def _loaded(model: PreTrainedModel, cell: Experiment, seed: int,
            chosen: Settings) -> PreTrainedModel:  # fmt: skip
    place = _there(cell, seed, chosen)
    regime: type[Regime] = registry.find("regime", cell.regime.name)
    try:
        return regime.load(model, place)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{place}: cannot be read ({error}); delete this folder, and run "
            f"`python -m experiments.stages.train {cell.block} --seed {seed}`"
        ) from error
