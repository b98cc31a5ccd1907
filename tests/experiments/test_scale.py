from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments import scale, settings
from experiments.schema import read_yaml

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [name for name in settings.SCALES if name != "laptop"]


@pytest.fixture
def params_file(tmp_path):
    path = tmp_path / "params.yaml"
    shutil.copy(ROOT / "params.yaml", path)
    scale.apply("laptop", path, ROOT / "scales")
    return path


def apply(name, path):
    return scale.apply(name, path, ROOT / "scales")


@pytest.mark.parametrize("name", OTHERS)
def test_the_laptop_overlay_names_all_that_another_one_sets(name):
    laptop = scale.leaves(read_yaml(ROOT / "scales/laptop.yaml"))
    other = scale.leaves(read_yaml(ROOT / f"scales/{name}.yaml"))
    assert set(other) <= set(laptop)


@pytest.mark.parametrize("name", OTHERS)
def test_there_and_back_gives_the_same_file(params_file, name):
    before = params_file.read_text()
    assert apply(name, params_file)
    assert settings.load(params_file).scale == name
    assert params_file.read_text() != before
    assert apply("laptop", params_file)
    assert params_file.read_text() == before


def test_every_scale_can_be_reached_from_every_other(params_file):
    for first in settings.SCALES:
        for second in settings.SCALES:
            apply(first, params_file)
            apply(second, params_file)
            found = params_file.read_text()
            leaves = scale.leaves(read_yaml(params_file))
            for key, value in scale.leaves(read_yaml(ROOT / f"scales/{second}.yaml")).items():
                assert leaves[key] == value, (first, second, key)
            apply("laptop", params_file)
            apply(second, params_file)
            assert found == params_file.read_text(), (first, second)


def test_the_laptop_overlay_is_what_params_says():
    """The default scale stands in two files; they must not drift apart."""
    found = read_yaml(ROOT / "params.yaml")
    if found["scale"] != "laptop":
        pytest.skip("params.yaml is at another scale")
    found = scale.leaves(found)
    laptop = scale.leaves(read_yaml(ROOT / "scales/laptop.yaml"))
    assert {key: found[key] for key in laptop} == laptop


def test_own_edits_survive_while_the_scale_stays(params_file):
    edited = params_file.read_text().replace("seed: 0", "seed: 7", 1)
    params_file.write_text(edited)
    assert not apply("laptop", params_file)
    assert params_file.read_text() == edited


def test_comments_survive(params_file):
    apply("smoke", params_file)
    comments = [line for line in params_file.read_text().splitlines() if "#" in line]
    assert len(comments) == sum("#" in line for line in (ROOT / "params.yaml").open())


def test_an_overlay_cannot_add_a_setting(params_file, tmp_path):
    before = params_file.read_text()
    (tmp_path / "laptop.yaml").write_text("seed: 0\n")
    (tmp_path / "smoke.yaml").write_text("retrofit: {stepz: 3}\n")
    with pytest.raises(ValueError, match=r"^retrofit\.stepz: is in the overlay but not in params"):
        scale.apply("smoke", params_file, tmp_path)
    assert params_file.read_text() == before


def test_an_overlay_that_makes_nonsense_changes_nothing(params_file, tmp_path):
    before = params_file.read_text()
    (tmp_path / "laptop.yaml").write_text("seed: 0\n")
    (tmp_path / "smoke.yaml").write_text("retrofit: {steps: 0}\n")
    with pytest.raises(ValueError, match=r"^retrofit\.steps: must be >= 1"):
        scale.apply("smoke", params_file, tmp_path)
    assert params_file.read_text() == before


def test_an_unknown_scale_is_refused(params_file):
    with pytest.raises(ValueError, match=r"^SCALE: must be one of smoke, laptop, books, prose,"):
        apply("huge", params_file)


def test_the_command(tmp_path, monkeypatch, capsys, params_file):
    shutil.copytree(ROOT / "scales", tmp_path / "scales")
    monkeypatch.chdir(tmp_path)
    assert scale.main(["smoke"]) == 0
    assert scale.main(["smoke"]) == 0
    assert scale.main(["huge"]) == 1
    assert scale.main([]) == 2
    out = capsys.readouterr()
    assert "is now at smoke" in out.out
    assert "is already at smoke" in out.out
    assert "SCALE: must be one of" in out.err
