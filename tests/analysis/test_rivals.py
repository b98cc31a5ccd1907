"""What is compared with what, where weights were trained further."""

from __future__ import annotations

from analysis import rivals
from analysis.results import Results
from tests.analysis.result_files import LORA, ROUTERS, write_adapted, write_masks

WINDOW = {"name": "window", "window": 128}


def test_weights_that_learnt_under_a_mask_meet_weights_that_learnt_as_much(
    results: Results,
) -> None:
    read = {"reading": "rivals"}
    write_adapted(results.root, **read)
    write_adapted(results.root, -0.2, "adapted_again", **read)
    write_masks(results.root, "recipe", {0.125: 0.05}, regime=ROUTERS, **read)
    again = {"regime": LORA, "against": ["adapted_again", "adapted"], **read}
    write_masks(results.root, "masked_lora", {0.125: -0.1}, **again)
    write_masks(results.root, "trained_window", {0.125: -0.1}, method=WINDOW, **again)
    write_masks(results.root, "quest", {0.125: 0.1}, method={"name": "quest"}, **read)
    own = rivals.rows(results).set_index("cell")["against"]
    assert own["trained_window"] == own["masked_lora"] == "adapted_again"
    assert own["quest"] == own["recipe"] == "adapted"
    met = rivals.against_ours(results).set_index("cell")["against"]
    assert (met["trained_window"], met["quest"]) == ("masked_lora", "recipe")
