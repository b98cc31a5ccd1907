"""Table 7: perplexities and pairs kept; audit point 6: each verdict, from crafted result files."""

from __future__ import annotations

import copy

import pytest

from analysis.rules import (
    ARITHMETIC,
    DIRECTION,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Outcome,
    decide,
)
from tests.analysis.result_files import RUN, pretrained, write_topk
from tests.analysis.verdicts import CLAIMS, changed, identity, verdict


@pytest.mark.parametrize(
    ("delta", "sinks", "expected"),
    [
        (1.2, 0.05, DIRECTION),  # one that has sinks shows that the few steps were enough
        (1.2, 0.90, INCONCLUSIVE),
        (0.02, 0.01, NOT_REPRODUCED),
        (0.11, 0.05, INCONCLUSIVE),
    ],
)
def test_top1_is_far_worse_or_not(results, settings, delta, sinks, expected):
    write_topk(results.root, [pretrained(), changed(1, delta)])
    write_topk(results.root, [pretrained(), changed(1, sinks, sinks=4)], cell="k4_sinks4")
    assert verdict("table7.gpt2-124m.k1.ppl", results, settings) == expected
    assert verdict("table7.mistral-7b.k1.delta", results, settings) == expected


@pytest.mark.parametrize(
    ("delta", "gpt2", "mistral"),
    [
        # Fewer training steps than the paper's refute no gain, and bear no loss out.
        (0.05, INCONCLUSIVE, INCONCLUSIVE),
        (-0.05, DIRECTION, NOT_REPRODUCED),
        (0.0, INCONCLUSIVE, INCONCLUSIVE),
    ],
)
def test_top2_has_the_sign_of_the_paper_or_not(results, settings, delta, gpt2, mistral):
    write_topk(results.root, [pretrained(), changed(2, delta)])
    assert verdict("table7.gpt2-124m.k2.ppl", results, settings) == gpt2
    assert verdict("table7.mistral-7b.k2.ppl", results, settings) == mistral


def test_a_gain_that_as_many_steps_do_not_show_is_not_reproduced(results, settings):
    run = copy.deepcopy(RUN)
    run["settings"]["retrofit"]["steps"] = 4000
    write_topk(results.root, [pretrained(), changed(2, 0.05)], run=run)
    assert verdict("table7.gpt2-124m.k2.ppl", results, settings) == NOT_REPRODUCED
    assert verdict("table7.mistral-7b.k2.ppl", results, settings) == DIRECTION


def test_a_change_is_in_perplexity_points_with_evidence_and_reductions(results, settings):
    write_topk(results.root, [pretrained(), changed(2, 0.05)])
    outcome = decide(CLAIMS["table7.mistral-7b.k2.delta"], results, settings)
    assert outcome.ours == pytest.approx(0.05 * 38.0)
    assert (outcome.n, outcome.evidence) == (8, "results/topk/k4_sinks0/table.csv")
    assert "shakespeare instead of PG-19" in outcome.why
    assert "60 training steps instead of 4000" in outcome.why
    assert "seed 0" in outcome.scale


def test_variants_with_sinks_or_causal_balance_do_not_stand_for_the_paper(results, settings):
    other = [changed(1, 1.2, sinks=4), changed(1, 1.2, balance="causal"), changed(1, 1.2, K=8)]
    write_topk(results.root, [pretrained(), *other])
    assert verdict("table7.gpt2-124m.k1.ppl", results, settings) is None


@pytest.mark.parametrize(
    ("kept", "steps", "expected"),
    [
        (0.62, 60, DIRECTION),
        (0.86, 60, INCONCLUSIVE),  # two of four groups at random keep five sixths
        (0.86, 4000, NOT_REPRODUCED),
        (0.95, 60, NOT_REPRODUCED),
    ],
)
def test_pairs_retained(results, settings, kept, steps, expected):
    run = copy.deepcopy(RUN)
    run["settings"]["retrofit"]["steps"] = steps
    rows = [pretrained(), changed(2, 0.05, density=0.9, distant_density=kept)]
    write_topk(results.root, rows, run=run)
    assert verdict("table7.gpt2-124m.k2.pairs_retained", results, settings) == expected


@pytest.mark.parametrize(("kept", "expected"), [(0.27, ARITHMETIC), (0.4, NOT_REPRODUCED)])
def test_groups_that_are_equally_full_keep_their_share(results, settings, kept, expected):
    write_topk(results.root, [pretrained(), changed(1, 0.05, density=0.4, distant_density=kept)])
    assert verdict("table7.gpt2-124m.k1.pairs_retained", results, settings) == expected


def test_soft_and_hard_of_eq2_are_apart(results, settings):
    soft = pretrained(
        mode="soft", balance="sinkhorn", gate="eq2", delta=-0.1, delta_low=-0.12, delta_high=-0.08
    )
    write_topk(results.root, [pretrained(), soft, changed(2, 0.05, gate="eq2")])
    assert verdict("audit.6", results, settings) == DIRECTION


def test_soft_and_hard_need_the_gate_of_the_paper(results, settings):
    write_topk(results.root, [pretrained(), changed(2, 0.05)])
    assert verdict("audit.6", results, settings) is None


def in_the_papers_setting(**values):
    run = copy.deepcopy(RUN)
    run["settings"] |= {
        "model": {"name": "openai-community/gpt2"},
        "corpus": {"source": "pg-19"},
        "retrofit": {"steps": 4000},
    } | values
    return run


@pytest.mark.parametrize(("ppl", "expected"), [(41.5, REPRODUCED), (45.0, NOT_REPRODUCED)])
def test_only_the_papers_own_setting_reproduces_plainly(results, settings, ppl, expected):
    rows = [pretrained(gate="eq2"), changed(2, -0.03, ppl=ppl, gate="eq2")]
    write_topk(results.root, rows, run=in_the_papers_setting())
    assert verdict("table7.gpt2-124m.k2.ppl", results, settings) == expected


@pytest.mark.parametrize(
    "reduced",
    [
        {"model": {"name": "tiny-gpt2"}},
        {"corpus": {"source": "shakespeare"}},
        {"retrofit": {"steps": 60}},
        {"protocol": {"context": 512}},
    ],
)
def test_no_reduced_run_reproduces_plainly(results, settings, reduced):
    rows = [pretrained(gate="eq2"), changed(2, -0.03, ppl=41.3, gate="eq2")]
    write_topk(results.root, rows, run=in_the_papers_setting(**reduced))
    for claim in CLAIMS.values():
        outcome = decide(claim, results, settings)
        assert outcome is None or outcome.verdict != REPRODUCED, claim.id


def test_a_run_without_a_record_is_reduced(results, settings):
    write_topk(results.root, [pretrained(), changed(2, -0.05, ppl=41.3, gate="eq2")], run={})
    outcome = decide(CLAIMS["table7.gpt2-124m.k2.ppl"], results, settings)
    assert outcome.verdict == DIRECTION
    assert "no record" in outcome.why


def test_a_rule_cannot_say_reproduced_without_having_checked_the_setting():
    with pytest.raises(ValueError, match="another scale"):
        Outcome(REPRODUCED, "because")


def test_a_missing_column_is_named(results, settings):
    write_topk(results.root, [pretrained()])
    path = results.root / "topk" / "k4_sinks0" / "table.csv"
    path.write_text(path.read_text().replace("density", "dense", 1))
    with pytest.raises(ValueError, match="'density' is missing"):
        decide(CLAIMS["audit.1"], results, settings)


@pytest.mark.parametrize("empty", [{"scale": "smoke"}, {"model": {"name": "tiny-llama"}}])
def test_a_smoke_run_or_random_weights_settle_identities_only(results, settings, empty):
    run = copy.deepcopy(RUN)
    run["settings"] |= empty
    write_topk(results.root, [pretrained(), changed(1, 1.2), *identity()], run=run)
    assert verdict("table7.gpt2-124m.k1.ppl", results, settings) == INCONCLUSIVE
    assert verdict("table7.gpt2-124m.k3.delta", results, settings) == INCONCLUSIVE
    assert verdict("audit.1", results, settings) == ARITHMETIC
