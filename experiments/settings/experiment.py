"""One experiment: a model, a method, how it is trained and on what, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from experiments import registry
from experiments.settings.schema import (
    Count,
    Distinct,
    Frozen,
    Listed,
    ModelDtype,
    Name,
    Share,
    Size,
    once,
)
from focus.config import BALANCES, PROBES


class Mask(Frozen):
    """A hard mask by name, instead of a share of the pairs: fields of :class:`focus.FocusConfig`
    that a call can override."""

    top_k: Count
    probe: Literal[PROBES] = PROBES[0]  # type: ignore[valid-type]
    balance: Literal[BALANCES] = "causal"  # type: ignore[valid-type]
    ngram: Size = 0

    def __str__(self) -> str:
        words = f".n{self.ngram}" if self.ngram else ""
        return f"k{self.top_k}.{self.probe}{words}.{self.balance}"


def _kind(budget: Any) -> str:
    return "mask" if isinstance(budget, Mapping | Mask) else "share"


# A share of the distant pairs is what a method aims at: what it keeps is counted, in every row.
Budget = Annotated[
    Annotated[Share, Tag("share")] | Annotated[Mask, Tag("mask")], Discriminator(_kind)
]


class MethodBlock(Frozen):
    """A method's name, and the fields of its own settings (``experiments/methods/<name>.py``)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def fields(self) -> dict[str, Any]:
        """What the method's own settings are built from."""
        return dict(self.model_extra or {})


class Training(Frozen):
    """What every regime that trains has.

    Attributes:
        steps, batch_size, context: optimiser steps, windows a step, tokens of a window.
        accumulate: batches a step.
        learning_rate: highest rate, after a linear warm-up, then a cosine down to zero.
        gradient_clip: largest gradient norm.
        checkpoint_every: steps between checkpoints: what a killed run loses at most.
        validate_every: steps between losses on validation windows (0: none).
        strategy, precision: of the Lightning trainer; ``nodes``: machines; ``devices``: of each.
        checkpoint_activations: computes activations again in the backward pass, to save memory.
        all_weights: whether all of the model's own weights are trained; no field.
        drawn: whether they are random at first, in the place of the pretrained ones; no field.
    """

    LATER = ("nodes",)
    FORMER = (("copies", 0.0),)
    all_weights: ClassVar[bool] = False
    drawn: ClassVar[bool] = False

    steps: Count
    batch_size: Count = 1
    context: Count = 1024
    accumulate: Count = 1
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Size = 5
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    checkpoint_every: Count = 10
    validate_every: Size = 0
    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    devices: Count = 1
    nodes: Count = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    checkpoint_activations: bool = False

    @model_validator(mode="after")
    def _rate_is_reached(self) -> Self:
        if "warmup_steps" in self.model_fields_set and 0 < self.steps < self.warmup_steps:
            raise ValueError(f"warmup_steps: must be at most steps = {self.steps}, or the learning "
                             f"rate is never reached; got {self.warmup_steps}")  # fmt: skip
        return self

    @property
    def processes(self) -> int:
        """How many train together."""
        return self.nodes * self.devices


class Centroids(Training):
    """Routers alone, by the loss of the next token under the training gate.

    Attributes:
        temperature_start: of the routers at the first step; geometrically to the method's own at
            the last (null: it stays).
        hard_from: share of the steps after which the forward pass is that of the hard mask (null:
            never); those steps take ``hard_top_ks`` groups a query in turn.
        shuffled: gates of another text's routing: a control that trains as many numbers without
            routing by content.
    """

    FORMER = (*Training.FORMER, ("loss", "next_token"))

    name: Literal["centroids"] = "centroids"
    steps: Size  # 0: routers as they are
    temperature_start: Annotated[float, Field(gt=0)] | None = None
    hard_from: Annotated[float, Field(ge=0, lt=1)] | None = None
    hard_top_ks: Distinct[Count] = (1, 2, 4)
    shuffled: bool = False


class Joint(Centroids):
    """Routers, and with them all weights, while a mitigation keeps groups of one size.

    Attributes:
        weights: whether all weights are trained, at ``weights_rate``, or the routers alone.
        mitigation: a file of ``experiments/mitigations``.
        watch_every: steps between looks at the groups.
    """

    name: Literal["joint"] = "joint"  # type: ignore[assignment]
    steps: Count
    weights: bool = True
    weights_rate: Annotated[float, Field(gt=0)] = 0.0001
    mitigation: str = "sinkhorn"
    watch_every: Count = 4

    @field_validator("mitigation")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (known := registry.names("mitigation")):
            raise ValueError(f"must be one of {known}")
        return name

    @property
    def all_weights(self) -> bool:  # type: ignore[override]
        """As the settings say."""
        return self.weights


class ScratchJoint(Joint):
    """The same, from random weights."""

    drawn = True

    name: Literal["scratch_joint"] = "scratch_joint"  # type: ignore[assignment]


class Lora(Training):
    """Low-rank updates of the model's own projections (peft), merged when it is read."""

    name: Literal["lora"] = "lora"
    rank: Count = 30
    alpha: Count = 60
    targets: Distinct[str] = ("q_proj", "k_proj", "v_proj", "o_proj")


class Distil(Training):
    """Networks that choose keys, by divergence from what full attention weighs, layer by layer;
    ``rows``: queries of a window that it is taken of."""

    name: Literal["distil"] = "distil"
    rows: Count = 256


class Full(Training):
    """All weights."""

    all_weights = True

    name: Literal["full"] = "full"


class Scratch(Full):
    """All weights, from random ones."""

    drawn = True

    name: Literal["scratch"] = "scratch"  # type: ignore[assignment]


class Nothing(Frozen):
    """Nothing is trained."""

    name: Literal["none"] = "none"


Regime = Annotated[
    Centroids | Joint | Lora | Distil | Full | Scratch | ScratchJoint | Nothing,
    Field(discriminator="name"),
]


class Experiment(Frozen):
    """One cell: an experiment of params.yaml, or one point of its sweep.

    Attributes:
        name: of the cell; ``block``: of the experiment in params.yaml.
        model: a source with role model, or tiny-<architecture>; ``dtype``: of its weights.
        start: an experiment with whose trained weights the model starts (null: as pretrained).
        texts: whose training side the regime trains on, and untrained methods calibrate on.
        budgets: what the method is read at: shares of the distant pairs, or masks.
        keeps: shares that it aims at in the place of its budgets, which then are their names: as
            many pairs as trained groups, at the same budgets, kept of validation documents.
        seeds: a subset of the pipeline's.
        readings: names under ``readings``.
        against: experiments whose readings it is compared with.
        core: part of `make reproduce`.
    """

    name: Name
    block: Name
    model: str
    dtype: ModelDtype = "auto"
    start: str | None = None
    method: MethodBlock
    regime: Regime = Nothing()
    texts: str
    budgets: Annotated[Listed[Budget], AfterValidator(once)] = ()
    keeps: Listed[Share] = ()
    seeds: Distinct[int] = (0,)
    readings: Distinct[str]
    against: Listed[str] = ()
    core: bool = False

    @field_validator("regime", mode="before")
    @classmethod
    def _nothing(cls, regime: Any) -> Any:
        return {"name": "none"} if regime is None else regime

    @model_validator(mode="after")
    def _matched(self) -> Experiment:
        if self.keeps and len(self.keeps) != len(self.budgets):
            raise ValueError(f"keeps: {len(self.keeps)} shares for {len(self.budgets)} budgets")
        return self

    def aim(self, budget: Budget | None) -> Budget | None:
        """What the method is given for one of the budgets."""
        return dict(zip(self.budgets, self.keeps, strict=False)).get(budget, budget)

    @property
    def trains(self) -> bool:
        """Whether there are weights of its own."""
        return not isinstance(self.regime, Nothing)
