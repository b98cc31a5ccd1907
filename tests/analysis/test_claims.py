from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from analysis import claims, paper, rules
from experiments.settings import Tolerances
from experiments.settings.schema import parse
from tests.analysis.result_files import write_paper, write_pretrained


def test_an_empty_folder_gives_not_run_with_concrete_reasons(results, limits):
    rows = claims.build(results, limits)
    # What the paper's own figures say of each other needs no run.
    assert {entry["verdict"] for entry in rows} == {
        rules.Verdict.NOT_RUN,
        rules.Verdict.CONTRADICTS,
    }
    found = {entry["id"]: entry for entry in rows}
    assert "openai-community/gpt2" in found["table2.gpt2-124m.ppl_focus"]["why"]
    assert "GPU" in found["table6.t1048576.speedup_K8"]["why"]
    assert "cluster" in found["from_scratch.mistral-7b.ppl_focus"]["why"]
    assert found["audit.4"]["why"].endswith("`dvc repro read@answers_paper`")
    assert not any("is not built" in entry["why"] for entry in rows)
    for entry in rows:
        assert entry["why"]
        assert (
            entry["verdict"] != rules.Verdict.NOT_RUN or entry["ours"] is entry["evidence"] is None
        )


def test_what_no_stage_measures_says_so():
    claim = dataclasses.replace(paper.claims()[0], stage="nowhere")
    assert "an experiment of its own" in claims.reason(claim)
    assert claims.command(claim) is None


def test_the_order_is_stable_and_ids_unique(results, limits):
    one = [entry["id"] for entry in claims.build(results, limits)]
    assert one == [entry["id"] for entry in claims.build(results, limits)]
    assert len(set(one)) == len(one)
    assert one[-12:] == [f"audit.{i}" for i in range(1, 13)]


def test_files_hold_the_same_rows(results, limits):
    write_pretrained(results.root)
    write_paper(results.root, {1: 1.0})
    rows = claims.build(results, limits)
    csv_path, json_path, md_path = claims.write(rows, results.base)
    kept = json.loads(json_path.read_text())
    assert kept == rows
    assert "" not in {value for row in kept for value in row.values()}
    assert len(json_path.read_text().splitlines()) == len(rows) + 2
    with csv_path.open(newline="") as handle:
        columns = list(csv.DictReader(handle))
    assert columns == [{name: "" if v is None else str(v) for name, v in row.items()}
                       for row in kept]  # fmt: skip
    text = md_path.read_text()
    assert all(f"`{entry['id']}`" in text for entry in rows)
    assert claims.totals(rows)[rules.Verdict.INCONCLUSIVE] > 0


def test_rows_that_were_not_run_are_one_table_by_reason(results, limits):
    rows = claims.build(results, limits)
    text = claims.markdown(rows)
    assert len(text.splitlines()) < 130
    folded = claims.not_run(rows)
    assert len(folded) < 80
    assert sum(map(len, folded.values())) == claims.totals(rows)[rules.Verdict.NOT_RUN]
    counts = [len(ids) for ids in folded.values()]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cosine": None}, r"tolerances\.cosine: Input should be"),
        ({"speedup": -1}, r"tolerances\.speedup: Input should be"),
        ({"other": 1}, r"tolerances\.other: unknown"),
    ],
)
def test_nonsense_tolerances_are_named(limits, change, message):
    with pytest.raises(ValueError, match=message):
        parse(Tolerances, limits.plain() | change, "tolerances")


def test_a_missing_tolerance_is_named(limits):
    block = limits.plain()
    del block["cosine"]
    with pytest.raises(ValueError, match=r"tolerances\.cosine: Field required"):
        parse(Tolerances, block, "tolerances")


def test_counts_by_table_add_up(results, limits):
    rows = claims.build(results, limits)
    lines = [line.strip("| ").split(" | ") for line in claims.by_source(rows)[2:]]
    names = [line.split(" | ")[0].strip("| ") for line in claims.by_source(rows)[2:]]
    assert names == [*dict.fromkeys(row["source"] for row in rows), "**all**"]
    assert sum(int(count) for count in lines[-1][1:] if count.strip()) == len(rows)
