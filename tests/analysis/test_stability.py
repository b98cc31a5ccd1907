"""Which trainings say what becomes of groups."""

from __future__ import annotations

import pandas as pd

from analysis import ablations
from analysis.figures.groups import FIRST, OTHERS, dominance
from analysis.paper import claims
from analysis.results import Results
from analysis.rules.ablations import with_value
from analysis.rules.registry import Verdict, decide
from analysis.rules.stability import PLAIN, trained
from experiments.settings import Tolerances
from tests.analysis.group_files import JOINT, write_ablation, write_cure, write_groups
from tests.analysis.result_files import NOTHING, RECIPE

LONG = {**JOINT, "steps": 4000}


def test_a_block_beside_a_default_is_a_row_whatever_its_name(results: Results) -> None:
    write_ablation(results.root, "mine", 0.0, 24.0, against=["stable"], regime=JOINT)
    write_ablation(results.root, "elsewhere", 0.0, 24.0, against=["tuned"], regime=JOINT)
    assert [each.block for each in ablations.watched(results)] == ["mine"]


def test_a_swept_setting_is_no_mitigation(results: Results) -> None:
    write_ablation(results.root, "steady", 0.0, 13.0, regime=LONG)
    write_ablation(results.root, "steady_other", 0.0, 70.0, regime=LONG, against=["steady"],
                   temperature=0.05)  # fmt: skip
    write_ablation(results.root, "balanced", 0.0, 70.0, regime=LONG, against=["steady"],
                   balance="softmax")  # fmt: skip
    assert {each.name for each in ablations.watched(results)} == {"steady", "balanced"}


def test_the_longest_training_is_judged_beside_its_own_softmax(results: Results) -> None:
    write_cure(results.root, "none", 80.0, drift=0.1)
    write_cure(results.root, "none", 20.0, base="steady", steps=4000, drift=0.7)
    own = trained(results, PLAIN, True, "drift")
    assert (own["steps"], round(own["largest"])) == (4000, 20)
    assert round(trained(results, PLAIN, True, "drift", steps=60)["largest"]) == 80


def test_each_training_has_panels_of_its_own(results: Results) -> None:
    for base, steps in (("stable", 60), ("steady", 4000)):
        for mitigation in ("none", "sinkhorn"):
            write_cure(results.root, mitigation, 20.0, base=base, steps=steps)
    ends = [axis.get_lines()[0].get_xdata()[-1] for axis in dominance(results).axes[::2]]
    assert ends == [60, 4000]


def test_lines_that_no_eye_would_keep_apart_are_faint(results: Results) -> None:
    for mitigation in (*FIRST, "softmax_x5", "stop_gradient", "ema", "recluster"):
        write_cure(results.root, mitigation, 20.0)
    figure = dominance(results)
    (faint,) = (sum(line.get_label() == OTHERS for line in axis.get_lines())
                for axis in figure.axes[:1])  # fmt: skip
    assert faint == 4
    assert len(figure.legends[0].get_texts()) == len(FIRST) + 1 <= 7


def test_how_uneven_groups_are_stands_beside_the_largest(results: Results) -> None:
    write_cure(results.root, "none", 80.0, one_plus_cv2=3.0)
    write_groups(results.root, "held_recipe", 16.0, method=RECIPE | {"num_groups": 18},
                 regime=NOTHING)  # fmt: skip
    watched, recipe = ablations.mitigations(results).to_dict("records")
    assert round(watched["one_plus_cv2"], 2) == 3.0
    assert watched["one_plus_cv2_low"] < 3.0 < watched["one_plus_cv2_high"]
    assert (recipe["name"], recipe["groups"]) == (ablations.BALANCED_NAME, 18)
    assert (round(recipe["one_plus_cv2"], 2), round(recipe["largest"])) == (1.1, 16)
    assert pd.isna(recipe["drift"])


def test_groups_are_judged_by_the_longest_training_and_perplexity_is_not(
    results: Results,
) -> None:
    for default, regime, largest in (("tuned", JOINT, 24.0), ("steady", LONG, 13.0)):
        write_ablation(results.root, default, 0.0, largest, regime=regime)
        write_ablation(results.root, f"{default}_other", 0.01, 2 * largest, regime=regime,
                       against=[default], temperature=0.05)  # fmt: skip
    assert set(ablations.table(results)["base"]) == {"tuned", "steady"}
    row = with_value(results, "joint", "tau", 0.05, "largest")
    assert (row["base"], round(row["largest"])) == ("steady", 26)
    assert (
        with_value(results, "joint", "tau", 0.05, "change", base="tuned")["cell"] == "tuned_other"
    )


def test_what_keeps_its_group_is_looked_at_while_the_rate_is_not_zero(results: Results) -> None:
    write_cure(results.root, "none", 80.0, agreement=1.0)
    path = results.root / "stable_softmax" / "train" / "seed0" / "stable_softmax-mitigationnone"
    trace = pd.read_csv(path / "groups.csv")
    middle = trace[trace["step"] == 60].assign(step=45, agreement=0.5)
    pd.concat([trace, middle]).to_csv(path / "groups.csv", index=False)
    assert abs(trained(results, PLAIN, True, "agreement")["agreement"] - 0.75) < 0.01


def test_movements_that_were_counted_anew_are_left_out(results: Results) -> None:
    write_cure(results.root, "recluster", 20.0)
    path = next(results.root.rglob("groups.csv"))
    own = pd.read_csv(path)
    again = own[own["step"] == 1].assign(step=30)
    pd.concat([own, again]).to_csv(path, index=False)
    (row,) = ablations.mitigations(results).to_dict("records")
    assert pd.isna(row["drift"])
    assert row["agreement"] > 0


def test_what_moves_without_the_routers_too_is_not_theirs_to_stop(
    results: Results, limits: Tolerances
) -> None:
    for mitigation in ("none", "sinkhorn", "stop_gradient"):
        write_cure(results.root, mitigation, 20.0)
    for name in ("sinkhorn", "stop-gradient-on-inputs"):
        (claim,) = (each for each in claims() if each.id == f"table8.{name}.representation")
        found = decide(claim, results, limits)
        assert found.verdict == Verdict.INCONCLUSIVE
        assert "the training of the weights" in found.why
