"""params.yaml as frozen, validated values: the one place where settings are read.

`python -m experiments.settings` validates the file and says what it holds; every stage calls
:func:`load` before it does anything else, so nonsense is refused before anything runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.blocks import (
    Block,
    BootstrapSettings,
    ControlsSettings,
    CorpusSettings,
    FetchSettings,
    LeakSettings,
    MixtureSettings,
    ModelSettings,
    ProtocolSettings,
    RetrofitSettings,
    TopkSettings,
    plain,
)
from experiments.decode_settings import (
    ContinuationSettings,
    DecodeSettings,
    GenerationSettings,
    PrefillSettings,
)
from experiments.kernel_settings import ExactnessSettings, SpeedSettings
from experiments.recipe_settings import (
    CopyingSettings,
    RecipeSettings,
    TransferSettings,
    parse_recipe,
    recipe_plain,
    routing,
)
from experiments.schema import at_least, build, read_yaml, refuse_unknown, scalar
from focus.config import FocusConfig

SCALES = ("smoke", "laptop", "books", "prose", "gpu", "cluster")
# Blocks that only one stage or the analysis reads; their owners check the values.
FREE_BLOCKS = ("tolerances", "analysis")


@dataclass(frozen=True)
class Variant:
    """One way of routing, and how it is trained."""

    name: str
    focus: FocusConfig
    retrofit: RetrofitSettings


@dataclass(frozen=True)
class Settings:
    """All of params.yaml. Every block is an attribute of the same name."""

    scale: str
    seed: int
    threads: int
    model: ModelSettings
    corpus: CorpusSettings
    protocol: ProtocolSettings
    bootstrap: BootstrapSettings
    retrofit: RetrofitSettings
    variants: Mapping[str, Variant]
    topk: TopkSettings
    leak: LeakSettings
    controls: ControlsSettings
    recipe: RecipeSettings
    transfer: TransferSettings
    copying: CopyingSettings
    mixture: MixtureSettings
    fetch: FetchSettings
    tolerances: Block
    exactness: ExactnessSettings
    speed: SpeedSettings
    decode: DecodeSettings
    prefill: PrefillSettings
    continuation: ContinuationSettings
    generation: GenerationSettings
    analysis: Block

    def variant(self, name: str) -> tuple[FocusConfig, RetrofitSettings]:
        """The routing and the training of one variant; ValueError where there is none."""
        if name not in self.variants:
            raise ValueError(
                f"variants.{name}: no such variant; there are {', '.join(self.variants)}"
            )
        return self.variants[name].focus, self.variants[name].retrofit

    def plain(self) -> dict[str, Any]:
        """Everything as plain dictionaries, lists and numbers, for a result's record."""
        ready = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "variants":
                ready[item.name] = {name: _variant_plain(v) for name, v in value.items()}
            elif item.name == "recipe":
                ready[item.name] = recipe_plain(value)
            elif dataclasses.is_dataclass(value):
                ready[item.name] = plain(dataclasses.asdict(value))
            else:
                ready[item.name] = plain(value)
        return ready


def _variant_plain(variant: Variant) -> dict[str, Any]:
    return plain({**variant.focus.to_dict(), "retrofit": dataclasses.asdict(variant.retrofit)})


def load(path: str | Path = "params.yaml") -> Settings:
    """Reads and checks the whole file.

    Raises:
        ValueError: a setting is missing, unknown, of the wrong type or nonsense; the message
            starts with its full name, e.g. ``variants.k4.window: must be >= 1, got -1``.
    """
    return parse(read_yaml(Path(path)))


def parse(values: Mapping[str, Any]) -> Settings:
    """Settings from the mapping that params.yaml holds; see :func:`load`."""
    typed = {
        "model": ModelSettings, "corpus": CorpusSettings, "protocol": ProtocolSettings,
        "bootstrap": BootstrapSettings, "retrofit": RetrofitSettings, "topk": TopkSettings,
        "exactness": ExactnessSettings, "speed": SpeedSettings, "decode": DecodeSettings,
        "prefill": PrefillSettings, "continuation": ContinuationSettings,
        "generation": GenerationSettings,
        "leak": LeakSettings, "controls": ControlsSettings, "fetch": FetchSettings,
        "transfer": TransferSettings, "copying": CopyingSettings, "mixture": MixtureSettings,
    }  # fmt: skip
    refuse_unknown(values, [item.name for item in dataclasses.fields(Settings)], "")
    ready: dict[str, Any] = {"scale": _scale(values), **_counts(values)}
    for name, cls in typed.items():
        ready[name] = build(cls, _block(values, name), name)
    for name in FREE_BLOCKS:
        block = _block(values, name)
        if not isinstance(block, Mapping):
            raise ValueError(f"{name}: must be a mapping, got {block!r}")
        ready[name] = Block(name, block)
    for name, value in ready["tolerances"].items():
        scalar(value, float, f"tolerances.{name}")
        at_least(0, **{f"tolerances.{name}": value})
    ready["variants"] = _variants(_block(values, "variants"), ready["retrofit"])
    ready["recipe"] = parse_recipe(_block(values, "recipe"), ready["retrofit"])
    settings = Settings(**ready)
    _check_together(settings)
    return settings


def _block(values: Mapping[str, Any], name: str) -> Any:
    """A top-level block; DVC wants every one to be there, if only as `{}`."""
    if name not in values:
        raise ValueError(f"{name}: is missing")
    return values[name]


def _scale(values: Mapping[str, Any]) -> str:
    scale = values.get("scale", "laptop")
    if scale not in SCALES:
        raise ValueError(f"scale: must be one of {', '.join(SCALES)}, got {scale!r}")
    return scale


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    ready = {}
    for name, minimum in (("seed", 0), ("threads", 1)):
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name}: must be a whole number, got {value!r}")
        at_least(minimum, **{name: value})
        ready[name] = value
    return ready


def _variants(values: Any, common: RetrofitSettings) -> Mapping[str, Variant]:
    if not isinstance(values, Mapping) or not values:
        raise ValueError("variants: must be a mapping with at least one variant")
    ready = {}
    for name, own in values.items():
        path = f"variants.{name}"
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{path}: a variant's name is letters, digits, - and _")
        if not isinstance(own, Mapping):
            raise ValueError(f"{path}: must be a mapping, got {own!r}")
        fields = {key: value for key, value in own.items() if key != "retrofit"}
        training = build(RetrofitSettings, own.get("retrofit", {}), f"{path}.retrofit", common)
        ready[name] = Variant(name, routing(fields, path, FocusConfig()), training)
    return MappingProxyType(ready)


def _check_controls(settings: Settings) -> None:
    name = settings.controls.variant
    if name not in settings.variants:
        raise ValueError(f"controls.variant: {name!r} is no variant of this file")
    groups = settings.variants[name].focus.num_groups
    for k in settings.controls.top_ks:
        if 2 * k > groups:
            raise ValueError(
                f"controls.top_ks: {k} is above half of num_groups = {groups} of variants.{name}: "
                "every pair would be kept"
            )


def _check_together(settings: Settings) -> None:
    """What no block can see alone."""
    for block in ("leak", "generation"):
        for name in getattr(settings, block).variants:
            if name not in settings.variants:
                raise ValueError(f"{block}.variants: {name!r} is no variant of this file")
    _check_controls(settings)
    _check_trials(settings)
    _check_masks(settings)
    for variant in settings.variants.values():
        groups = variant.focus.num_groups
        for k in settings.topk.ks:
            if k > groups:
                raise ValueError(
                    f"topk.ks: {k} is above num_groups = {groups} of variants.{variant.name}"
                )
        _check_context(f"variants.{variant.name}", variant.retrofit, settings.corpus.min_tokens)
        if variant.retrofit.texts != "corpus":
            raise ValueError(
                f"variants.{variant.name}.retrofit.texts: {variant.retrofit.texts!r} is for trials "
                "of recipe.trials alone"
            )
    protocols = {"protocol": settings.protocol, "recipe.search": settings.recipe.search,
                 "recipe.protocol": settings.recipe.protocol}  # fmt: skip
    for name, protocol in protocols.items():
        _check_length(name, protocol, settings.corpus.min_tokens)
    _check_copying(settings)
    for block, every in (
        ("variants", settings.variants),
        ("recipe.trials", settings.recipe.trials),
    ):
        for each in every.values():
            _check_hard_phase(f"{block}.{each.name}", each.retrofit, each.focus.num_groups)
    for trial in settings.recipe.trials.values():
        if trial.retrofit.texts == "corpus":
            _check_context(f"recipe.trials.{trial.name}", trial.retrofit,
                           settings.corpus.min_tokens)  # fmt: skip
        elif trial.retrofit.context > settings.mixture.piece:
            raise ValueError(
                f"recipe.trials.{trial.name}.retrofit.context: {trial.retrofit.context} is above "
                f"mixture.piece = {settings.mixture.piece}; some pieces would give no window"
            )
    _check_calibration(settings)


def _check_trials(settings: Settings) -> None:
    """Other blocks name trials and readings that there are."""
    recipe, known = settings.recipe, {"trial": list(settings.recipe.trials)}
    known["reading"] = [each.name for each in recipe.readings]
    named = [("transfer.trial", [settings.transfer.trial], "trial"),
             ("copying.trials", settings.copying.trials, "trial")]  # fmt: skip
    for block in ("leak", "generation"):
        own = getattr(settings, block)
        named += [(f"{block}.trials", own.trials, "trial"),
                  (f"{block}.readings", own.readings, "reading")]  # fmt: skip
    for path, names, kind in named:
        for name in names:
            if name not in known[kind]:
                raise ValueError(
                    f"{path}: {name!r} is no {kind} of recipe.{kind}s; there are "
                    f"{', '.join(known[kind])}"
                )


def _check_masks(settings: Settings) -> None:
    """The readings that other blocks name mask something for the trials beside them."""
    recipe = settings.recipe
    for block in ("leak", "generation"):
        own = getattr(settings, block)
        for reading in (each for each in recipe.readings if each.name in own.readings):
            for trial in (recipe.trials[name] for name in own.trials):
                if not reading.masks(trial.focus.num_groups):
                    raise ValueError(
                        f"{block}.readings: {reading.name} masks nothing with num_groups = "
                        f"{trial.focus.num_groups} of recipe.trials.{trial.name}"
                    )


def _check_hard_phase(path: str, training: RetrofitSettings, groups: int) -> None:
    if training.hard_from is not None and max(training.hard_top_ks) > groups:
        raise ValueError(
            f"{path}.retrofit.hard_top_ks: {max(training.hard_top_ks)} is above num_groups = "
            f"{groups}"
        )


def _check_copying(settings: Settings) -> None:
    how = settings.copying
    needed = how.context + how.passage
    if needed > settings.corpus.min_tokens:
        raise ValueError(
            f"copying.context: with copying.passage it needs {needed} tokens of each document, but "
            f"corpus.min_tokens is {settings.corpus.min_tokens}"
        )
    for name in how.trials:
        window = settings.recipe.trials[name].focus.window
        if min(how.distances) <= window:
            raise ValueError(
                f"copying.distances: {min(how.distances)} is within the window of {window} of "
                f"recipe.trials.{name}: every mask would see the first reading"
            )


def _check_calibration(settings: Settings) -> None:
    """Random routers are calibrated on windows of the training texts as long as those scored."""
    piece = settings.mixture.piece
    reads = [("transfer", settings.transfer.context, [settings.transfer.trial]),
             ("copying", settings.copying.context, settings.copying.trials)]  # fmt: skip
    for block, context, names in reads:
        texts = {settings.recipe.trials[name].retrofit.texts for name in names}
        if "mixture" in texts and context > piece:
            raise ValueError(
                f"{block}.context: {context} is above mixture.piece = {piece}; some pieces of the "
                "training texts would give no window"
            )


def _check_length(name: str, protocol: ProtocolSettings, least: int) -> None:
    needed = protocol.context + (protocol.windows_per_document - 1) * protocol.stride
    if needed > least:
        raise ValueError(
            f"{name}.windows_per_document: {protocol.windows_per_document} windows need {needed} "
            f"tokens of each document, but corpus.min_tokens is {least}"
        )


def _check_context(path: str, training: RetrofitSettings, least: int) -> None:
    if training.context > least:
        raise ValueError(
            f"{path}.retrofit.context: {training.context} is above corpus.min_tokens = {least}; "
            "some books would give no window"
        )


def main() -> int:
    """Validates params.yaml; exit status 1 and the field's name where it is wrong."""
    try:
        settings = load()
    except ValueError as error:
        print(f"params.yaml: {error}", file=sys.stderr)
        return 1
    print(
        f"params.yaml is valid: scale {settings.scale}, seed {settings.seed}, model "
        f"{settings.model.name}, corpus {settings.corpus.source}, variants "
        f"{', '.join(settings.variants)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
