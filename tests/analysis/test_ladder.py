"""The ladder: what its rungs show, the law, and the forecast written before a larger run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from analysis import ladder
from analysis.figures import scale
from analysis.results import Results
from analysis.rows import Missing
from experiments.settings import Tolerances
from experiments.sources import catalogue, made
from tests.analysis.result_files import write_paper, write_pretrained
from tests.analysis.small_files import write_ladder

SIZES = list(ladder.RUNGS.values())
COSTS = [0.02, 0.0305, 0.0355, 0.04]


def test_sizes_are_those_of_the_models_and_the_small_gap_is_the_declared_one(
    limits: Tolerances,
) -> None:
    for name, parameters in ladder.RUNGS.items():
        source = catalogue.sources()[name]
        shape = made.config_of(source.architecture, source.width, source.layers)
        model = AutoModelForCausalLM.from_config(shape)
        assert sum(each.numel() for each in model.parameters()) == parameters
    assert limits.same_ppl == ladder.SMALL


def test_a_row_has_the_gap_to_the_same_model(results: Results) -> None:
    write_ladder(results.root, COSTS, 0.3)
    write_pretrained(results.root, block="plays_pretrained")
    frame = ladder.table(results)
    assert len(frame) == 5 * 3  # near tokens alone, and two masks
    own = ladder.of(results, "ladder", "k1.symmetric.sinkhorn")
    assert list(own["change"]) == pytest.approx(COSTS, abs=1e-3)
    assert list(own["parameters"]) == SIZES
    assert (own["low"] < own["change"]).all()
    assert set(frame["place"]) == {"ladder", "next rung"}


def test_the_same_model_elsewhere_stands_beside_it_against_pretrained_alone(
    results: Results,
) -> None:
    write_ladder(results.root, COSTS)
    write_pretrained(results.root)
    write_paper(results.root, {1: 1.2, 2: 0.1})
    other = ladder.of(results, "another window and text")
    assert list(other["mask"]) == ["1 of 4 groups", "2 of 4 groups"]
    assert set(other["window"]) == {128}


def test_density_is_read_off_between_masks(results: Results) -> None:
    write_ladder(results.root, [0.01, 0.04, 0.4], window=0.5)
    found = ladder.needed(results).set_index("parameters")["density"]
    near_only, between, beyond = (found[size] for size in SIZES[:3])
    assert near_only == pytest.approx(0.25 - 0.25 * (0.02 - 0.01) / (0.5 - 0.01), abs=1e-3)
    assert between == pytest.approx(0.85 - 0.6 * (0.02 - 0.004) / (0.04 - 0.004), abs=1e-3)
    assert beyond == pytest.approx(1 - 0.15 * 0.02 / 0.04, abs=1e-3)


def test_who_reads_near_tokens_alone_needs_no_others() -> None:
    rows = pd.DataFrame({"distant_density": [0.0, 0.3], "change": [0.01, 0.0]})
    assert ladder.share(rows, "change") == 0.0


def test_a_law_goes_through_a_straight_line_and_is_as_sure_as_it_is_straight() -> None:
    straight = [1 + 2 * np.log10(size / 1e6) for size in SIZES]
    law = ladder.fitted(SIZES, straight, 0.95)
    assert law.at(1e9) == pytest.approx((7, 7, 7))
    assert law.slopes == pytest.approx((2, 2))
    bent = ladder.fitted(SIZES, [1.0, 2.5, 2.0, 3.0], 0.95)
    value, low, high = bent.at(1e9)
    assert low < value < high
    assert high - low > bent.at(1e7)[2] - bent.at(1e7)[1]  # wider, the further it looks


def test_intervals_hold_what_a_further_model_shows_as_often_as_they_say() -> None:
    chance, held = np.random.default_rng(0), 0
    line = np.log10(np.array([*SIZES, 1e8]) / 1e6)
    for _ in range(1000):
        seen = 3 + line + chance.normal(scale=0.5, size=5)
        _, low, high = ladder.fitted(SIZES, list(seen[:4]), 0.95).at(1e8)
        held += low <= seen[4] <= high
    assert 0.93 < held / 1000 < 0.97


def test_a_forecast_ends_where_its_values_do() -> None:
    law = ladder.fitted(SIZES, [40.0, 75.0, 94.0, 87.0], 0.95, (0.0, 100.0))
    value, low, high = law.at(1e10)
    assert (value, high) == (100, 100)
    assert 0 <= low < 100


@pytest.mark.parametrize("sizes", [SIZES[:2], [10**6] * 4])
def test_too_few_sizes_make_no_law(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="needs 3 rungs of different size"):
        ladder.fitted(sizes, [1.0] * len(sizes), 0.95)


def test_the_forecast_is_of_the_rungs_alone_and_always_the_same(results: Results) -> None:
    path = results.base / "forecast.json"
    write_ladder(results.root, COSTS)
    before = ladder.write(results, path).read_text()
    write_ladder(results.root, [], 0.9)  # the next rung is read
    assert ladder.write(Results(results.base), path).read_text() == before
    told = json.loads(before)
    assert [each["parameters"] for each in told["fitted_on"]] == SIZES
    (one,) = (each for each in told["gap_percent"] if each["mask"] == "1 of 4 groups")
    ahead = one["forecasts"]
    assert list(ahead) == ["135M", "1B", "7B"]
    assert ahead["135M"]["low"] < ahead["135M"]["value"] < ahead["135M"]["high"]
    assert ahead["135M"]["value"] < ahead["1B"]["value"] < ahead["7B"]["value"]
    (density,) = told["density_needed_percent"]
    assert 0 <= density["forecasts"]["7B"]["low"] <= density["forecasts"]["7B"]["high"] <= 100


def test_without_rungs_the_file_says_nothing_of_larger_models(results: Results) -> None:
    told = json.loads(ladder.write(results, results.base / "forecast.json").read_text())
    assert told["fitted_on"] == told["gap_percent"] == told["density_needed_percent"] == []


def test_the_figure_has_a_panel_a_mask_and_few_lines_in_each(results: Results) -> None:
    with pytest.raises(Missing):
        scale.by_size(results)
    write_ladder(results.root, COSTS, 0.3)
    drawn = scale.by_size(Results(results.base))
    assert drawn is not None
    *panels, spare = drawn.axes
    assert [axis.get_title(loc="left") for axis in panels] == [
        *(ladder.MASKS[budget] for budget in scale.SHOWN), "pairs needed to cost little"
    ]  # fmt: skip
    assert [text.get_text() for text in spare.get_legend().get_texts()] == [
        "small models, trained here", "fit on these alone", "its forecasts of 135M, 1B and 7B",
        "SmolLM2-135M, the same masks",
    ]  # fmt: skip
