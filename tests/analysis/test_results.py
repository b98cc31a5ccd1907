from __future__ import annotations

import json

import pandas as pd
import pytest

from analysis import tables
from analysis.comparisons import headlines, quality
from analysis.results import Results
from analysis.rules.registry import facts
from tests.analysis.result_files import (
    RECIPE,
    ROUTERS,
    losses,
    write_adapted,
    write_masks,
    write_paper,
    write_pretrained,
    write_read,
    write_table,
    write_training,
)
from tests.analysis.small_files import write_tuned


def written(results: Results) -> Results:
    write_pretrained(results.root)
    write_adapted(results.root)
    write_masks(results.root, "recipe", {0.125: -0.05}, regime=ROUTERS)
    write_masks(results.root, "window", {0.125: 0.05}, method={"name": "window"})
    return results


def test_what_is_not_there_is_empty(results):
    assert all(frame.empty for frame in results.readings.values())
    for name in ("rows", "training", "speed", "whole"):
        assert getattr(results, name).empty, name
    for stage in ("exactness", "decode"):
        assert results.table(stage).empty, stage
    assert quality(results).empty
    assert results.cells == {}


def test_an_experiment_that_params_no_longer_names_is_left_out(results):
    written(results)
    assert set(results.cells) == {"pretrained", "adapted", "recipe", "window"}
    named = {"window": ("adapted",), "adapted": (), "recipe": ()}
    known = Results(results.base, against=named)
    assert list(known.cells) == list(named)  # in the order of params.yaml
    assert set(quality(known)["cell"]) == {"window"}  # and compared as it says now


def test_a_reading_that_did_not_end_does_not_count(results):
    written(results)
    (results.root / "recipe" / "read" / "final" / "run.json").unlink()
    assert "recipe" not in results.cells
    assert "recipe" not in set(results.rows["cell"])


def test_a_change_is_against_each_experiment_the_adapted_model_first(results):
    written(results)
    write_masks(results.root, "apart", {0.125: -0.05}, regime=ROUTERS, rows={"wobble": 0.01})
    frame = quality(results)
    own = frame[frame["cell"] == "apart"]
    assert list(own["against"]) == ["adapted", "pretrained"]
    assert own["change"].tolist() == pytest.approx([0.95 / 0.9 - 1, -0.05], abs=1e-3)
    assert (own["low"] < own["change"]).all()
    assert (own["change"] < own["high"]).all()
    assert own["documents"].tolist() == [6, 6]
    assert own["ppl"].iloc[0] == pytest.approx(own["base_ppl"].iloc[1] * 0.95, abs=0.01)
    adapted = frame[frame["cell"] == "adapted"].iloc[0]
    assert (adapted["against"], adapted["condition"]) == ("pretrained", "full")


def test_masks_are_compared_with_masks_at_the_same_budget(results):
    written(results)
    write_masks(results.root, "control", {0.125: 0.0, 0.25: 0.0}, against=["recipe"])
    own = quality(results)[lambda f: f["cell"] == "control"]
    assert own["budget"].tolist() == ["0.125"]
    assert own["change"].iloc[0] == pytest.approx(1 / 0.95 - 1, abs=1e-3)


def test_rows_say_where_two_were_read_in_different_number_formats(results):
    write_pretrained(results.root)
    path = write_read(results.root, "recipe", losses("hard", 0.125, 0.1), method=RECIPE,
                      against=["pretrained"])  # fmt: skip
    assert quality(results)["formats"].tolist() == [""]
    record = path.with_name("run.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"dtype": "float32"}))
    again = Results(results.base)
    (row,) = quality(again).to_dict("records")
    assert row["formats"].startswith("float32 against ")
    assert facts(row, again)["scale"].endswith(row["formats"])


def test_only_documents_that_both_read_count_token_for_token(results):
    write_pretrained(results.root)
    rows = losses("hard", 0.125, 0.1)
    rows[0]["sha"] = "0123456789ab"
    write_read(results.root, "recipe", rows, method=RECIPE, against=["pretrained"])
    assert quality(results)["documents"].tolist() == [5]


def test_shas_and_budgets_are_text(results):
    write_read(results.root, "pretrained", losses("full"))
    assert results.rows["sha"].iloc[1] == "000000000001"
    assert set(results.rows["budget"]) == {"own"}


def test_the_headline_is_the_recipe_on_its_main_reading_then_the_cores(results):
    written(results)
    write_masks(results.root, "recipe", {0.125: 0.0}, regime=ROUTERS, reading="kinds",
                texts="plays")  # fmt: skip
    plays = {"reading": "plays", "texts": "plays"}
    write_adapted(results.root, block="plays_adapted", **plays)
    write_masks(results.root, "plays_recipe", {0.125: 0.0}, regime=ROUTERS,
                against=["plays_adapted"], **plays)  # fmt: skip
    first, second = headlines(results)
    assert (first.cell, first.texts, first.against) == ("recipe", "unseen", "adapted")
    assert first.pretrained == "pretrained"
    assert (second.cell, second.reading, second.pretrained) == (
        "plays_recipe",
        "plays",
        None,
    )


def test_roles_follow_from_method_and_regime(results):
    written(results)
    write_paper(results.root, {2: 0.1})
    shuffled = ROUTERS | {"shuffled": True}
    write_masks(results.root, "shuffled", {0.125: 0.1}, regime=shuffled)
    write_masks(results.root, "masked", {0.125: 0.1}, regime={"name": "lora"})
    write_masks(results.root, "trained", {0.125: 0.1}, method={"name": "window"},
                regime={"name": "lora"})  # fmt: skip
    roles = {name: cell.role for name, cell in results.cells.items()}
    assert roles == {
        "pretrained": "pretrained", "adapted": "adapted", "recipe": "ours", "window": "window",
        "paper": "paper", "shuffled": "shuffled", "masked": "masked", "trained": "trained_window",
    }  # fmt: skip


def test_training_is_read_by_seed_and_cell(results):
    write_training(results.root, "recipe", [3.0, 2.5])
    assert results.training[["cell", "seed", "step", "loss"]].to_numpy().tolist() == [
        ["recipe", 0, 1, 3.0], ["recipe", 0, 2, 2.5]
    ]  # fmt: skip
    assert results.cells["recipe"].steps == 24


@pytest.mark.parametrize("steps", [7, 90, 270])
def test_a_course_is_cut_into_equal_stretches_up_to_the_last_step(results, steps):
    write_training(results.root, "recipe", [float(step) for step in range(1, steps + 1)])
    course = tables.training(results)
    assert len(course) == min(20, steps)
    assert course["step"].iloc[-1] == steps
    widths = course["step"].diff().dropna()
    assert widths.max() - widths.min() <= 1
    assert course["loss"].iloc[-1] == pytest.approx(steps, abs=steps / 40 + 0.5)


def test_a_broken_file_is_named(results):
    folder = results.root / "recipe" / "read" / "leak"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"leak.run\.json: not valid JSON"):
        _ = results.cells


def test_a_missing_column_is_named(results):
    write_table(results.root, "speed", {})
    path = results.root / "speed" / "table.csv"
    pd.read_csv(path).drop(columns="density").to_csv(path, index=False)
    with pytest.raises(ValueError, match="'density' is missing"):
        _ = results.speed


def test_a_swept_cell_stands_beside_the_same_point_of_its_base(results: Results) -> None:
    for texts in ("plays", "essays"):
        write_tuned(results.root, 0.01, texts=texts)
    frame = quality(results)
    own = frame[frame["experiment"] == "finetuned_focus"]
    assert set(zip(own["cell"], own["against"], strict=True)) == {
        (f"finetuned_focus-texts{texts}", f"finetuned-texts{texts}")
        for texts in ("plays", "essays")
    }
    against = frame[frame["experiment"] == "finetuned"]["against"]
    assert set(against) == {"before"}  # which is not swept
