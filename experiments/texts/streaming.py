"""Training on a streamed text: shards are read, tokenised and packed into windows as steps need
them, so that no more of a corpus is in memory than the documents at hand.

A batch of B windows has B lanes. A lane reads shards of its own (or, where there are fewer shards
than lanes, every n-th document of one), one document after another, joined by the end-of-text token
and cut into windows. Which documents a window holds depends on seed, shards and B alone: however
many processes share a batch, they see together what one would, each reads the shards of its own
lanes, and a run goes on from a place (turn, shard, row, tokens left over) that checkpoints hold.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, distributed
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from experiments import sources
from experiments.settings import Experiment, Settings
from experiments.sources import models
from experiments.texts import corpus, shards
from experiments.texts.documents import side_file
from experiments.texts.overlap import HeldOut
from experiments.texts.training import TrainingData


@dataclass(frozen=True)
class Streamed:
    """A streamed text as a model reads it.

    Attributes:
        folder: of its source; ``names``: of its training shards there.
        held_out: what must not be trained on, beyond an overlap of ``max_overlap``.
    """

    name: str
    folder: Path
    names: tuple[str, ...]
    held_out: HeldOut
    max_overlap: float
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, name: str, model: str, chosen: Settings) -> Streamed:
        """As the stage `data` has listed it.

        Raises:
            ValueError: the stage has not, or a shard is not what it was then.
        """
        how = corpus.named(name, chosen)
        folder = sources.ROOT / how.source
        lines = side_file(name, "train").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines[:-1]]  # the last is of what is held out
        for row in rows:
            path = folder / row["shard"]
            if not path.is_file() or path.stat().st_size != row["bytes"]:
                raise ValueError(f"{path}: is not the shard that texts.{name} lists; delete "
                                 f"{corpus.ROOT / name} and run stage `data` again")  # fmt: skip
        with np.load(corpus.ROOT / name / corpus.HELD_OUT, allow_pickle=False) as arrays:
            held_out = HeldOut(**arrays)
        return cls(name, folder, tuple(row["shard"] for row in rows), held_out, how.max_overlap,
                   models.load_tokenizer(model))  # fmt: skip

    def tokens(self, text: str) -> Tensor:
        """A document's tokens and the end-of-text token, int32."""
        found = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor([*found, self.tokenizer.eos_token_id], dtype=torch.int32)


@dataclass
class Place:
    """Where a lane is.

    Attributes:
        taken: windows so far.
        turn: how often it has read all its shards; ``shard``: number in this turn's order; ``row``:
            the next one there.
        left: tokens that no window has yet, int32.
        seen: a row for each shard and turn: documents read, documents left out since they are held
            out, the last row, and the sha256 of all read so far, one after the other.
    """

    taken: int = 0
    turn: int = 0
    shard: int = 0
    row: int = 0
    left: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    seen: list[dict[str, Any]] = field(default_factory=list)


class Lane:
    """The ``number``-th window of every batch, of ``lanes``."""

    def __init__(self, source: Streamed, number: int, lanes: int, seed: int,
                 place: Place | None = None) -> None:  # fmt: skip
        names = list(source.names)
        random.Random(f"{seed}").shuffle(names)
        # Lanes that have to share a shard take its documents in turn.
        self.own = names[number % len(names) :: lanes]
        self.stripe = number // len(names)
        self.stripes = len(range(number % len(names), lanes, len(names)))
        self.source, self.number, self.seed = source, number, seed
        self.place = place or Place()
        self._documents = self._every()

    def window(self, context: int) -> Tensor:
        """The next ``context`` tokens, int64 (T,)."""
        parts, total = [self.place.left], len(self.place.left)
        while total < context:
            parts.append(next(self._documents))
            total += len(parts[-1])
        whole = torch.cat(parts)
        self.place.left = whole[context:].clone()  # a view would keep the whole, in checkpoints too
        self.place.taken += 1
        return whole[:context].long()

    def _every(self) -> Iterator[Tensor]:
        """Tokens of one document after another from the lane's place on, without an end.

        Raises:
            ValueError: a whole turn has none to train on.
        """
        at = self.place
        while True:
            order = list(self.own)
            random.Random(f"{self.seed} {self.number} {at.turn}").shuffle(order)
            while at.shard < len(order):
                yield from self._shard(order[at.shard])
                at.shard, at.row = at.shard + 1, 0
            if not any(row["documents"] for row in at.seen if row["turn"] == at.turn):
                raise ValueError(f"texts.{self.source.name}: no document of {', '.join(order)} can "
                                 "be trained on: all are empty, held out, or of another window of "
                                 "the batch (a lower batch_size shares shards less)")  # fmt: skip
            at.turn, at.shard = at.turn + 1, 0

    def _shard(self, name: str) -> Iterator[Tensor]:
        at, source = self.place, self.source
        if at.row == 0:
            at.seen.append({"lane": self.number, "turn": at.turn, "shard": name, "documents": 0,
                            "held_out": 0, "last_row": -1, "sha256": ""})  # fmt: skip
        seen = at.seen[-1]
        found = shards.rows(source.folder / name, at.row, self.stripe, self.stripes)
        for number, text in found:
            at.row, seen["last_row"] = number + 1, number
            if source.held_out.has(text, source.max_overlap):
                seen["held_out"] += 1
                continue
            seen["documents"] += 1
            seen["sha256"] = hashlib.sha256((seen["sha256"] + text).encode()).hexdigest()
            yield source.tokens(text)


class WindowStream(Dataset):
    """Windows `{"input_ids": int64 (T,)}` by their number, cheap where each lane's come in order.

    The window of a number is the same whatever was asked for before. One that has passed, or that
    no place leads to, is found by reading again what comes before it; the first of a lane is kept.

    Args:
        context, count, seed: as of :class:`experiments.texts.documents.WindowSequence`.
        lanes: windows of a batch.
    """

    def __init__(self, source: Streamed, lanes: int, context: int, count: int, seed: int) -> None:
        self.source, self.lanes, self.context = source, lanes, context
        self.count, self.seed = count, seed
        self._open: dict[int, Lane] = {}
        self._first: dict[int, Tensor] = {}  # regimes look at it again and again

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._window(index % self.lanes, index // self.lanes)}

    def _window(self, number: int, taken: int) -> Tensor:
        if taken == 0 and number in self._first:
            return self._first[number].clone()
        lane = self._open.get(number) or self._lane(number)
        if lane.place.taken > taken:
            lane = self._lane(number)  # the open one stays where it is
        else:
            self._open[number] = lane
        while lane.place.taken < taken:
            lane.window(self.context)
        ids = lane.window(self.context)
        if taken == 0:
            self._first[number] = ids.clone()
        return ids

    def _lane(self, number: int, place: Place | None = None) -> Lane:
        return Lane(self.source, number, self.lanes, self.seed, place)

    def places(self) -> dict[int, dict[str, Any]]:
        """Where the lanes of this process are, by their numbers."""
        return {number: asdict(lane.place) for number, lane in self._open.items()}

    def go_on(self, places: dict[int, dict[str, Any]]) -> None:
        """Puts lanes where they were; none is opened before it is read from."""
        self._open = {number: self._lane(number, Place(**copy.deepcopy(place)))
                      for number, place in places.items()}  # fmt: skip


class StreamedData(TrainingData):
    """Training batches of a streamed text, resumable; validation windows as ever.

    Beside the loader's position, checkpoints hold the places of all lanes, gathered from all
    processes, since Lightning keeps the state of the first alone.
    """

    @cached_property
    def windows(self) -> WindowStream:
        """Of the training shards, found once a process."""
        how = self.cell.regime
        source = Streamed.of(self.cell.texts, self.cell.model, self.chosen)
        count = how.steps * how.accumulate * how.batch_size
        return WindowStream(source, how.batch_size, how.context, count, self.seed)

    def state_dict(self) -> dict[str, Any]:
        """Places of all lanes; every process must call it."""
        found: list[Any] = [self.windows.places()]
        if distributed.is_available() and distributed.is_initialized():
            found = [None] * distributed.get_world_size()
            distributed.all_gather_object(found, self.windows.places())
        lanes: dict[int, dict[str, Any]] = {}
        for number, place in (item for places in found for item in places.items()):
            # After a resumption a process also has, unmoved, the lanes that others go on with.
            if number not in lanes or place["taken"] > lanes[number]["taken"]:
                lanes[number] = place
        return {"lanes": lanes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.windows.go_on(state["lanes"])

    def seen(self) -> pd.DataFrame:
        """What was read, a row for each lane, turn and shard; every process must call it.

        Of the lane's rows up to ``last_row``, ``documents`` were trained on (the lane's last maybe
        in part) and ``held_out`` left out; the sha256 is of the former, each after the one before.
        """
        lanes = self.state_dict()["lanes"]
        return pd.DataFrame([row for number in sorted(lanes) for row in lanes[number]["seen"]])


def data_of(cell: Experiment, seed: int, chosen: Settings) -> TrainingData:
    """What a cell trains on, of a streamed text or of another."""
    kind = StreamedData if chosen.texts[cell.texts].streamed else TrainingData
    return kind(cell, seed, chosen)
