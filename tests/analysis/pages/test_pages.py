"""What stands between the markers of pages."""

from __future__ import annotations

from functools import partial

import pytest

import focus
from analysis import claims, pages
from analysis.pages import findings, headline, rivals
from analysis.results import Results
from analysis.rules import Verdict
from analysis.words import NONE, NOTHING, or_nothing, pointed
from tests.analysis.answer_files import write_ruler
from tests.analysis.result_files import (
    PAPER,
    PAPER_MASK,
    RECIPE,
    ROUTERS,
    gpu_steps,
    write_adapted,
    write_masks,
    write_pretrained,
    write_table,
)
from tests.analysis.rules.writers import fresh

MINUS = "\N{MINUS SIGN}"
BUDGETS = {0.0625: 0.02, 0.125: 0.0, 0.25: -0.02}


@pytest.fixture
def read(results):
    write_pretrained(results.root)
    write_adapted(results.root)
    for k, (budget, change) in zip((1, 2, 4), BUDGETS.items(), strict=True):
        mask = {"top_k": k, "probe": "symmetric" if k == 1 else "multi_probe"}
        write_masks(results.root, "recipe", {budget: change}, regime=ROUTERS, rows=mask,
                    start="adapted")  # fmt: skip
    for name in ("window", "random", "position"):
        write_masks(results.root, name, BUDGETS, method={"name": name}, start="adapted")
    write_table(results.root, "prefill", *(
        {"experiment": name, "length": length, "speedup": speedup}
        for length, speedup in ((64, 0.9), (16384, 2.0)) for name in ("recipe", "allocated")
    ))  # fmt: skip
    return results


def test_the_recipe_whose_speed_is_timed_is_the_librarys_default():
    config = focus.FocusConfig.recipe()
    known = {"K": config.num_groups, "top_k": config.top_k, "probe": config.probe,
             "ngram": config.ngram}  # fmt: skip
    assert known == headline.RECIPE


def test_the_headline_is_against_the_adapted_model(read):
    text = headline.sentence(read)
    assert text.count("\n") == 0
    assert "On 6 held-out books `FocusConfig.recipe()` changes perplexity by **+11.1% (" in text
    assert "+0.0% (" not in text
    assert "adapted by LoRA to other books" in text


def test_answers_found_are_those_of_the_longest_prompts(results):
    write_ruler(results.root, 0.1, found=0.5)
    write_ruler(results.root, 0.3, found=0.25, block="ruler_window", method={"name": "window"},
                against=["ruler_adapted", "ruler_recipe"])  # fmt: skip
    told, length, found = rivals.answers(results)
    assert (length, found) == (2048, 100)
    assert list(told) == ["ours", "window"]  # the best first
    for role, lost in (("ours", 50), ("window", 75)):
        assert pointed(told[role]).startswith(f"\N{MINUS SIGN}{lost}.0 points")


def test_lengths_that_only_some_were_asked_at_are_left_out(results):
    write_ruler(results.root, 0.1, found=0.5, lengths=(1024, 2048))
    write_ruler(results.root, 0.3, found=0.25, block="ruler_window", method={"name": "window"},
                against=["ruler_adapted"], lengths=(1024,))  # fmt: skip
    assert rivals.answers(results)[1] == 1024


def test_what_a_question_in_full_brings_back(results):
    write_ruler(results.root, 0.1, found=0.5)
    assert or_nothing(lambda: rivals.question(results)) == NOTHING
    write_ruler(results.root, 0.1, found=1.0, block="ruler_recipe_last",
                method=RECIPE | {"dense_last": 128})  # fmt: skip
    lost = f"{MINUS}50.0 points ({MINUS}50.0 to {MINUS}50.0)"
    told = f"| ours (recipe) | 10.0% | {lost} | 10.0% | +0.0 points "
    assert told in rivals.question(Results(results.base))


def test_nothing_asked_is_nothing(results):
    assert rivals.answers(results) == ({}, 0, None)
    assert or_nothing(lambda: rivals.question(results)) == NOTHING
    assert or_nothing(lambda: rivals.beside(results)) == NOTHING


def test_rivals_and_ours_stand_in_one_table(read):
    beside = {"reading": "rivals", "against": ["adapted"]}
    write_adapted(read.root, reading="rivals")
    write_masks(read.root, "recipe", {0.125: 0.0}, regime=ROUTERS, **beside)
    write_masks(read.root, "quest", {0.125: -0.05}, method={"name": "quest"}, **beside)
    write_ruler(read.root, 0.1, found=0.5)
    lines = rivals.beside(Results(read.base)).splitlines()
    assert "100% found" in lines[2]
    assert lines[3].startswith("| Quest | 12.5% | two products per page")
    assert lines[4].startswith("| ours (recipe) | 12.5% |")
    assert lines[4].endswith("points (\N{MINUS SIGN}50.0 to \N{MINUS SIGN}50.0) | 1, 1 |")


@pytest.mark.parametrize("cost", [0.02, 0.07])
def test_sparq_is_called_the_best_as_long_as_it_is(results, cost):
    beside = {"reading": "rivals", "against": ["adapted"]}
    write_adapted(results.root, 0.0, reading="rivals")
    write_masks(results.root, "longer_allocated", {0.125: 0.05}, regime=ROUTERS, **beside)
    write_masks(results.root, "sparq", {0.125: cost}, method={"name": "sparq"}, **beside)
    if cost > 0.05:
        with pytest.raises(ValueError, match="costs no more than sparq"):
            findings.told(Results(results.base), "best")
        return
    best, ours = findings.told(Results(results.base), "best").splitlines()
    assert best.startswith("- **SparQ is best**: +2.0% (")
    assert ours.startswith("- **Ours, calibrated, 3x steps**: +5.0% (")


def test_methods_at_several_budgets_tell_what_they_kept(results):
    assert or_nothing(lambda: rivals.shares(results)) == NOTHING
    beside = {"reading": "rivals", "against": ["adapted"]}
    write_adapted(results.root, reading="rivals")
    write_masks(results.root, "recipe", {0.125: 0.1, 0.25: 0.05}, regime=ROUTERS, **beside)
    write_masks(results.root, "quest", {0.25: 0.2}, method={"name": "quest"}, **beside)
    head, _, *lines = rivals.shares(Results(results.base)).splitlines()
    assert head == "| | 12.5% of the distant pairs | 25% of the distant pairs |"
    quest, ours = (line.split(" | ") for line in lines)
    assert (quest[:2], ours[0]) == (["| Quest", NONE], "| ours (recipe)")
    assert quest[2].endswith(" at 25.0% |")
    assert ours[1].endswith(" at 12.5%")


def test_a_measurement_that_several_rows_repeat_counts_once():
    row = {"verdict": Verdict.DIRECTION, "evidence": "a.csv", "ours": 1.0, "why": "as even"}
    told = "+1.0% (+0.5% to +1.5%) against"
    rows = [row, row, row | {"ours": 2.0}, row | {"why": told}, row | {"why": told, "ours": 3.0}]
    assert pages.measurements(rows, Verdict.DIRECTION) == 3
    assert pages.measurements(rows, Verdict.NOT_REPRODUCED) == 0


def test_what_the_inconclusive_rows_lack_is_counted():
    row = {"verdict": Verdict.INCONCLUSIVE, "evidence": "a.csv", "ours": 1.0}
    short, less = ("small here, too, after far fewer steps",
                   "the same direction, but far less here")  # fmt: skip
    both = f"{less}, after far fewer steps"
    rows = [row | {"why": why} for why in (short, less, less, both, "zero")]
    assert pages.caveats(rows) == (
        "For 2 of the inconclusive our training was too short."
        " Another 2 have the paper's direction, at less than half its size."
    )
    assert not pages.caveats([row | {"why": less, "verdict": Verdict.DIRECTION}])


def test_other_kinds_of_text_stand_in_a_row_each(results):
    assert or_nothing(lambda: rivals.kinds(results)) == NOTHING
    how = {"reading": "kinds", "texts": "plays"}
    write_adapted(results.root, **how)
    write_masks(results.root, "recipe", {0.125: 0.0}, regime=ROUTERS, against=["adapted"], **how)
    write_masks(results.root, "rivals_kinds", {0.125: 0.1}, method={"name": "quest"},
                against=["adapted"], **how)  # fmt: skip
    lines = rivals.kinds(Results(results.base)).splitlines()
    assert lines[0] == "| | ours (recipe) | Quest |"
    assert lines[2].startswith("| plays | +11.1% (")
    assert "| +22.2% (" in lines[2]


def test_sharing_groups_is_told_beside_heavy_hitters_alone(results):
    assert or_nothing(lambda: rivals.sharing(results)) == NOTHING
    for block, reading in (("allocated", "final"), ("long_longer_allocated", "long_8192")):
        base = block.replace("allocated", "heavy" if "long" in block else "heavy_untrained")
        write_masks(results.root, base, {0.125: 0.05}, regime=ROUTERS, reading=reading)
        write_masks(results.root, block, {0.125: 0.0}, regime=ROUTERS, reading=reading)
    text = rivals.sharing(Results(results.base))
    assert text.count(f"| {MINUS}4.8% (") == 2


def test_what_failed_is_told_as_far_as_there_are_files(results):
    assert or_nothing(lambda: findings.told(results, "failed")) == NOTHING
    write_adapted(results.root)
    write_masks(results.root, "paper_books_adapted", {"k2.symmetric.sinkhorn": 0.1}, method=PAPER,
                regime=ROUTERS, start="adapted", against=["adapted"],
                rows=PAPER_MASK | {"top_k": 2, "distant_density": 0.9})  # fmt: skip
    assert or_nothing(lambda: findings.told(Results(results.base), "failed")) == NOTHING
    plays = {"reading": "plays", "texts": "plays"}
    write_pretrained(results.root, "plays_pretrained", **plays)
    for block, budget in (("paper", "sinkhorn"), ("paper_sinks", "causal")):
        write_masks(results.root, block, {f"k2.symmetric.{budget}": 0.1}, method=PAPER,
                    regime=ROUTERS, against=["plays_pretrained"], **plays)  # fmt: skip
    (told,) = findings.told(Results(results.base), "failed").splitlines()
    assert told.startswith("- **The paper's setup.** Two of its four groups cost +")
    assert "Then two groups cost 10.0%" in told


def test_speed_stands_in_the_row_of_the_configuration_that_was_timed(read):
    lines = headline.table(read).splitlines()[2:]
    assert len(lines) == 5
    (timed,) = [line for line in lines if "(results/laptop/prefill/table.csv)" in line]
    assert "x at 16,384](" in timed
    assert "**ours (recipe), 2 of 18 groups**" in timed
    assert "12.5%" in timed
    head, _, short, long = headline.speed(read).splitlines()
    assert head == "| context (tokens) | forward pass, recipe | forward pass, calibrated |"
    assert short.startswith("| 64 | 0.90x (")
    assert long.startswith("| 16,384 | ")
    assert all("/rows.csv)" in line for line in lines)
    told, slowest = headline.spans(read).split(" Slowest: ")
    assert told.startswith("Forward pass: 0.90x at 64, ")
    assert told.endswith("x at 16,384 tokens.")
    least = "forward pass, 64 tokens, 0.90x."
    assert slowest == f"{least} Slowest calibrated: {least}"
    assert " Forward pass: 2026-01-02, a CPU, commit 0000000." in headline.rounds(read)


def test_another_number_format_has_a_table_of_its_own(read):
    write_table(read.root, "prefill", *(
        {"experiment": "recipe", "length": length, "dtype": dtype, "speedup": speed, "amx": True}
        for dtype, speed in (("float32", 1.5), ("bfloat16", 1.25)) for length in (64, 2048)
    ))  # fmt: skip
    results = Results(read.base)
    assert "1.25x" not in headline.speed(results) + headline.spans(results)
    head, _, short, long, _, told = headline.in_bfloat16(results).splitlines()
    assert head == "| context (tokens) | forward pass, recipe |"
    assert "1.25x" in short
    assert long.startswith("| 2,048 | 1.25x")
    assert told == "2026-01-02, a CPU with AMX, commit 0000000."


def test_a_gpus_speed_is_told_at_every_length(results):
    fast, slow = (
        {"speedup": 1.4, "low": 1.3, "high": 1.5},
        {"speedup": 0.5, "low": 0.4, "high": 0.6},
    )
    rows = [{"step": step, "length": length, "recipe": own, "8 groups": own}
            for step in ("prefill", "generation")
            for length, own in ((65536, fast), (1024, slow))]  # fmt: skip
    gpu_steps(results.base, "NVIDIA H100", "", *rows)
    assert headline.on_gpu_shortly(Results(results.base)) == (
        "Forward pass: 0.50x at 1,024, 1.40x at 65,536 tokens. "
        "Generation: 0.50x after 1,024, 1.40x after 65,536 tokens."
    )


def test_what_both_cost_on_other_texts_stands_beside_it(read):
    fresh(0.05, -0.02)(read)
    text = headline.sentence(Results(read.base))
    assert (
        " On 6 documents of other kinds (essays), opened only after everything was fixed: **+"
        in text
    )
    assert ", calibrated **" in text


def test_what_calibration_brings_stands_beside_the_recipe(read):
    assert "alibrated" not in headline.sentence(read)
    assert "opened only after everything was fixed" not in headline.sentence(read)
    write_masks(read.root, "allocated", {0.125: -0.05}, regime=ROUTERS, start="recipe",
                method=RECIPE | {"heavy_hitters": 0.02, "allocated": True})  # fmt: skip
    beside = Results(read.base)
    text = headline.sentence(beside)
    assert " of the distant pairs. Calibrated: **+5.6% (" in text
    lines = headline.table(beside).splitlines()[2:]
    assert len(lines) == 4
    assert "ours (recipe)" in lines[0]
    assert "calibrated, 2 of 18 groups" in lines[1]
    assert "results/laptop/allocated/read/final/rows.csv" in lines[1]


def test_a_cost_is_not_told_against_a_model_that_learnt_more(read):
    """The paper's setup starts from the pretrained model: against the adapted one, what lies
    between is the adaptation, too."""
    write_masks(read.root, "paper_books", {"k2": 0.1}, method=PAPER, regime=ROUTERS,
                rows=PAPER_MASK | {"top_k": 2, "distant_density": 0.9})  # fmt: skip
    (line,) = [line for line in headline.table(Results(read.base)).splitlines() if "paper" in line]
    assert line.split(" | ")[1:4] == ["90.0%", NONE, "+10.0% (10.0 to 10.0)"]


def test_groups_a_query_are_told_alone_and_calibrated(read):
    lines = headline.budgets(read).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| 1", "| 2", "| 4"]
    assert all(line.endswith(f"| {NONE} | {NONE} |") for line in lines)


def test_what_was_not_measured_is_said_so(results):
    for what in (headline.sentence, headline.table):
        assert or_nothing(partial(what, results)) == NOTHING
    text = "<!-- speed -->\n<!-- /speed -->"
    assert NOTHING in pages.rendered(text, results, [])


def test_only_what_is_between_markers_changes(read, limits):
    rows = claims.build(read, limits)
    text = (
        "# A\n<!-- ledger -->\nformer\n<!-- /ledger -->\n"
        "`kept`\n<!-- results -->\n<!-- /results -->\n"
    )
    new = pages.rendered(text, read, rows)
    assert "former" not in new
    papers = sum(row["source"] not in ("ours", "Audit") for row in rows)
    assert new.startswith("# A\n<!-- ledger -->\n|  | the paper's figures |")
    (every,) = (line for line in new.splitlines() if line.startswith("| all |"))
    assert every.startswith(f"| all | {papers} |")
    assert "`kept`" in new
    assert pages.rendered(new, read, rows) == new


@pytest.mark.parametrize("text", ["<!-- other -->\n<!-- /other -->\n", "<!-- ledger -->\nx\n"])
def test_a_marker_that_means_nothing_is_named(read, text):
    with pytest.raises(ValueError, match="marker"):
        pages.rendered(text, read, [])
