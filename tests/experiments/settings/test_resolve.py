"""Inheritance, sweeps, starts and overlays, all in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import settings
from experiments.settings import __main__ as command

ROOT = Path(__file__).resolve().parents[3]


def test_a_block_inherits_field_by_field(file: Any) -> None:
    read = settings.parse(
        file(
            one={"method": {"window": 64, "num_groups": 8}, "seeds": [0, 1]},
            two={"base": "one", "regime": {"steps": 5}, "method": {"num_groups": 2}},
        )
    )
    two = read.cell("two")
    assert two.method.fields == {"num_groups": 2, "window": 64}
    assert (two.regime.steps, two.regime.context, two.seeds) == (5, 64, (0, 1))
    assert read.cell("one").method.fields == {"num_groups": 8, "window": 64}
    assert read.cell("one").regime.steps == 2


def test_another_method_or_regime_replaces_the_whole_of_it(file: Any) -> None:
    trained = {"name": "lora", "steps": 3}
    cell = settings.parse(file(one={"method": {"name": "full"}, "regime": trained})).cell("one")
    assert cell.method.fields == {}
    assert cell.regime == settings.Lora(steps=3)


def test_null_removes_a_mapping_and_unsets_a_field(file: Any) -> None:
    cell = settings.parse(file(one={"method": {"name": "full"}, "regime": None})).cell("one")
    assert not cell.trains
    late = {"hard_from": 0.4, "hard_top_ks": [1, 2]}
    read = settings.parse(
        file(one={"regime": late}, two={"base": "one", "regime": {"hard_from": None}})
    )
    assert read.cell("one").regime.hard_from == 0.4
    assert read.cell("two").regime.hard_from is None


def test_a_place_in_the_core_and_a_sweep_are_not_inherited(file: Any) -> None:
    read = settings.parse(
        file(one={"core": True, "sweep": {"window": [8, 16]}}, two={"base": "one"})
    )
    assert list(read.cells("one")) == ["one-window8", "one-window16"]
    assert list(read.cells("two")) == ["two"]
    assert all(cell.core for cell in read.cells("one").values())
    assert not read.cell("two").core


CIRCLES = [
    ({"one": {"base": "one"}}, r"experiments\.one\.base: 'one' inherits from 'one'"),
    ({"one": {"base": "two"}, "two": {"base": "one"}}, r"experiments\.one\.base: 'one' inherits"),
    ({"one": {"base": "moon"}}, r"experiments\.one\.base: 'moon' is no block; there are plain"),
    ({"one": {"start": "one"}}, r"experiments\.one\.start: one -> one goes round"),
    ({"one": {"start": "two"}, "two": {"start": "one"}}, r"experiments\.one\.start: one -> two ->"),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "message"), CIRCLES, ids=[m for _, m in CIRCLES])
def test_circles_and_unknown_names_are_refused(
    file: Any, blocks: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        settings.parse(file(**blocks))


def test_a_sweep_makes_a_cell_of_each_point(file: Any) -> None:
    sweep = {"window": [8, 16], "regime.steps": [2, 3], "model": ["tiny-llama", "tiny-qwen2"]}
    cells = settings.parse(file(one={"sweep": sweep})).cells("one")
    assert len(cells) == 8
    cell = cells["one-window16-steps3-modeltiny-qwen2"]
    assert (cell.block, cell.method.fields["window"], cell.regime.steps) == ("one", 16, 3)
    assert cell.model == "tiny-qwen2"


def test_a_swept_field_of_the_regime_needs_no_path(file: Any) -> None:
    cells = settings.parse(file(one={"sweep": {"steps": [2, 3]}})).cells("one")
    assert {name: cell.regime.steps for name, cell in cells.items()} == {
        "one-steps2": 2, "one-steps3": 3,
    }  # fmt: skip


def test_a_sweep_over_methods(file: Any) -> None:
    sweep = {"method.name": ["window", "position"]}
    plain = {"sweep": sweep, "budgets": [0.25], "regime": None}
    cells = settings.parse(file(one=plain)).cells("one")
    assert {name: cell.method.fields for name, cell in cells.items()} == {
        "one-namewindow": {}, "one-nameposition": {},
    }  # fmt: skip


SWEEPS = [
    ({"window": 8}, r"experiments\.one\.sweep: must map fields to lists"),
    ({"window": []}, r"experiments\.one\.sweep: must map fields to lists"),
    ([8], r"experiments\.one\.sweep: must map fields to lists"),
    ({"window": [8, 8]}, r"experiments\.one\.sweep: two cells would be named one-window8"),
    ({"budgets": [[0.5], [0.25]]}, r"experiments\.one\.sweep\.budgets: a cell is named by its"),
    ({"window": [8], "method.window": [16]}, r"experiments\.one\.sweep: window is there twice"),
    ({"windo": [8]}, r"experiments\.one\.method\.windo: unknown field"),
    ({"regime.stepz": [8]}, r"experiments\.one\.regime\.stepz: unknown field"),
    ({"methods.window": [8]}, r"experiments\.one\.methods: unknown field"),
]


@pytest.mark.parametrize(("sweep", "message"), SWEEPS, ids=[str(s) for s, _ in SWEEPS])
def test_sweeps_of_nothing_are_refused(file: Any, sweep: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        settings.parse(file(one={"sweep": sweep}))


def test_a_cell_is_found_by_its_name_alone(file: Any) -> None:
    sweep = {"one": {"sweep": {"window": [8, 16]}}}
    with pytest.raises(ValueError, match=r"^experiments\.one\.sweep: one-window8 is another exper"):
        settings.parse(file(**sweep, **{"one-window8": {}}))
    read = settings.parse(file(**sweep))
    assert read.cell("one-window8").block == "one"
    with pytest.raises(ValueError, match=r"^experiments\.one: has several cells; there are one-wi"):
        read.cell("one")
    with pytest.raises(ValueError, match=r"^experiments\.moon: no such experiment"):
        read.cells("moon")


def test_what_starts_from_trained_routers_has_theirs(file: Any) -> None:
    read = {"regime": {"name": "none"}, "budgets": [0.5]}
    cells = {"one": {}, "two": {**read, "start": "one"}, "three": {**read, "start": "two"}}
    assert settings.parse(file(**cells)).cell("three").start == "two"
    cells["two"]["method"] = {"num_groups": 8}
    with pytest.raises(ValueError, match=r"^experiments\.two\.method\.num_groups: 8 is not 4, as "):
        settings.parse(file(**cells))


def test_a_start_may_be_a_cell_and_must_be_of_the_same_model(file: Any) -> None:
    swept = {"sweep": {"window": [8, 16]}}
    read = settings.parse(file(one=swept, two={"start": "one-window8"}))
    assert read.cell("two").start == "one-window8"
    with pytest.raises(
        ValueError, match=r"^experiments\.two\.start: 'one': has several cells; there"
    ):
        settings.parse(file(one=swept, two={"start": "one"}))
    with pytest.raises(ValueError, match=r"^experiments\.two\.start: one is of tiny-llama, not"):
        settings.parse(file(one={}, two={"start": "one", "model": "tiny-gpt2"}))


def test_a_base_and_an_experiment_have_names_of_their_own(file: Any) -> None:
    with pytest.raises(ValueError, match=r"^bases: a base and an experiment have the same name"):
        settings.parse(file(plain={"base": None}))
    with pytest.raises(ValueError, match=r"^experiments\.a b: a name is letters"):
        settings.parse(file(**{"a b": {}}))
    for name in ("-x", 1):
        with pytest.raises(ValueError, match=rf"^experiments\.{name}: a name is letters"):
            settings.parse(file() | {"experiments": {name: {}}})
    for own in ("name", "block"):
        with pytest.raises(ValueError, match=rf"^experiments\.one\.{own}: unknown field"):
            settings.parse(file(one={own: "two"}))
    with pytest.raises(ValueError, match=r"^experiments\.one\.base: must be the name of one block"):
        settings.parse(file(one={"base": ["plain"]}))
    with pytest.raises(
        ValueError, match=r"^experiments\.one\.against: one is the experiment itself"
    ):
        settings.parse(file(one={"against": ["one"]}))
    with pytest.raises(ValueError, match=r"^experiments\.one: must be a mapping, got 3"):
        settings.parse(file() | {"experiments": {"one": 3}})


def test_an_experiment_is_not_named_like_a_measurement(file: Any) -> None:
    with pytest.raises(ValueError, match=r"^experiments\.speed: is the name of a block"):
        settings.parse(file(speed={"base": "plain"}))


def test_an_overlay_is_laid_in_memory(file: Any, written: Any) -> None:
    own = file(one={"regime": {"steps": 7}}, two={"base": "one"})
    path = written(own)
    overlay = {"threads": 1, "readings": {"search": {"documents": 2, "windows": 5}},
               "experiments": {"one": {"regime": {"steps": 3, "warmup_steps": 1}}},
               "bases": {"plain": {"dtype": "bfloat16"}}}  # fmt: skip
    written(overlay, "scales/smoke.yaml")
    before = {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}
    read = settings.load(path, scale="smoke", overlays=path.parent / "scales")
    assert (read.scale, read.threads) == ("smoke", 1)
    assert (read.readings["search"].documents, read.readings["search"].windows) == (2, 5)
    for name in ("one", "two"):  # what inherits from a block that the overlay changes, too
        cell = read.cell(name)
        assert (cell.regime.steps, cell.regime.warmup_steps, cell.dtype) == (3, 1, "bfloat16")
    after = {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}
    assert after == before
    plain = settings.load(path, overlays=path.parent / "scales")
    assert (plain.scale, plain.cell("two").regime.steps) == ("laptop", 7)
    written({**own, "scale": "smoke"})
    assert settings.load(path, overlays=path.parent / "scales") == read


OVERLAYS = [
    ({"thread": 1}, r"thread: is in the overlay but not in params\.yaml"),
    ({"seeds": [0]}, r"seeds: dvc\.yaml knows those of params\.yaml alone"),
    ({"experiments": {"moon": {}}}, r"experiments\.moon: is in the overlay but not in"),
    ({"readings": {"moon": {}}}, r"readings\.moon: is in the overlay but not in"),
    ({"tolerances": {"moon": 1.0}}, r"tolerances\.moon: is in the overlay but not in"),
    ({"readings": {"search": {"windoes": 1}}}, r"readings\.search\.windoes: unknown field"),
    ({"experiments": {"one": {"regime": {"stepz": 1}}}}, r"experiments\.one\.regime\.stepz: unkno"),
    ({"experiments": {"one": {"regime": {"steps": -1}}}}, r"experiments\.one\.regime\.steps: Inp"),
]  # fmt: skip


@pytest.mark.parametrize(("overlay", "message"), OVERLAYS, ids=[m for _, m in OVERLAYS])
def test_an_overlay_changes_only_what_there_is(
    file: Any, written: Any, overlay: dict[str, Any], message: str
) -> None:
    path = written(file(one={}))
    written(overlay, "scales/smoke.yaml")
    with pytest.raises(ValueError, match=f"^{message}"):
        settings.load(path, scale="smoke", overlays=path.parent / "scales")


@pytest.mark.parametrize("scale", settings.SCALES)
def test_every_scale_is_valid(scale: str) -> None:
    read = settings.load(ROOT / "params.yaml", scale=scale, overlays=ROOT / "scales")
    assert read.scale == scale
    assert any(cell.core for cells in read.experiments.values() for cell in cells.values())


@pytest.mark.parametrize("scale", ["huge", 3])
def test_an_unknown_scale_is_refused(file: Any, written: Any, scale: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^scale: must be one of smoke, laptop, gpu, cluster, got"
    ):
        settings.load(written({**file(), "scale": scale}))


def test_the_command(file: Any, written: Any, monkeypatch: Any, capsys: Any) -> None:
    core = {"core": True, "sweep": {"window": [8, 16]}}
    four = {"sweep": {"window": [8]}}
    path = written(file(one=core, two={}, three={"core": True}, four=four))
    written({"threads": 0}, "scales/smoke.yaml")
    monkeypatch.chdir(path.parent)
    assert command.main([]) == 0
    out = capsys.readouterr().out
    assert "params.yaml is valid: scale laptop, seeds 0, 1, 2" in out
    assert "one: one-window8, one-window16" in out
    assert "two: focus" in out
    assert "four: four-window8" in out
    assert command.main(["--targets", "core"]) == 0
    targets = capsys.readouterr().out.split()
    assert targets[:2] == ["read@one", "read@three"]
    assert not any("two" in each for each in targets)
    assert command.main(["--scale", "smoke"]) == 1
    assert capsys.readouterr().err.startswith("params.yaml: threads: Input should be greater")


def test_the_command_warns_of_what_cannot_be_trained_here(
    file: Any, written: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    half = {"regime": {"precision": "16-mixed"}}
    path = written(file(one={}, half={**half, "sweep": {"window": [8, 16]}}))
    monkeypatch.chdir(path.parent)
    wanted = "warning: cannot be trained here: experiments.half.regime.precision: 16-mixed needs"
    for cards in (1, 0):
        monkeypatch.setattr(torch.cuda, "device_count", lambda cards=cards: cards)
        assert command.main([]) == 0
        shown = capsys.readouterr()
        assert shown.out.count("warning") == shown.out.count(wanted) == 1 - cards
        assert not shown.err


def test_a_swept_block_starts_from_the_same_point_of_a_swept_start(file: Any) -> None:
    values = file(
        one={"sweep": {"window": [8, 16]}},
        two={"base": "one", "start": "one", "regime": None, "sweep": {"window": [16, 8]}},
        three={"base": "one", "start": "one-window8", "regime": None},
    )
    read = settings.parse(values)
    assert read.cell("two-window16").start == "one-window16"
    assert read.cell("two-window8").start == "one-window8"
    assert read.cell("three").start == "one-window8"
    values["experiments"]["two"]["sweep"] = {"window": [32]}
    with pytest.raises(ValueError, match=r"experiments\.two\.start: 'one': has several cells"):
        settings.parse(values)


def test_what_is_compared_must_be_read_the_same_way(file: Any) -> None:
    cells = {"one": {"readings": ["search"]}, "two": {"readings": ["plays"], "against": ["one"]}}
    told = (
        r"^experiments\.two\.against: one has none of the readings plays, so there is nothing to "
    )
    with pytest.raises(ValueError, match=told):
        settings.parse(file(**cells))
    cells["one"]["readings"].append("plays")
    assert settings.parse(file(**cells)).cell("two").against == ("one",)
