"""The blocks `recipe`, `transfer` and `copying` of params.yaml: trials of ways to train routers for
the hard mask, other texts to read them on, and passages that come twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from experiments.blocks import ProtocolSettings, RetrofitSettings, plain
from experiments.schema import at_least, build, construct, convert, join, refuse_unknown
from focus.config import FocusConfig

Control = Literal["random", "position", "token", "window", "oracle", "oracle_heads"]
ORACLES = ("oracle", "oracle_heads")
MARGIN = 1.03  # pairs that a random control is given beyond the trained routers'
OWN = ("retrofit", "seeds", "final", "controls")  # what a trial has beside FocusConfig's fields


@dataclass(frozen=True)
class Reading:
    """One hard mask: groups of a query, whether keys take as many or one, and the n-grams that are
    matched beside them (:class:`focus.FocusConfig`)."""

    top_k: int
    probe: Literal["symmetric", "multi_probe"] = "symmetric"
    ngram: int = 0
    ngram_keys: int = FocusConfig.ngram_keys

    def __post_init__(self) -> None:
        at_least(1, top_k=self.top_k)
        at_least(0, ngram=self.ngram)
        at_least(1, ngram_keys=self.ngram_keys)

    @property
    def keys(self) -> int:
        """Groups of a key."""
        return 1 if self.probe == "multi_probe" else self.top_k

    def masks(self, groups: int) -> bool:
        """Whether a query and a key can be without a common group."""
        return self.top_k + self.keys <= groups

    def share(self, groups: int) -> float:
        """Of the distant pairs, what balanced groups drawn at random keep; what is found word for
        word comes on top."""
        return 1 - math.comb(groups - self.top_k, self.keys) / math.comb(groups, self.keys)

    @property
    def mask(self) -> dict[str, Any]:
        """What it overrides of a :class:`focus.FocusConfig`."""
        return {"top_k": self.top_k, "probe": self.probe, "ngram": self.ngram,
                "ngram_keys": self.ngram_keys}  # fmt: skip

    def groups_for(self, share: float, most: int) -> int:
        """The largest number of groups, up to ``most``, of which random ones keep that share.

        A little more is asked: drawn routers kept 1 to 2% fewer pairs than :meth:`share` says.
        """
        fewest = self.top_k + self.keys
        enough = (n for n in range(most, fewest, -1) if self.share(n) >= MARGIN * share)
        return next(enough, fewest)

    @property
    def name(self) -> str:
        """A key for metrics and tables: symmetric.k2, symmetric.k2.n3 with trigrams."""
        return f"{self.probe}.k{self.top_k}" + (f".n{self.ngram}" if self.ngram else "")


@dataclass(frozen=True)
class Trial:
    """One way of routing and training, run with every seed.

    Attributes:
        final: scored on the test books; others on the validation books.
        controls: whether the controls are scored too, with the first seed.
    """

    name: str
    focus: FocusConfig
    retrofit: RetrofitSettings
    seeds: tuple[int, ...] = (0,)
    final: bool = False
    controls: bool = False

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: must name at least one, and none twice, got {self.seeds}")
        at_least(0, seeds=min(self.seeds))


@dataclass(frozen=True)
class RecipeSettings:
    """Trials of training recipes, each read under several hard masks with causal potentials.

    Attributes:
        search, protocol: how trials are scored, on validation books, and finalists, on test books.
        readings: hard masks.
        controls: scored for trials that ask, at no fewer pairs than the trained routers keep in
            that reading. With the reading's further keys, each for about the time of the routers'
            own masks: random routers, groups by ``position`` or by ``token`` identity, of as many
            groups as that takes, and the ``window``, widened (:mod:`experiments.controls`). Without
            further keys, and slower, since they form every pair: the heaviest keys of full
            attention, chosen for each key head (``oracle``) or each query head (``oracle_heads``;
            :mod:`experiments.oracle`).
        calibration: training windows on which random routers find their potentials.
        base: FocusConfig's fields that trials share.
        retrofit: training that trials share.
        trials: by name.
    """

    search: ProtocolSettings
    protocol: ProtocolSettings
    readings: tuple[Reading, ...]
    controls: tuple[Control, ...]
    calibration: int
    base: FocusConfig
    retrofit: RetrofitSettings
    trials: Mapping[str, Trial]

    def __post_init__(self) -> None:
        at_least(1, calibration=self.calibration)
        names = [reading.name for reading in self.readings]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"readings: must name at least one, and none twice, got {names}")


@dataclass(frozen=True)
class TransferSettings:
    """One trial's routers are scored on other texts than they were trained on.

    Attributes:
        trial: a name under ``recipe.trials``.
        sources: corpora of sources.yaml.
        context, documents, windows_per_document: tokens of a window, test documents of each corpus
            and windows of each, side by side.
        first_window: windows that are passed over at each document's start.
    """

    trial: str
    sources: tuple[str, ...]
    context: int = 2048
    documents: int = 4
    windows_per_document: int = 2
    first_window: int = 0

    def __post_init__(self) -> None:
        at_least(2, context=self.context, documents=self.documents)
        at_least(1, windows_per_document=self.windows_per_document)
        at_least(0, first_window=self.first_window)
        if not self.sources or len(set(self.sources)) != len(self.sources):
            raise ValueError(
                f"sources: must name at least one, and none twice, got {list(self.sources)}"
            )


@dataclass(frozen=True)
class CopyingSettings:
    """Trials' routers on passages of the test documents that a window holds twice.

    Attributes:
        trials: names under ``recipe.trials``.
        context: tokens of a window; the second reading is its end.
        documents: test documents, a window of each at every distance.
        passage: tokens of a passage.
        lead: of these, how many at the start are not scored: nothing says yet that they come again.
        distances: tokens from the first reading to the second.
        controls: scored beside the routers, with the first seed.
    """

    trials: tuple[str, ...]
    context: int
    documents: int
    passage: int
    lead: int
    distances: tuple[int, ...]
    controls: tuple[Control, ...] = ()

    def __post_init__(self) -> None:
        at_least(2, documents=self.documents)
        at_least(1, lead=self.lead)
        if not self.lead < self.passage < self.context:
            raise ValueError(
                f"passage: must be above lead = {self.lead} and below context = {self.context}, "
                f"got {self.passage}"
            )
        for name in ("trials", "distances"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}: must name at least one, and none twice, got {values}")
        farthest = self.context - self.passage
        if min(self.distances) < self.passage or max(self.distances) > farthest:
            raise ValueError(
                f"distances: must be at least passage = {self.passage} and at most context - "
                f"passage = {farthest}, got {self.distances}"
            )


def parse_recipe(values: Any, common: RetrofitSettings) -> RecipeSettings:
    """The block from its mapping; what a trial does not name, ``base`` and ``retrofit`` give.

    Raises:
        ValueError: a value is missing, unknown or nonsense; the message starts with its full name.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"recipe: must be a mapping, got {values!r}")
    refuse_unknown(values, [item.name for item in dataclasses.fields(RecipeSettings)], "recipe")
    for name in ("search", "protocol", "readings", "base", "retrofit", "trials"):
        if name not in values:
            raise ValueError(f"recipe.{name}: is missing")
    base = routing(values["base"], "recipe.base", FocusConfig())
    retrofit = build(RetrofitSettings, values["retrofit"], "recipe.retrofit", common)
    trials = values["trials"]
    if not isinstance(trials, Mapping) or not trials:
        raise ValueError("recipe.trials: must be a mapping with at least one trial")
    readings = values["readings"]
    if not isinstance(readings, list):
        raise ValueError(f"recipe.readings: must be a list, got {readings!r}")
    ready = {
        "search": build(ProtocolSettings, values["search"], "recipe.search"),
        "protocol": build(ProtocolSettings, values["protocol"], "recipe.protocol"),
        "readings": tuple(
            build(Reading, each, f"recipe.readings[{n}]") for n, each in enumerate(readings)
        ),
        "controls": convert(values.get("controls", []), tuple[Control, ...], "recipe.controls"),
        "calibration": convert(values.get("calibration", 4), int, "recipe.calibration"),
        "base": base,
        "retrofit": retrofit,
        "trials": MappingProxyType(
            {name: _trial(name, own, base, retrofit) for name, own in trials.items()}
        ),
    }
    settings: RecipeSettings = construct(RecipeSettings, ready, "recipe")
    _check_readings(settings)
    return settings


def routing(values: Any, path: str, defaults: FocusConfig) -> FocusConfig:
    """A FocusConfig from plain values over defaults; errors start with the field's full name."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: must be a mapping, got {values!r}")
    refuse_unknown(values, [item.name for item in dataclasses.fields(FocusConfig)], path)
    return construct(FocusConfig, {**defaults.to_dict(), **values}, path)


def _trial(name: str, own: Any, base: FocusConfig, retrofit: RetrofitSettings) -> Trial:
    path = join("recipe.trials", str(name))
    if not str(name).replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{path}: a trial's name is letters, digits, - and _")
    if not isinstance(own, Mapping):
        raise ValueError(f"{path}: must be a mapping, got {own!r}")
    fields = {key: value for key, value in own.items() if key not in OWN}
    seeds = own.get("seeds", [0])
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"{path}.seeds: must be a list of whole numbers, got {seeds!r}")
    flags = {flag: own.get(flag, False) for flag in ("final", "controls")}
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{path}.{flag}: must be true or false, got {value!r}")
    ready = {
        "name": name,
        "focus": routing(fields, path, base),
        "retrofit": build(RetrofitSettings, own.get("retrofit", {}), f"{path}.retrofit", retrofit),
        "seeds": tuple(seeds),
        **flags,
    }
    return construct(Trial, ready, path)


def _check_readings(settings: RecipeSettings) -> None:
    for trial in settings.trials.values():
        for reading in settings.readings:
            if reading.top_k > trial.focus.num_groups:
                raise ValueError(
                    f"recipe.readings: top_k = {reading.top_k} is above num_groups = "
                    f"{trial.focus.num_groups} of recipe.trials.{trial.name}"
                )


def recipe_plain(settings: RecipeSettings) -> dict[str, Any]:
    """The block as plain dictionaries, lists and numbers, for a result's record."""
    rest = {
        item.name: getattr(settings, item.name)
        for item in dataclasses.fields(settings)
        if item.name not in ("trials", "readings")
    }
    ready = {
        name: dataclasses.asdict(each) if dataclasses.is_dataclass(each) else each
        for name, each in rest.items()
    }
    ready["readings"] = [dataclasses.asdict(reading) for reading in settings.readings]
    ready["trials"] = {
        name: {**trial.focus.to_dict(), "retrofit": dataclasses.asdict(trial.retrofit),
               "seeds": trial.seeds, "final": trial.final, "controls": trial.controls}
        for name, trial in settings.trials.items()
    }  # fmt: skip
    return plain(ready)
