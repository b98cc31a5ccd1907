"""Nonsense is refused by the field's full name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import settings
from experiments.settings import Mask


def put(values: dict[str, Any], name: str, value: object) -> None:
    """Sets the setting of a full name, e.g. `readings.final.context`."""
    *path, last = name.split(".")
    for part in path:
        values = values[part]
    values[last] = value


def test_the_file_of_the_repository_is_valid(params: dict[str, Any]) -> None:
    read = settings.parse(params)
    assert read.scale in settings.SCALES
    for block, cells in read.experiments.items():
        assert read.cells(block) == cells
        for name, cell in cells.items():
            assert read.cell(name) is cell
            assert (cell.name, cell.block) == (name, block)


MASK = {"groups": 4, "top_k": 2, "probe": "multi_probe", "routers": "query_head"}
BAD = [
    ("seed", -1, "seed: Input should be greater than or equal to 0, got -1"),
    ("seed", True, "seed: Input should be a valid integer"),
    ("seeds", [0, 0], "seeds: must name no value twice"),
    ("threads", 0, "threads: Input should be greater"),
    ("threads", "2", "threads: Input should be a valid integer, got '2'"),
    ("texts.plays.sauce", "x", "texts.plays.sauce: unknown field"),
    ("texts.plays.max_overlap", 0.0, "texts.plays.max_overlap: Input should be greater than 0"),
    ("texts.books.streamed", True, "texts.books.train_tokens: of a streamed text steps take what"),
    ("texts.plays.streamed", "yes", "texts.plays.streamed: Input should be a valid boolean"),
    ("prefill.texts", "web", "prefill.texts: web is streamed; this needs whole training docu"),
    (
        "readings.validation",
        {"kind": "perplexity", "texts": ["web"], "side": "train"},
        "readings.validation.texts: web is streamed; this needs whole training documents",
    ),
    ("readings.final.final", False, "readings.final.side: test documents are opened by a final"),
    ("readings.final.score_from", 9999, "readings.final.score_from: must be below context"),
    ("readings.final.kind", "luck", "readings.final.kind: must be one of 'perplexity', 'posi"),
    ("readings.chat.questions", 999, "readings.chat.questions: there are 24 of them"),
    ("readings.final", {"texts": ["plays"]}, "readings.final.kind: Field required"),
    ("readings.final.texts", ["moon"], "readings.final.texts: 'moon' is unknown; there are plays"),
    ("readings.final.documents", 1, "readings.final.documents: Input should be greater"),
    ("readings.copying.passage", 8, "readings.copying.passage: must be above lead = 8"),
    ("readings.copying.distances", [10], "readings.copying.distances: must be from passage = 256"),
    ("readings.leak.balances", ["luck"], "readings.leak.balances[0]: Input should be 'sinkhorn'"),
    ("intervals.confidence", 1.0, "intervals.confidence: Input should be less than 1"),
    ("tolerances.rounding", -1.0, "tolerances.rounding: Input should be greater"),
    ("speed", 3, "speed: Input should be a valid dictionary"),
    ("speed.key_heads", 2, "speed.key_heads: 2 does not divide heads = 9"),
    ("speed.top_ks", [99], "speed.top_ks: 99 is above groups = 4"),
    ("decode.routings", [{"groups": 2, "top_k": 3}], "decode.routings[0].top_k: 3 is above"),
    ("decode.routings", [{"groups": 2, "topk": 3}], "decode.routings[0].topk: unknown field"),
    ("prefill.texts", "moon", "prefill.texts: 'moon' is unknown"),
    ("masks.routings", [MASK | {"heads": [1, 2, 4]}], "masks.routings[0].heads: have 7 groups"),
    ("masks.routings", [MASK | {"heads": [0, 5, 1]}], "masks.routings[0].heads: 5 is above groups"),
    ("masks.routings", [MASK | {"heads": [0, 4, 2]}], "masks.routings[0].heads: without heavy"),
    ("masks.routings", [MASK | {"heads": [2], "routers": "layer"}], "masks.routings[0].heads: go"),
    ("speeds", {}, "speeds: unknown field"),
    ("experiments.pretrained.model", "gpt9", "experiments.pretrained.model: 'gpt9' is unknown; th"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_nonsense_in_a_block(params: dict[str, Any], name: str, value: Any, message: str) -> None:
    put(params, name, value)
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    assert str(caught.value).startswith(message)


def test_an_unknown_model_is_told_with_those_there_are_and_where_to_add_one(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOCUS_DATA", raising=False)
    put(params, "experiments.pretrained.model", "nosuch")
    with pytest.raises(ValueError, match=r"llama-2-70b\. Add one to experiments/sources/sources"):
        settings.parse(params)
    with pytest.raises(ValueError, match=r"into the folder FOCUS_DATA, which is not set$"):
        settings.parse(params)


def routed(**fields: Any) -> dict[str, Any]:
    return {"method": {"num_groups": 4, **fields}}


def fitted(**fields: Any) -> dict[str, Any]:
    return {"regime": fields}


PLAIN = {"regime": {"name": "none"}}
BAD_CELLS = [
    ({"mothod": {}}, "mothod: unknown field"),
    ({"model": 3}, "model: Input should be a valid string, got 3"),
    ({"texts": "moon"}, "texts: 'moon' is unknown; there are plays"),
    ({"readings": ["moon"]}, "readings: 'moon' is unknown; "),
    ({"readings": []}, "readings: must name at least one value"),
    ({"budgets": 0.5}, "budgets: Input should be a list, got 0.5"),
    ({"against": ["moon"]}, "against: 'moon' is unknown; there are one"),
    ({"seeds": [7]}, "seeds: [7] are not all in seeds = [0, 1, 2]"),
    ({"start": "moon"}, "start: 'moon': no such experiment; there are one"),
    ({"method": 3}, "method: Input should be a valid dictionary"),
    ({"method": {"name": "moon"}, "regime": None}, "method.name: 'moon' is no method; there are"),
    (routed(windo=3), "method.windo: unknown field"),
    (routed(window=0), "method.window: must be >= 1, got 0"),
    (routed(dense_every=1), "method.dense_every: 1 leaves no layer under the mask"),
    (routed(top_k=5), "method.top_k: must be at most num_groups = 4, got 5"),
    (fitted(name="luck"), "regime.name: must be one of 'centroids', 'joint', 'lora', 'distil', 'f"),
    (fitted(steps=-1), "regime.steps: Input should be greater than or equal to 0, got -1"),
    (fitted(steps=1.5), "regime.steps: Input should be a valid integer"),
    (fitted(stepz=3), "regime.stepz: unknown field"),
    (fitted(steps=2, warmup_steps=9), "regime.warmup_steps: must be at most steps = 2, "),
    (fitted(learning_rate=float("inf")), "regime.learning_rate: Input should be a finite number"),
    (fitted(devices=0), "regime.devices: Input should be greater"),
    (fitted(nodes=0), "regime.nodes: Input should be greater"),
    ({"texts": "web", **routed(heavy_hitters=0.02)}, "texts: web is streamed; this needs whole"),
    (
        {"texts": "web", "method": {"name": "token"}, "regime": None, "budgets": [0.5]},
        "texts: web is streamed; this needs whole training documents",
    ),
    (fitted(strategy="luck"), "regime.strategy: Input should be 'auto', 'ddp' or 'fsdp2'"),
    (fitted(hard_from=1.0), "regime.hard_from: Input should be less than 1"),
    (fitted(hard_top_ks=[0]), "regime.hard_top_ks[0]: Input should be greater"),
    (fitted(hard_from=0.5, hard_top_ks=[1, 8]), "regime.hard_top_ks: 8 is above num_groups = 4"),
    ({"budgets": [2.0]}, "budgets[0]: Input should be less than or equal to 1, got 2.0"),
    ({"budgets": [0.5, "half"]}, "budgets[1]: Input should be a valid number"),
    ({"budgets": [0.5, 0.5]}, "budgets: must name no value twice"),
    ({"budgets": [{"top_k": 0}]}, "budgets[0].top_k: Input should be greater"),
    ({"budgets": [{"topk": 1}]}, "budgets[0].top_k: Field required"),
    ({"budgets": [{"top_k": 5}]}, "budgets[0].top_k: 5 is above num_groups = 4"),
    ({"budgets": [0.25, 0.5], "keeps": [0.3]}, "keeps: 1 shares for 2 budgets"),
    ({"budgets": [0.25], "keeps": [2.0]}, "keeps[0]: Input should be less than or equal to 1"),
    ({"budgets": [0.5, 0.2]}, "budgets[1]: one of num_groups = 4 groups is more than 0.2"),
    (PLAIN, "regime.name: none trains no routers, and start names no experiment that does"),
    ({"regime": {"name": "lora", "steps": 2}}, "regime.name: lora trains no routers"),
    (fitted(steps=0), "regime.steps: 0 trains no routers, and start names no experiment that does"),
    (fitted(name="joint", steps=0), "regime.steps: Input should be greater than or equal to 1"),
    (routed(allocated=True, top_k=2), "method.allocated: heads share groups out where a key is"),
    ({**routed(allocated=True), **PLAIN}, "method.allocated: regime none shares no groups out"),
    (
        {"method": {"name": "quest"}, "regime": {"name": "distil", "steps": 2}},
        "regime.name: distil trains networks that choose keys; method quest has none",
    ),
    (
        {"method": {"name": "seer"}, "regime": {"name": "lora", "steps": 2}},
        "regime.name: method seer is trained by distil alone",
    ),
    (
        {"method": {"name": "quest", "block": 256}, "regime": None, "budgets": [0.5]},
        "budgets[0]: method quest needs blocks of at most window = 128 tokens, not 256",
    ),
    ({"method": {"name": "window"}}, "regime.name: centroids trains routers; method window has"),
    *(
        (
            {"method": {"name": method}, "regime": {"name": regime, "steps": 2}},
            f"regime.name: {regime} trains routers; method {method} has none",
        )
        for method in ("window", "full")
        for regime in ("joint", "scratch_joint")
    ),
    *(
        (
            {"method": {"name": method}, "regime": None, "budgets": budgets, "readings": [kind]},
            f"readings: {kind} is of kind {kind}, for method focus alone",
        )
        for method, budgets in (("full", []), ("window", [0.5]), ("quest", [0.5]))
        for kind in ("groups", "contents", "information")
    ),
]


@pytest.mark.parametrize(("cell", "message"), BAD_CELLS, ids=[str(cell) for cell, _ in BAD_CELLS])
def test_nonsense_in_an_experiment(file: Any, cell: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        settings.parse(file(one=cell))
    assert str(caught.value).startswith(f"experiments.one.{message}")


def test_what_came_later_stands_in_no_record_where_it_is_as_before(file: Any) -> None:
    read = settings.parse(file(one={}, two={"texts": "web", "regime": {"nodes": 2}}))
    one, two = read.cell("one"), read.cell("two")
    assert "nodes" not in one.regime.plain()
    assert "nodes" not in one.plain()["regime"]  # as what is read says
    assert two.plain()["regime"]["nodes"] == 2
    assert two.regime.plain() == {**one.regime.plain(), "nodes": 2}
    assert "streamed" not in read.texts[one.texts].plain()
    assert read.texts[two.texts].plain()["streamed"] is True
    assert (one.regime.processes, two.regime.processes) == (1, 2)


def test_fields_that_are_no_more_stand_in_every_record_and_nowhere_else(file: Any) -> None:
    lora = {"regime": {"name": "lora", "steps": 2}, "method": {"name": "full"}}
    read = settings.parse(file(one={}, two=lora))
    routers, adapter = (read.cell(name).plain()["regime"] for name in ("one", "two"))
    assert (routers["copies"], routers["loss"]) == (0.0, "next_token")
    assert adapter["copies"] == 0.0
    assert "loss" not in adapter
    with pytest.raises(ValueError, match=r"^experiments\.one\.regime\.copies: unknown field$"):
        settings.parse(file(one=fitted(copies=0.0)))


def test_two_groups_work(file: Any) -> None:
    masks = [{"top_k": 1}, {"top_k": 2, "probe": "multi_probe", "ngram": 3}]
    cell = settings.parse(file(one={**routed(num_groups=2), "budgets": [0.5, *masks]})).cell("one")
    assert cell.budgets == (0.5, Mask(top_k=1), Mask(top_k=2, probe="multi_probe", ngram=3))
    assert [str(each) for each in cell.budgets] == [
        "0.5", "k1.symmetric.causal", "k2.multi_probe.n3.causal",
    ]  # fmt: skip


@pytest.mark.parametrize("block", ["texts", "readings", "speed", "intervals", "tolerances"])
def test_a_missing_block_is_named(params: dict[str, Any], block: str) -> None:
    del params[block]
    with pytest.raises(ValueError, match=rf"^{block}: Field required$"):
        settings.parse(params)


def test_a_missing_field_is_named(file: Any) -> None:
    with pytest.raises(ValueError, match=r"^experiments\.one\.model: Field required$"):
        settings.parse(file(one={"base": None, "texts": "plays", "readings": ["search"],
                                 "method": {"name": "full"}}))  # fmt: skip
    with pytest.raises(ValueError, match=r"^experiments\.one\.method\.name: Field required$"):
        settings.parse(file(one={"method": None} | {"method": {"window": 3}, "base": "bare"})
                       | {"bases": {"bare": {"model": "m", "texts": "plays",
                                             "readings": ["search"]}}})  # fmt: skip


def test_every_wrong_field_has_a_line(params: dict[str, Any]) -> None:
    put(params, "readings.final.documents", 1)
    put(params, "speed.lengths", [0])
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "readings.final.documents",
        "speed.lengths[0]",
    ]


def test_settings_cannot_be_changed(params: dict[str, Any]) -> None:
    read = settings.parse(params)
    cell = next(iter(read.cells("recipe").values()))
    for thing, field in ((read, "seed"), (cell, "model"), (cell.regime, "steps")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(thing, field, 3)
    with pytest.raises(TypeError):
        read.experiments["new"] = {}


def test_a_cell_in_plain_values_is_the_same_cell(params: dict[str, Any]) -> None:
    for cells in settings.parse(params).experiments.values():
        for cell in cells.values():
            plain = cell.plain()
            for former, _ in cell.regime.FORMER:
                del plain["regime"][former]
            assert type(cell).model_validate(plain) == cell


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "3", "a: 1\na: 2\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"params\.yaml: "):
        settings.load(path)


@pytest.mark.parametrize("key", ["bases", "experiments"])
def test_blocks_that_are_a_list_are_refused(file: Any, key: str) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: must be a mapping of names to blocks"):
        settings.parse({**file(one={}), key: [{"base": "plain"}]})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"params\.yaml: cannot be read"):
        settings.load(tmp_path / "params.yaml")


def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text("rate: 1e-2\nanchor: &one {x: on}\nagain: *one\n")
    assert settings.read_yaml(path) == {"rate": 0.01, "anchor": {"x": "on"}, "again": {"x": "on"}}
