"""What speaks against a verdict that its own interval would allow."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.answers import FOUR
from analysis.comparisons import quality
from analysis.models import worth
from analysis.results import Results
from analysis.rules import Outcome, Verdict, decide
from analysis.rules.ablations import FAR_LESS, beside
from analysis.rules.counted import least_retained
from analysis.rules.registry import agreed, facts
from experiments.settings import Tolerances
from tests.analysis.answer_files import write_answers
from tests.analysis.group_files import write_cure
from tests.analysis.result_files import (
    PAPER,
    ROUTERS,
    write_lengths,
    write_paper,
    write_pretrained,
)
from tests.analysis.rules.writers import CLAIMS
from tests.analysis.small_files import write_types


def decided(claim: str, results: Results, limits: Tolerances) -> Outcome:
    found = decide(CLAIMS[claim], results, limits)
    assert found is not None
    return found


@pytest.mark.parametrize(("window", "verdict"), [
    (None, Verdict.DIRECTION), (0.2, Verdict.DIRECTION), (0.03, Verdict.INCONCLUSIVE),
    (0.0, Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_a_mask_tells_where_a_window_alone_costs_more_than_the_paper_has(
    results: Results, limits: Tolerances, window: float | None, verdict: Verdict
) -> None:
    write_types(results.root, 0.0, 0.01, models=["small-qwen2"], window=window)
    found = decided("table2.qwen2.5-7b.ppl_focus", results, limits)  # the paper has +5.2%
    assert found.verdict == verdict, found.why
    assert ("not surely more" in found.why) == (verdict == Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("kept", "verdict"), [
    (0.7, Verdict.DIRECTION), (0.84, Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_no_greater_cost_says_nothing_of_a_mask_that_keeps_more(
    results: Results, limits: Tolerances, kept: float, verdict: Verdict
) -> None:
    write_lengths(results.root, 0.01, steps=4000, kept=kept)
    found = decided("long_context.t1024.ppl_topk2", results, limits)
    assert found.verdict == verdict, found.why
    assert ("the paper's 73% at most" in found.why) == (verdict == Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("claim", "tokens", "verdict"), [
    ("table2.mistral-7b.hellaswag", 105, Verdict.ARITHMETIC),
    ("table2.mistral-7b.hellaswag", 120, Verdict.INCONCLUSIVE),
    ("table1.focus.hellaswag", 120, Verdict.ARITHMETIC),
])  # fmt: skip
def test_what_no_mask_reaches_in_our_tokens_it_may_reach_in_another_model_s(
    results: Results, limits: Tolerances, claim: str, tokens: int, verdict: Verdict
) -> None:
    write_answers(results.root, tokens=tokens, method=PAPER | {"window": 128})
    assert decided(claim, results, limits).verdict == verdict


@pytest.mark.parametrize(("early", "verdict"), [
    (0.1, Verdict.DIRECTION), (0.9, Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_a_movement_is_blocked_where_the_shorter_training_says_so_too(
    results: Results, limits: Tolerances, early: float, verdict: Verdict
) -> None:
    for steps, base, drift in ((60, "stable", early), (4000, "steady", 0.1)):
        how: dict[str, Any] = {"base": base, "steps": steps}
        write_cure(results.root, "none", 40.0, drift=1.0, **how)
        write_cure(results.root, "sinkhorn", 13.0, drift=drift, **how)
    found = decided("table8.sinkhorn.drift", results, limits)
    assert found.verdict == verdict, found.why
    assert "after 60 steps" in found.why


def test_a_mean_that_is_far_less_than_the_paper_s_bears_nothing_out() -> None:
    def told(ours: float) -> tuple[Verdict, str]:
        return beside({"ours": ours, "low": -6.0, "high": -0.5}, -6.8, 2.0, 0.5)

    assert told(-2.0) == (Verdict.INCONCLUSIVE, FAR_LESS)
    assert told(-4.0)[0] == Verdict.DIRECTION


def test_routers_that_keep_what_random_ones_do_tell_nothing_of_the_paper_s(
    results: Results, limits: Tolerances
) -> None:
    write_pretrained(results.root)
    write_paper(results.root, {2: 0.1}, regime=ROUTERS | {"steps": 4000},
                rows={"distant_density": 0.84})  # fmt: skip
    found = decided("table7.mistral-7b.k2.pairs_retained", results, limits)
    assert found.verdict == Verdict.INCONCLUSIVE
    assert "random groups" in found.why


def test_ways_to_look_must_agree() -> None:
    holds, fails = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED
    assert agreed([holds, holds]) == holds
    assert agreed([holds, fails]) == Verdict.INCONCLUSIVE


def test_the_scale_tells_the_tokens_of_a_step(results: Results, limits: Tolerances) -> None:
    write_pretrained(results.root)
    write_paper(results.root, {2: 0.1}, regime=ROUTERS | {"context": 256, "batch_size": 4})
    found = decided("table7.mistral-7b.k2.pairs_retained", results, limits)
    assert "24 steps of 1,024 tokens" in str(found.scale)


def test_the_whole_interval_of_a_window_counts(results: Results, limits: Tolerances) -> None:
    write_types(results.root, 0.0, 0.01, models=["small-qwen2"], window=0.08, wobble=0.1)
    row = worth(results, "small-qwen2")
    assert row is not None
    assert row["low"] < 0.052 < row["high"]
    found = decided("table2.qwen2.5-7b.ppl_focus", results, limits)
    assert found.verdict == Verdict.INCONCLUSIVE, found.why


def test_the_scale_names_the_text_of_the_row_alone(results: Results) -> None:
    write_pretrained(results.root)
    write_paper(results.root, {2: 0.1})
    (row,) = quality(results).to_dict("records")
    assert "; essays; " in facts(row | {"texts": "essays"}, results)["scale"]
    assert "; essays and code; " in facts(row | {"texts": ["essays", "code"]}, results)["scale"]


@pytest.mark.parametrize(("missed", "wrong_too", "verdict"), [
    (0, 0, Verdict.REPRODUCED), (8, 8, Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_four_benchmarks_must_agree_after_examples(
    results: Results, limits: Tolerances, missed: int, wrong_too: int, verdict: Verdict
) -> None:
    # What one benchmark loses another gains: level over questions, open over benchmarks.
    for task, wrong in zip(FOUR, (missed, -wrong_too, missed, -wrong_too), strict=True):
        write_answers(results.root, changed=max(wrong, 0), task=task, shots=10, questions=400,
                      gained=max(-wrong, 0), tokens=300, exposure=0.5)  # fmt: skip
    found = decided("ours.many_shot.paper", results, limits)
    assert found.verdict == verdict, found.why


@pytest.mark.parametrize(("model", "verdict"), [
    ("smollm2-135m-instruct", Verdict.DIRECTION), ("small-gpt2", Verdict.INCONCLUSIVE),
])  # fmt: skip
def test_one_small_model_says_nothing_of_stability(
    results: Results, limits: Tolerances, model: str, verdict: Verdict
) -> None:
    write_cure(results.root, "none", 40.0, model=model)
    write_cure(results.root, "sinkhorn", 14.0, model=model, agreement=0.99)
    found = decided("dominance.sinkhorn.stability_full_ft", results, limits)
    assert found.verdict == verdict, found.why


def test_one_group_keeps_more_than_a_quarter_where_groups_are_uneven() -> None:
    assert least_retained(CLAIMS["table7.gpt2-124m.k1.pairs_retained"]) == pytest.approx(28.0)
    assert least_retained(CLAIMS["table7.mistral-7b.k1.pairs_retained"]) == 0
    assert least_retained(CLAIMS["table7.gpt2-124m.k1.ppl"]) == 0
