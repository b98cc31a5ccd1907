"""Windows of a streamed text: the same whoever reads them, from wherever, in whatever number."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
import torch

from experiments import settings
from experiments.settings import Settings
from experiments.sources import models
from experiments.texts import corpus, shards, streaming
from experiments.texts.streaming import Streamed, StreamedData, WindowStream
from tests.experiments.texts.library import jsonl, prose, shelf, small
from tests.experiments.texts.test_training import KilledError, Recorder, fit
from tests.timed import untrained

WEB = {"source": "web", "streamed": True}
CONTEXT = 64


def parsed(params: dict[str, Any], **texts: dict[str, Any]) -> Settings:
    """Settings of an experiment on the first of these texts."""
    values = small(params, **texts, whole={"source": "whole"})
    return settings.parse({**values, **untrained(values, texts="whole")})


@pytest.fixture
def web(place):
    """The fetched source `web`: three shards of five books to train on."""
    shelf(place / "own/web", 1)  # a source of that name exists
    return shelf(place / "data/sources/web", 3)


@pytest.fixture
def chosen(params: dict[str, Any], web: Any) -> Settings:
    found = parsed(params, web=WEB)
    corpus.build("web", found)
    return found


def stream(chosen: Settings, lanes: int = 2, seed: int = 0, count: int = 40) -> WindowStream:
    source = Streamed.of("web", "tiny-llama", chosen)
    return WindowStream(source, lanes, CONTEXT, count, seed)


def taken(found: WindowStream, *places: int) -> list[list[int]]:
    return [found[place]["input_ids"].tolist() for place in places or range(len(found))]


def written(web: Any) -> dict[str, list[str]]:
    """The texts of the training shards, by shard."""
    return {name: [text for _, text in shards.rows(web / name)]
            for name in shards.by_side(web)["train"]}  # fmt: skip


def test_the_corpus_stage_lists_shards_and_writes_what_is_held_out(chosen, web, place):
    folder = corpus.ROOT / "web"
    *rows, last = [json.loads(line) for line in (folder / "train.jsonl").open()]
    assert [row["shard"] for row in rows] == [f"train/{n}.jsonl" for n in range(3)]
    assert rows[0]["sha256"] == hashlib.sha256((web / "train/0.jsonl").read_bytes()).hexdigest()
    assert last["documents"] == 8
    manifest = json.loads((folder / "texts.json").read_text())
    assert manifest["sides"]["train"]["shards"] == 3
    assert (
        manifest["sides"]["test"]["documents"] == manifest["sides"]["validation"]["documents"] == 4
    )
    corpus.build("web", chosen, folder=place / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (place / "again" / path.name).read_bytes()


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
def test_lanes_together_read_every_document_once_before_any_again(chosen, web, lanes):
    found = stream(chosen, lanes)
    end = models.byte_tokenizer().eos_token_id
    texts = []
    for number in range(lanes):
        lane = streaming.Lane(found.source, number, lanes, seed=0)
        ids: list[int] = []
        while lane.place.turn == 0:
            ids += lane.window(CONTEXT).tolist()
        first = sum(row["documents"] for row in lane.place.seen if row["turn"] == 0)
        own = bytes_of(ids, end)[:first]
        assert len(own) == first
        texts += own
    assert sorted(texts) == sorted(itertools.chain(*written(web).values()))


def bytes_of(ids: list[int], end: int) -> list[str]:
    """The texts that are whole, between the ends."""
    parts, part = [], []
    for token in ids:
        if token == end:
            parts.append(models.byte_tokenizer().decode(part))
            part = []
        else:
            part.append(token)
    return parts


@pytest.mark.parametrize("lanes", [2, 7])
def test_it_goes_on_from_a_place_as_if_it_had_not_stopped(chosen, lanes):
    whole = taken(stream(chosen, lanes, count=90))
    first = stream(chosen, lanes, count=90)
    assert taken(first, *range(41)) == whole[:41]
    state = first.places()
    taken(first, *range(41, 60))  # what it does from here on changes no state that was given away
    second = stream(chosen, lanes, count=90)
    second.go_on(state)
    assert taken(second, *range(41, 90)) == whole[41:]
    assert taken(stream(chosen, lanes, count=90), *range(83, 90)) == whole[83:]
    assert taken(second, *range(90)) == whole


def test_a_place_saves_reading_again(chosen, monkeypatch):
    first = stream(chosen)
    taken(first, *range(30))
    second = stream(chosen)
    second.go_on(first.places())
    read: list[str] = []
    plain = Streamed.tokens
    monkeypatch.setattr(Streamed, "tokens", lambda self, t: read.append(t) or plain(self, t))
    taken(second, 30, 31)
    assert len(read) <= 2
    start, passed = taken(second, 0), taken(second, 32)
    read.clear()
    assert taken(second, 0, 33)[:1] == start  # which a regime may look at after any step
    assert len(read) <= 1
    assert taken(second, 32) == passed
    assert len(read) > 5


def test_the_order_is_the_seeds(chosen):
    one, again, other = (taken(stream(chosen, seed=seed)) for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert len({tuple(ids) for ids in one}) == len(one)


def data(chosen: Settings, **regime: Any) -> StreamedData:
    how = chosen.cell("tiny").regime.model_copy(update={"batch_size": 4, **regime})
    cell = chosen.cell("tiny").model_copy(update={"regime": how})
    found = streaming.data_of(cell, 3, chosen)
    assert isinstance(found, StreamedData)
    return found


def test_two_processes_see_what_one_does_and_read_nothing_twice(chosen, monkeypatch):
    whole = [batch["input_ids"] for batch in data(chosen).train_dataloader()]
    assert [tuple(batch.shape) for batch in whole] == [(4, CONTEXT)] * 4
    parts, modules = [], [data(chosen), data(chosen)]
    for rank, module in enumerate(modules):
        monkeypatch.setattr(module, "_place", lambda rank=rank: (rank, 2))
        parts.append([batch["input_ids"] for batch in module.train_dataloader()])
    assert all(torch.cat(both).equal(batch)
               for *both, batch in zip(*parts, whole, strict=True))  # fmt: skip
    lanes = [set(module.state_dict()["lanes"]) for module in modules]
    assert lanes == [{0, 1}, {2, 3}]
    read = [{(row["shard"], row["lane"] // 3) for row in module.seen().to_dict("records")}
            for module in modules]  # fmt: skip
    assert not read[0] & read[1]


def test_a_run_killed_in_mid_epoch_goes_on_with_the_very_next_batch(chosen, tmp_path, monkeypatch):
    def make(steps: int) -> StreamedData:
        return data(chosen, steps=steps)

    undisturbed, killed, resumed = Recorder(), Recorder(die_at=5), Recorder()
    fit(undisturbed, make, tmp_path / "whole")
    with pytest.raises(KilledError):
        fit(killed, make, tmp_path / "killed")
    opened: list[int] = []
    plain = streaming.Lane.__init__
    monkeypatch.setattr(streaming.Lane, "__init__",
                        lambda self, *a: opened.append(a[-1].taken) or plain(self, *a))  # fmt: skip
    fit(resumed, make, tmp_path / "killed", resume=str(tmp_path / "killed/step=4.ckpt"))
    assert opened == [4] * 4  # from the places in the checkpoint, none from the start
    assert len({tuple(each) for each in undisturbed.seen}) == 8
    assert killed.seen == undisturbed.seen[:5]
    assert resumed.seen == undisturbed.seen[4:]


def test_what_was_seen_is_told(chosen, web):
    module = data(chosen, steps=20)
    list(module.train_dataloader())
    seen = module.seen()
    assert set(seen["lane"]) == set(range(4))
    texts = written(web)
    assert seen["turn"].max() >= 1
    for row in seen.to_dict("records"):
        # Four lanes, three shards: two of the lanes have one shard between them.
        striped = [lane for lane in range(4) if lane % 3 == row["lane"] % 3]
        own = texts[row["shard"]][striped.index(row["lane"]) :: len(striped)]
        known = ""
        for text in own[: row["documents"]]:
            known = hashlib.sha256((known + text).encode()).hexdigest()
        assert row["sha256"] == known
        assert row["last_row"] == (row["documents"] - 1) * len(striped) + striped.index(row["lane"])


def test_what_is_held_out_is_never_trained_on(params, web, place):
    other = shelf(place / "data/sources/other", 1)
    shelf(place / "own/other", 1)
    jsonl(other / "validation/0.jsonl", [prose(seed) for seed in (1, 30_000)])
    jsonl(web / "train/0.jsonl", [prose(10_001).upper(), prose(7), prose(20_002)[:600], prose(8)])
    apart = {**WEB, "apart": ["other"]}
    chosen = parsed(params, web=apart, other={"source": "other", "streamed": True})
    corpus.build("web", chosen)
    found = stream(chosen, lanes=1, count=400)
    taken(found)
    rows = {row["shard"]: row for row in reversed(found.places()[0]["seen"])}
    assert (rows["train/0.jsonl"]["documents"], rows["train/0.jsonl"]["held_out"]) == (2, 2)
    assert rows["train/1.jsonl"]["held_out"] == 0
    held = {row["held_out"] for row in found.places()[0]["seen"]}
    assert held == {0, 2}


def test_nothing_left_to_train_on_is_an_error_and_no_endless_search(params, web, place):
    for number in range(3):
        jsonl(web / f"train/{number}.jsonl", [prose(10_000), "  "])
    chosen = parsed(params, web=WEB)
    corpus.build("web", chosen)
    with pytest.raises(ValueError, match=r"^texts\.web: no document of train/.* can be trained on"):
        taken(stream(chosen), 0)


def test_a_shard_that_has_changed_is_named(chosen, web):
    jsonl(web / "train/1.jsonl", ["another"])
    with pytest.raises(ValueError, match=r"train/1\.jsonl: is not the shard that texts\.web lists"):
        stream(chosen)


def test_only_the_documents_at_hand_are_read(chosen, monkeypatch):
    read: list[str] = []
    plain = Streamed.tokens
    monkeypatch.setattr(Streamed, "tokens", lambda self, t: read.append(t) or plain(self, t))
    taken(stream(chosen, lanes=1), 0)
    assert len(read) == 1
