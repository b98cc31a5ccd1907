"""Texts, readings, intervals and tolerances: the blocks that experiments name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.settings.schema import Count, Distinct, Frozen, Limit, Listed, Size

Side = Literal["train", "validation", "test"]


class Texts(Frozen):
    """Documents of one kind, and how they go to three sides.

    Attributes:
        source: a name in sources.yaml with role corpus, or a folder of $FOCUS_DATA.
        test_every, validation_every: every n-th document, in a fixed order, is held out; a source
            with sides of its own keeps them.
        min_characters: shorter documents are left out.
        max_overlap: two documents that share more than this part of the smaller one's 8-word
            sequences count as one.
        train_tokens: at most so many training tokens, whole pieces of ``piece`` tokens evenly from
            every document (null: all).
        development: sides of the source that were looked at while choosing: they are validation.
        apart: texts whose held-out documents its training side must not hold, in any edition.
        streamed: the source is shards (:mod:`experiments.texts.shards`), whose training side is
            read as it is trained on, packed, short documents too; it may be larger than memory.
    """

    LATER = ("streamed",)

    source: str
    test_every: Annotated[int, Field(ge=2)] = 4
    validation_every: Annotated[int, Field(ge=2)] = 9
    min_characters: Count = 18000
    max_overlap: Annotated[float, Field(gt=0, le=1)] = 0.05
    train_tokens: Count | None = None
    piece: Count = 2048
    development: bool = False
    apart: Listed[str] = ()
    streamed: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Texts:
        if self.streamed and self.train_tokens is not None:
            raise ValueError("train_tokens: of a streamed text steps take what they need: null")
        return self


class Windows(Frozen):
    """Which documents a reading takes, and which windows of each.

    Attributes:
        texts: names under ``texts``; side: of each.
        final: opens test documents, which its run.json then tells. Choices are made without.
        documents: of each kind; windows: of each document, side by side; context: tokens of one.
        skip: long enough documents of each kind that come before those: what others have read.
        score_from: first position of a window that is scored.
    """

    LATER = ("skip",)

    texts: Distinct[str]
    side: Side = "validation"
    final: bool = False
    skip: Annotated[int, Field(ge=0)] = 0
    documents: Annotated[int, Field(ge=2)] = 6
    windows: Count = 1
    context: Annotated[int, Field(ge=2)] = 1024
    score_from: Count = 1

    @model_validator(mode="after")
    def _open(self) -> Windows:
        if self.side == "test" and not self.final:
            raise ValueError(
                "side: test documents are opened by a final reading alone: final: true"
            )
        if self.score_from >= self.context:
            raise ValueError(f"score_from: must be below context = {self.context}")
        return self


class Perplexity(Windows):
    """Loss of every document under the method at every budget, and under its training gate."""

    kind: Literal["perplexity"] = "perplexity"
    soft: bool = True


class Positions(Windows):
    """Loss by position in a window, and how even groups are there; ``width``: positions a row."""

    kind: Literal["positions"] = "positions"
    windows: Literal[1] = 1  # type: ignore[assignment]
    width: Count = 1024


class Copying(Windows):
    """Passages that a window holds twice: what they cost, and whether groups keep the pairs that
    copying them needs.

    Attributes:
        passage: tokens that come again, at the window's end; ``lead`` of them are not scored.
        distances: tokens from the first reading to the second.
    """

    kind: Literal["copying", "induction"] = "copying"
    passage: Count = 256
    lead: Count = 8
    distances: Distinct[int] = (512, 1536)

    @model_validator(mode="after")
    def _fits(self) -> Copying:
        if not self.lead < self.passage < self.context:
            raise ValueError(f"passage: must be above lead = {self.lead} and below context")
        farthest = self.context - self.passage
        if min(self.distances) < self.passage or max(self.distances) > farthest:
            raise ValueError(f"distances: must be from passage = {self.passage} to {farthest}")
        return self


Induction = Copying


class Leak(Windows):
    """Whether a later token changes an earlier one's group, by balance."""

    kind: Literal["leak"] = "leak"
    balances: Distinct[Literal["sinkhorn", "causal"]] = ("sinkhorn", "causal")


class Groups(Windows):
    """Groups of the training gate, by layer: how even they are and how sure a token is of its own;
    parts of speech that they hold, beside other ways to group; what a group tells of a token."""

    kind: Literal["groups", "contents", "information"]


Contents = Information = Groups


class Affinity(Windows):
    """Whether distant words that belong together share a group."""

    kind: Literal["affinity"] = "affinity"


class Picture(Windows):
    """Which keys a head's queries see; ``layers``: of so many, evenly spread."""

    kind: Literal["picture"] = "picture"
    windows: Literal[1] = 1  # type: ignore[assignment]
    layers: Count = 4


class Questions(Frozen):
    """Questions of tasks, which have right answers and no documents; ``questions``: of each task
    (and length)."""

    tasks: Distinct[str]
    questions: Annotated[int, Field(ge=2)]
    side: Literal["test"] = "test"
    final: Literal[True] = True

    @property
    def texts(self) -> tuple[str, ...]:
        """Documents of no text are read."""
        return ()

    @property
    def documents(self) -> int:
        """Questions of each task."""
        return self.questions

    @property
    def skip(self) -> int:
        """Questions of each task that come before those."""
        return 0


class Benchmarks(Questions):
    """lm-eval's tasks (``experiments/benchmarks/tasks.py``), question by question.

    Attributes:
        questions: evenly spread over the set; all, where there are fewer.
        shots: numbers of worked examples before each; many make prompts that the mask reaches.
        batch_size: requests at a time; by one no answer hangs on its neighbours' length.
        window, sinks: by which pairs are exposed to a mask.
    """

    kind: Literal["benchmarks"] = "benchmarks"
    questions: Annotated[int, Field(ge=2)] = 100
    shots: Distinct[int] = (0,)
    batch_size: Count = 1
    window: Count = 128
    sinks: Size = 4


class Ruler(Questions):
    """Long-context tasks in the manner of RULER (``experiments/ruler/tasks.py``).

    Attributes:
        lengths: tokens of a prompt with its answers, at most.
    """

    kind: Literal["ruler"] = "ruler"
    lengths: Distinct[Annotated[int, Field(ge=128)]]
    questions: Annotated[int, Field(ge=2)] = 8


class Chat(Windows):
    """How far answers are from the untrained model's.

    Attributes:
        questions: the first of ``experiments/chat/questions.py``.
        before: tokens of a document that stand before a question; 0: none.
        answer: tokens of an answer, at most.
    """

    kind: Literal["chat"] = "chat"
    questions: Annotated[int, Field(ge=2)] = 24
    before: Distinct[Size] = (0, 1024)
    answer: Count = 32

    @model_validator(mode="after")
    def _within(self) -> Chat:
        if max(self.before) > self.context:
            raise ValueError(f"before: must not exceed context = {self.context}")
        if len(self.texts) != 1:
            raise ValueError("texts: one kind of text is pasted before the questions")
        return self


Reading = Annotated[
    Perplexity
    | Positions
    | Copying
    | Leak
    | Groups
    | Affinity
    | Picture
    | Benchmarks
    | Ruler
    | Chat,
    Field(discriminator="kind"),
]


class Calibration(Frozen):
    """Training windows on which untrained methods find what they need; ``context``: tokens of one,
    where no regime says."""

    windows: Count = 4
    context: Annotated[int, Field(ge=2)] = 2048


class Intervals(Frozen):
    """Intervals of all figures; ``samples``: of bootstraps, where one is drawn."""

    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    samples: Annotated[int, Field(ge=100)] = 10000


class Tolerances(Frozen):
    """Limits of the ledger's rules; params.yaml says beside each what it is."""

    identity_nats: Limit
    far_worse: Limit
    same_ppl: Limit
    density_points: Limit
    cosine: Limit
    subtraction_cosine: Limit
    speedup: Limit
    leak_share: Limit
    copied: Limit
    same_score: Limit
    same_share: Limit
    collapsed: Limit
    blocked: Limit
    much_less: Limit
    rounding: Limit
