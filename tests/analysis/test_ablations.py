"""An ablation is a block of params.yaml: what it changed is a row and a point by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analysis import ablations
from analysis.figures.ablations import further
from analysis.paper import claims
from analysis.results import Results
from analysis.rules import Verdict, decide
from analysis.rules.ablations import with_value
from experiments.settings import Settings, Tolerances
from experiments.stages import read
from experiments.training import train
from tests.analysis.group_files import DEFAULT, JOINT, write_ablation, write_groups
from tests.analysis.result_files import ROUTERS
from tests.experiments.conftest import work
from tests.experiments.training import CENTROIDS

__all__ = ["work"]

FOR_ALL = {"steps": 4000, "learning_rate": 0.001}
LONG = JOINT | FOR_ALL
PAPER = {"name": "focus", "num_groups": 4, "top_k": 2, "window": 8, "sinks": 0, "gate": "eq2",
         "balance": "sinkhorn", "routers": "paper"}  # fmt: skip


def test_a_new_block_is_a_row_and_a_panel(
    work: Callable[..., Settings], params: dict[str, Any]
) -> None:
    default: dict[str, Any] = {"base": "plain", "method": PAPER,
                               "regime": {**CENTROIDS, "steps": 2}}  # fmt: skip
    short = {"kind": "perplexity", "texts": ["letters"], "documents": 2, "context": 64}
    params["readings"]["search"] = short
    chosen = work(
        ablate=default,
        mine={"base": "ablate", "sweep": {"gate": ["log"]}, "against": ["ablate"]},
    )
    for block in ("ablate", "mine"):
        train(block, 0, chosen)
        read.read(block, chosen)
    results = Results("results", "laptop")
    frame = ablations.table(results)
    own = frame[(frame["setting"] == "gate") & (frame["value"] == "log")]
    assert own["cell"].tolist() == ["mine-gatelog"]
    assert own["change"].notna().all()
    assert own["hard_change"].notna().all()
    assert own["distant_density"].between(0, 1).all()
    figure = further(results)
    assert "training gate" in [axis.get_title(loc="left") for axis in figure.axes]
    assert figure.get_suptitle() == "intervals over 2 documents, 1 seed a row"


def test_shares_are_compared_over_the_seeds_that_both_have(results: Results) -> None:
    write_ablation(results.root, "ablate", 0.0, 24.0)
    write_ablation(results.root, "one", 0.1, 30.0, against=["ablate"], gate="log")
    write_groups(results.root, "one", 90.0, seed=1, method=DEFAULT | {"gate": "log"},
                 regime=ROUTERS, against=["ablate"])  # fmt: skip
    (row,) = (row for _, row in ablations.table(results).iterrows() if row["cell"] == "one")
    assert row["largest"] == pytest.approx(60.0)
    assert row["points"] == pytest.approx(6.0)


def test_what_differs_in_two_settings_is_no_ablation(results: Results) -> None:
    write_ablation(results.root, "ablate", 0.0, 24.0)
    write_ablation(results.root, "both", 0.1, 24.0, against=["ablate"], gate="log",
                   window=64)  # fmt: skip
    write_ablation(results.root, "apart", 0.1, 24.0, against=["tuned"], gate="log")
    write_ablation(results.root, "one", 0.1, 24.0, against=["ablate"], gate="log")
    frame = ablations.table(results)
    assert set(frame["cell"]) == {"ablate", "one"}


def test_on_text_a_quarter_as_long_a_window_stands_for_one_four_times_as_long(
    results: Results, limits: Tolerances
) -> None:
    write_ablation(results.root, "ablate", 0.0, 24.0)
    write_ablation(results.root, "ablate_other", 0.0, 24.0, against=["ablate"], window=64)
    known: dict[str, Any] = {"regime": ROUTERS | FOR_ALL}
    write_ablation(results.root, "ablate_steps", 0.0, 24.0, window=32, **known)
    write_ablation(results.root, "ablate_steps_other", 0.1, 24.0, against=["ablate_steps"],
                   window=16, **known)  # fmt: skip
    row = with_value(results, "centroids", "window", 64, "change")
    assert (row["cell"], row["default"]) == ("ablate_steps_other", 128)
    assert row["change"] == pytest.approx(0.1, abs=0.01)
    (claim,) = (each for each in claims() if each.id == "table9.window.64.centroid_ppl")
    assert "A window of 16" in decide(claim, results, limits).why


@pytest.mark.parametrize(("shares", "verdict"), [
    ([60.0, 40.0], Verdict.NOT_REPRODUCED), ([60.0, 22.0], Verdict.INCONCLUSIVE),
    ([60.0, 5.0], Verdict.INCONCLUSIVE), ([21.0, 25.0], Verdict.DIRECTION),
])  # fmt: skip
def test_the_default_is_judged_by_every_run_of_all_steps(
    results: Results, limits: Tolerances, shares: list[float], verdict: Verdict
) -> None:
    write_ablation(results.root, "tuned", 0.0, 90.0, regime=JOINT)
    write_ablation(results.root, "tuned_other", 0.0, 90.0, regime=JOINT, against=["tuned"],
                   num_groups=16)  # fmt: skip
    for name, share, rate in zip(("steady", "steady_rate"), shares, (0.001, 0.01), strict=True):
        write_ablation(results.root, name, 0.0, share, regime=LONG | {"learning_rate": rate})
    write_ablation(results.root, "steady_window", 0.0, 99.0, regime=LONG, against=["steady"],
                   window=32)  # fmt: skip
    (claim,) = (each for each in claims() if each.id == "table9.k.8.dominance_full_ft")
    found = decide(claim, results, limits)
    assert found.verdict == verdict, found.why
    assert f"{shares[1]:.0f}% (smollm2-135m-instruct, 0.01)" in found.why


@pytest.mark.parametrize(("claim", "default", "other", "more", "doubt"), [
    ("tau.0.2.dominance_centroid", 15.0, 14.9, {"temperature": 0.2}, "only 2.5 points above"),
    ("tau.0.2.dominance_centroid", 24.0, 23.9, {"temperature": 0.2}, ""),
    ("window.512.dominance_full_ft", 24.0, 50.0, {"window": 512}, ""),
    ("window.512.dominance_full_ft", 24.0, 28.0, {"window": 512}, "within 5 points"),
])  # fmt: skip
def test_one_run_refutes_where_it_could_have_agreed(
    results: Results, limits: Tolerances, claim: str, default: float, other: float,
    more: dict[str, Any], doubt: str,
) -> None:  # fmt: skip
    joint = claim.endswith("full_ft")
    name, regime = ("tuned", LONG) if joint else ("ablate", ROUTERS | FOR_ALL)
    for rate, own in ((0.001, name), (0.01, "faster")):
        how: Any = regime | {"learning_rate": rate}
        write_ablation(results.root, own, 0.0, default, regime=how)
        write_ablation(results.root, f"{own}_other", 0.0, other, regime=how, against=[own], **more)
    (known,) = (each for each in claims() if each.id == f"table9.{claim}")
    found = decide(known, results, limits)
    assert (found.verdict == Verdict.NOT_REPRODUCED) == (not doubt), found.why
    assert doubt in found.why


@pytest.mark.parametrize(("again", "doubt"), [
    ({"learning_rate": 0.01}, ""), ({}, "at one learning rate"),
    ({"learning_rate": 0.01, "largest": 93.0}, "at a rate of 0.01 +69 points"),
])  # fmt: skip
def test_runs_of_the_same_routers_must_agree(
    results: Results, limits: Tolerances, again: dict[str, float], doubt: str
) -> None:
    regime = ROUTERS | FOR_ALL | {"learning_rate": 0.001}
    largest, faster = again.pop("largest", 36.5), regime | again
    write_ablation(results.root, "ablate", 0.0, 24.0, regime=regime)
    write_ablation(results.root, "other", 0.0, 36.5, regime=regime, against=["ablate"],
                   num_groups=4)  # fmt: skip
    write_ablation(results.root, "faster", 0.0, 24.0, regime=faster)
    write_ablation(results.root, "faster_other", 0.0, largest, regime=faster, num_groups=4)
    (claim,) = (each for each in claims() if each.id == "table9.k.4.dominance_centroid")
    found = decide(claim, results, limits)
    assert (found.verdict == Verdict.DIRECTION) == (not doubt), found.why
    assert doubt in found.why


def test_what_is_open_at_one_rate_is_told_of_the_other_too(
    results: Results, limits: Tolerances
) -> None:
    for default, rate, share in (("steady", 0.001, 36.0), ("steady_rate", 0.01, 18.0)):
        how: Any = LONG | {"learning_rate": rate}
        write_ablation(results.root, default, 0.0, 24.0, regime=how)
        write_ablation(results.root, f"{default}_few", 0.0, share, regime=how, against=[default],
                       sinkhorn_iterations=3)  # fmt: skip
    (claim,) = (each for each in claims()
                if each.id == "table9.sinkhorn-iterations.3.dominance_full_ft")  # fmt: skip
    found = decide(claim, results, limits)
    assert found.verdict == Verdict.INCONCLUSIVE
    assert "at a rate of 0.01 -6 points" in found.why


@pytest.mark.parametrize(("model", "verdict"), [
    ("smollm2-135m-instruct", Verdict.NOT_REPRODUCED), ("small-gpt2", Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_what_a_setting_changes_is_asked_at_each_rate_against_the_default_of_that_rate(
    results: Results, limits: Tolerances, model: str, verdict: Verdict
) -> None:
    faster: Any = LONG | {"learning_rate": 0.01}
    write_ablation(results.root, "steady", 0.0, 24.0, regime=LONG, model=model)
    write_ablation(results.root, "other", 0.0, 50.0, regime=LONG, against=["steady"],
                   model=model, window=512)  # fmt: skip
    write_ablation(results.root, "again", 0.0, 56.0, regime=faster, model=model)
    (claim,) = (each for each in claims() if each.id == "table9.window.512.dominance_full_ft")
    found = decide(claim, Results(results.base), limits)
    assert found.verdict == Verdict.INCONCLUSIVE
    assert "at one learning rate" in found.why
    write_ablation(results.root, "other_again", 0.0, 82.0, regime=faster, model=model, window=512)
    found = decide(claim, Results(results.base), limits)
    assert found.verdict == verdict
    assert "at a rate of 0.01 +26 points" in found.why


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "small-gpt2"])
def test_one_small_model_refutes_no_default(
    results: Results, limits: Tolerances, model: str
) -> None:
    write_ablation(results.root, "tuned", 0.0, 90.0, regime=JOINT)
    write_ablation(results.root, "tuned_other", 0.0, 90.0, regime=JOINT, against=["tuned"],
                   num_groups=16)  # fmt: skip
    for name, rate in (("steady", 0.001), ("steady_rate", 0.01)):
        write_ablation(results.root, name, 0.0, 60.0, regime=LONG | {"learning_rate": rate},
                       model=model)  # fmt: skip
    (claim,) = (each for each in claims() if each.id == "table9.k.8.dominance_full_ft")
    found = decide(claim, results, limits)
    assert (found.verdict == Verdict.NOT_REPRODUCED) == (model != "small-gpt2"), found.why
