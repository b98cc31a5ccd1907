from __future__ import annotations

import csv
import json

import pytest

from analysis import claims, rules
from analysis.settings import Tolerances, tolerances
from tests.analysis.result_files import pretrained, row, write_topk


def test_an_empty_folder_gives_not_run_with_concrete_reasons(results, settings):
    rows = claims.build(results, settings)
    assert {entry["verdict"] for entry in rows} == {rules.NOT_RUN}
    found = {entry["id"]: entry for entry in rows}
    assert "openai-community/gpt2" in found["table1.focus.ppl"]["why"]
    assert "GPU" in found["table6.t1048576.speedup_K8"]["why"]
    assert "cluster" in found["from_scratch.mistral-7b.ppl_focus"]["why"]
    for entry in rows:
        assert entry["why"]
        assert entry["ours"] is entry["evidence"] is None


def test_a_stage_that_is_not_built_is_named_as_such(results, settings, monkeypatch):
    monkeypatch.setattr(claims, "stage_exists", lambda stage: False)
    found = {entry["id"]: entry for entry in claims.build(results, settings)}
    assert "`topk` is not built yet" in found["audit.1"]["why"]
    assert found["audit.1"]["command"] is None


def test_the_order_is_stable_and_ids_unique(results, settings):
    one = [entry["id"] for entry in claims.build(results, settings)]
    assert one == [entry["id"] for entry in claims.build(results, settings)]
    assert len(set(one)) == len(one)
    assert one[-11:] == [f"audit.{i}" for i in range(1, 12)]


def test_files_hold_the_same_rows(results, settings):
    write_topk(results.root, [pretrained(), row(top_k=1, delta=1.0, delta_low=0.9, delta_high=1.1)])
    rows = claims.build(results, settings)
    json_path, csv_path, md_path = claims.write(rows, results.root)
    assert json.loads(json_path.read_text()) == rows
    with csv_path.open(newline="") as handle:
        assert [entry["id"] for entry in csv.DictReader(handle)] == [r["id"] for r in rows]
    text = md_path.read_text()
    assert all(f"`{entry['id']}`" in text for entry in rows)
    assert claims.totals(rows)[rules.INCONCLUSIVE] > 0


def broken(entry):
    yield entry | {"verdict": "confirmed"}, "unknown verdict"
    yield entry | {"kind": "other"}, "unknown kind"
    yield entry | {"why": ""}, "reason"
    yield entry | {"ours": 3.0}, "not run, yet"
    yield entry | {"verdict": rules.INCONCLUSIVE}, "needs evidence"
    yield {key: value for key, value in entry.items() if key != "n"}, "fields must be"
    measured = {"evidence": "results/x", "command": "x", "scale": "x", "verdict": rules.DIRECTION}
    yield entry | measured | {"low": 2.0, "high": 1.0}, "upside down"


def test_a_broken_row_is_refused_by_name(results, settings):
    entry = next(e for e in claims.build(results, settings) if e["id"] == "table1.focus.ppl")
    for bad, message in broken(entry):
        with pytest.raises(ValueError, match=f"table1.focus.ppl.*{message}"):
            claims.write([bad], results.root)
    with pytest.raises(ValueError, match="more than once"):
        claims.validate([entry, entry])
    assert not (results.root / "claims.json").exists()


def test_the_declared_tolerances_are_whole(declared):
    assert isinstance(declared, Tolerances)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cosine": None}, "cosine: must be"),
        ({"speedup": -1}, "speedup: must be"),
        ({"other": 1}, "other: unknown"),
    ],
)
def test_nonsense_tolerances_are_named(limits, change, message):
    with pytest.raises(ValueError, match=message):
        tolerances(vars(limits) | change)


def test_a_missing_tolerance_is_named(limits):
    block = dict(vars(limits))
    del block["cosine"]
    with pytest.raises(ValueError, match=r"tolerances\.cosine: missing"):
        tolerances(block)
