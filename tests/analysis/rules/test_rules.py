"""Every rule, from crafted result files, to a verdict in its favour and to the one against it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from analysis import rules
from analysis.results import Results
from analysis.rules import RULES
from tests.analysis.rules.cases import CASES, EVERY
from tests.analysis.rules.writers import (
    ARITHMETIC,
    CLAIMS,
    DIRECTION,
    GPT2,
    GROWING,
    H200,
    INCONCLUSIVE,
    LATE,
    NOT_REPRODUCED,
    REPRODUCED,
    TRAINED,
    ablated,
    answers,
    asked,
    beside_window,
    both,
    counts,
    cures,
    dense,
    family,
    gpu,
    heavy,
    holds,
    leaks,
    left_out,
    lengths,
    linked,
    lora,
    lora_asked,
    paper,
    persisting,
    printed,
    rivals,
    rivals_answers,
    rungs,
    summed,
    table,
    tuned,
    types,
)

SINKHORN: Any = ("sinkhorn", 13.0, {})
SHAKEN: Any = ("recluster", 60.0, {"agreement": 0.5})


def decided(claim: str, results: Results, limits: Any) -> Any:
    return rules.decide(CLAIMS[claim], results, limits)


@pytest.mark.parametrize(("claim", "writer", "expected"), EVERY)
def test_every_rule_can_hold_and_can_fail(results, limits, claim, writer, expected):
    writer(results)
    outcome = decided(claim, results, limits)
    assert outcome is not None
    assert outcome.verdict == expected, outcome.why
    assert outcome.why
    assert outcome.evidence
    assert outcome.command
    if outcome.low is not None:
        assert outcome.low <= outcome.high


def test_no_rule_is_without_a_case_and_each_says_what_would_refute_it():
    assert {each.judge.__name__ for each in RULES} == set(CASES)
    for each in RULES:
        assert len(each.refuted) > 20
    for name, cases in CASES.items():
        for claim, *_ in cases:
            assert {rule.judge.__name__ for rule, _ in rules.registry.matching(claim)} == {name}


@pytest.mark.parametrize(
    ("claim", "writer"),
    [
        ("table7.gpt2-124m.k1.delta", paper({1: 1.2})),  # nothing says that 24 steps were enough
        ("table7.gpt2-124m.k1.delta", paper({1: 0.1}, {"wobble": 0.3})),
        ("ours.headline.adapted.0.125", family(-0.08, wobble=0.2)),
        ("ours.heavy.recipe.0.125", heavy(-0.02, kept=0.2)),  # better, with more pairs
        ("audit.9", family(0.0, control=0.0, wobble=0.1)),
        ("ours.speed.crossover", table("speed", *lengths(0.5))),
        ("table6.t16384.speedup_K8", gpu(H200, {"speedup": 1.0})),
        ("audit.5", leaks(0.0011, 0.0)),
        ("ours.copying.groups", left_out(0.495, 0.5)),
        ("ours.affinity.name", linked(name=0.3, word=0.3)),
        ("ours.rivals", rivals(quest=0.0)),
        ("table1.focus.hellaswag", answers(1, 0.1)),
        ("table10.focus.hellaswag", answers(0, 0.0)),  # a window of more keys than the paper's
        ("ours.answers.recipe", asked(0.5, spared="squad")),  # over tasks it includes zero
        (
            "table7.gpt2-124m.k1.speedup",  # at a million tokens alone
            gpu(
                H200,
                *(
                    {"K": 4, "heads": 12, "method": "ours", "speedup": speed, "length": tokens}
                    for speed, tokens in ((0.2, 1024), (3.8, 2**20))
                ),
            ),
        ),
        ("table9.k.32.centroid_ppl", ablated(0.0, 24.0, wobble=0.1, num_groups=32)),
        ("dominance.softmax-and-balance-loss.dominance_full_ft", cures(("softmax", 13.0, {}))),
        ("table3.lora-r4.hellaswag", lora(0.0, wrong=1)),
        ("table4.lora-r4-lr1e-4.hellaswag", lora(0.2, rate=0.01, wrong=-30)),  # after 24 steps
        ("table10.sparq.ppl", rivals(sparq_plain=-0.04)),  # with more keys than the paper's
        ("table5.gpt2-large-774m.ppl_focus_ft", tuned(0.0, mask=0.1, steps=4000)),
        ("groups.notes.assignment.largest_share", holds(0.9)),  # as before any training
        ("table8.recluster-every-100-steps.outcome", cures(SINKHORN, SHAKEN)),  # uneven
        ("table4.lora-r4-lr1e-4.ppl", lora(-0.1)),  # harm may need more steps
        (
            "table8.balance-weight-x5.outcome",  # of one small model
            cures(
                *(
                    (
                        name,
                        13.0,
                        {"steps": 4000, "base": "steady", "model": "small-gpt2", "alive": 8.0},
                    )
                    for name in ("sinkhorn", "softmax_x5")
                )
            ),
        ),
        ("table8.balance-weight-x5.drift", cures(("softmax_x5", 30.0, {}))),
        ("table8.recluster-every-100-steps.drift", cures(("recluster", 30.0, {"drift": 0.9}))),
        ("table8.sinkhorn.representation", cures(SINKHORN, (*SINKHORN[:2], {"weights": False}))),
        (
            "table8.sinkhorn.outcome",
            cures((*SINKHORN[:2], {"agreement": 0.99})),
        ),  # and no more
        ("table8.stop-gradient-on-inputs.outcome", cures(SINKHORN, ("stop_gradient", 90.0, {}))),
        *(
            (
                claim,
                cures(
                    ("softmax", 84.0, {}),
                    ("sinkhorn", 13.0, {}),
                    ("softmax", 13.0, LATE),
                    ("sinkhorn", 13.0, LATE),
                ),
            )  # once it did
            for claim in (
                "table8.entropy-and-balance-loss.outcome",
                "dominance.softmax-and-balance-loss.dominance_full_ft",
            )
        ),
        ("table9.window.512.centroid_ppl", ablated(0.0, 24.0, window=512)),  # small, but early
        ("groups.g4.top_tokens", holds(0.9, top="of in")),  # as in every group
        ("table9.k.32.centroid_ppl", ablated(-0.1, 24.0, num_groups=32)),  # after 24 steps
        ("groups.g4.purity", holds(0.6)),
        ("groups.notes.full-finetuning.persists", persisting(0.6)),
        ("groups.g4.category", holds(0.9, kmeans=0.95)),  # k-means says more, after few steps
        ("groups.g4.category", holds(0.9, last=0.95)),  # so it does in another layer
        ("groups.g4.category", holds(0.9, kmeans=0.9, regime=TRAINED)),  # as much
        ("groups.g4.purity", holds(0.95, last=0.95, regime=TRAINED)),
        ("groups.g4.top_tokens", holds(0.9, same=True)),  # as those of other ways
        ("groups.g5.top_tokens", holds(0.9)),  # no group of connectives, after few steps
        ("ours.sinkhorn.losses", cures(("sinkhorn", 22.0, LATE), ("softmax", 22.0, LATE))),
        ("ours.ruler.window", beside_window(0.0, kept=0.05)),  # the recipe keeps more pairs
        ("ours.ruler.window", beside_window(1.0, kept=0.15)),  # and here the window does
        ("table1.longformer.lambada", rivals_answers(0, "longformer", 0.0)),  # out of its reach
        ("gsm8k.mistral-7b.focus.accuracy", summed(0, right=0.0)),  # nothing that could be lost
        ("gsm8k.mistral-7b.focus.accuracy", summed(9)),  # after far fewer steps
        ("ours.ladder.grows", rungs((0.02, 0.05, 0.01, 0.03))),
        ("ours.ladder.135m.k1", rungs(GROWING, 0.065, wobble=0.2)),
        ("ours.ladder.135m.k1", rungs((0.02, 0.2, 0.05, 0.1), 0.15)),  # too wide to say anything
    ],
)
def test_what_an_interval_leaves_open_is_inconclusive(results, limits, claim, writer):
    writer(results)
    assert decided(claim, results, limits).verdict == INCONCLUSIVE


@pytest.mark.parametrize("claim", ["table2.qwen2.5-7b.ppl_focus",
                                   "table2.notes.coverage.architectures"])  # fmt: skip
@pytest.mark.parametrize(("window", "verdict"), [(0.2, DIRECTION), (0.001, INCONCLUSIVE)])
def test_a_model_that_reads_near_tokens_alone_proves_nothing(
    results, limits, claim, window, verdict
):
    types(0.0, 0.01, window=window)(results)
    assert decided(claim, results, limits).verdict == verdict


@pytest.mark.parametrize(
    ("model", "verdict"),
    [("mistral-7b", NOT_REPRODUCED), ("llama-2-13b", INCONCLUSIVE), ("qwen2.5-7b", DIRECTION)],
)
def test_a_model_of_all_steps_is_judged_or_casts_doubt(results, limits, model, verdict):
    """It has the attention of the first, costs more than the second may, and not than the third."""
    change = 0.04 if model == "qwen2.5-7b" else 0.1
    both(types(0.0, 0.0, window=0.2), paper({2: change}, regime=TRAINED))(results)
    assert decided(f"table2.{model}.ppl_focus", results, limits).verdict == verdict


@pytest.mark.parametrize(
    ("control", "more", "verdict", "words"),
    [
        (0.05, 0.02, NOT_REPRODUCED, "keep more pairs"),
        (-0.03, -0.02, DIRECTION, "keeps more pairs"),
    ],
)
def test_whoever_keeps_more_pairs_beats_nobody(results, limits, control, more, verdict, words):
    family(0.0, control=control)(results)
    assert decided("audit.9", results, limits).verdict == verdict
    path = results.root / "recipe" / "read" / "final" / "rows.csv"
    frame = pd.read_csv(path, dtype={"sha": str})
    frame.assign(distant_density=frame["distant_density"] + more).to_csv(path, index=False)
    outcome = decided("audit.9", Results(results.base), limits)
    assert (outcome.verdict, words in outcome.why) == (INCONCLUSIVE, True)


def test_nothing_is_plainly_reproduced_in_another_setting(results, limits):
    paper({1: 1.2, 2: -0.02}, **{**GPT2, "texts": "plays", "regime": TRAINED})(results)
    for claim in CLAIMS.values():
        outcome = rules.decide(claim, results, limits)
        assert outcome is None or outcome.verdict != REPRODUCED, claim.id
    assert "plays instead of PG-19" in decided("table7.gpt2-124m.k2.ppl", results, limits).why


def test_another_models_perplexity_is_no_figure_beside_the_papers(results, limits):
    dense(0.0)(results)
    assert decided("table7.gpt2-124m.k3.ppl", results, limits).ours is None
    assert decided("table7.gpt2-124m.k3.pairs_retained", results, limits).ours == 100


def test_facts_tell_where_a_verdict_comes_from(results, limits):
    paper({1: 1.2}, with_sinks=0.02)(results)
    outcome = decided("table7.gpt2-124m.k1.delta", results, limits)
    assert (outcome.n, outcome.evidence) == (6, "results/laptop/paper/read/final/rows.csv")
    assert outcome.command == "dvc repro read@paper"
    expected = "laptop; smollm2-135m-instruct; unseen; T = 2048; 24 steps; seed 0"
    assert outcome.scale == expected
    assert outcome.ours == pytest.approx(120, abs=1)


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_a_smoke_run_or_random_weights_settle_identities_only(tmp_path, limits, scale):
    results = Results(tmp_path, scale)
    model = "smollm2-135m-instruct" if scale == "smoke" else "tiny-llama"
    rows = {"density": 1.0, "distant_density": 1.0, "wobble": 0.0}
    paper({1: 1.2, 3: 0.0}, rows, with_sinks=0.02, model=model)(results)
    assert decided("table7.gpt2-124m.k1.delta", results, limits).verdict == INCONCLUSIVE
    assert decided("audit.1", results, limits).verdict == ARITHMETIC


def test_a_rule_cannot_say_reproduced_without_having_checked_the_setting():
    with pytest.raises(ValueError, match="another scale"):
        rules.Outcome(REPRODUCED, "because")


@pytest.mark.parametrize("more", [400, 50])
def test_of_several_readings_the_one_of_most_questions_counts(results, limits, more):
    """A hundred questions lose 30 points, the others none."""
    both(lora(0.2, wrong=30), lora(0.2, questions=more, reading="again"))(results)
    outcome = decided("table4.lora-r4-lr1e-4.hellaswag", results, limits)
    assert outcome.n == max(more, 100)
    assert ("no answer changed" in outcome.why) == (more > 100)


def test_a_model_near_guessing_can_hardly_fall(results, limits):
    """A loss of half a point, from 25.5% where guessing has 25."""
    lora_asked(300, before=298)(results)
    outcome = decided("table4.lora-r4-lr1e-4.hellaswag", results, limits)
    assert outcome.verdict == INCONCLUSIVE
    assert "has half of -0.4, the same share of what is above guessing here" in outcome.why


def test_guessing_excuses_no_change_that_the_paper_does_not_have(results, limits):
    """Where the paper's loss is small, a large one refutes it, however near to guessing."""
    lora_asked(320, before=298)(results)
    outcome = decided("table4.lora-r4-lr1e-5.hellaswag", results, limits)
    assert outcome.verdict == NOT_REPRODUCED, outcome.why


@pytest.mark.parametrize(("method", "better"), [("longformer", True), ("performer", False)])
def test_a_row_that_trains_nothing_and_reads_better_says_so(results, limits, method, better):
    counts("parameters")(results)
    why = decided(f"table1.{method}.trained_params", results, limits).why
    assert ("lies below pretrained's 42.8" in why) == better


@pytest.mark.parametrize("change", [
    {"model": "smollm2-135m-instruct"}, {"texts": "unseen"}, {"context": 512},
])  # fmt: skip
def test_a_perplexity_of_another_model_text_or_length_is_no_figure_of_the_papers(
    results, limits, change
):
    known = {"cell": "types-modelgpt2", "model": "gpt2", **change}
    printed(42.8, **known)(results)
    assert decided("table2.gpt2-124m.ppl_pretrained", results, limits) is None


def test_a_perplexity_after_fewer_steps_refutes_nothing(results, limits):
    few = {"name": "full", "steps": 1000}
    printed(26.0, "finetuned-textswikitext-103", "gpt2", texts="wikitext-103", regime=few)(results)
    outcome = decided("domains.wikitext-103.ppl_full_attention_ft", results, limits)
    assert outcome.verdict == INCONCLUSIVE
