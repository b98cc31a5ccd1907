"""The read stage: rows of every seed, condition and document; nothing done twice, nothing lost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import focus
from experiments import texts, trained
from experiments.readings.subject import Part, Subject
from experiments.record import read_json
from experiments.settings import Perplexity, Settings
from experiments.stages import read as stage

ROUTED = Path("results/laptop/routed/read")


def rows_of(name: str, block: str = "routed") -> pd.DataFrame:
    return pd.read_csv(f"results/laptop/{block}/read/{name}/rows.csv")


def earlier() -> dict[str, Any]:
    """What the search's record says of parts that other processes made."""
    found: dict[str, Any] = json.loads((ROUTED / "search/run.json").read_text())["notes"]["earlier"]
    return found


def parts_of(name: str) -> list[Path]:
    return sorted((stage.CHECKPOINTS / "laptop/routed" / name).rglob("*.json"))


class TestPerplexity:
    def test_rows_are_what_the_model_gives(self, workspace: Settings) -> None:
        stage.read("routed", workspace, "search")
        table = rows_of("search")
        assert len(table) == 2 * (1 + 2) * 2  # seeds, the gate and two budgets, documents
        assert set(table["condition"]) == {"soft", "hard"}
        built = trained.build(workspace.cell("routed"), 1, workspace)
        (document, windows), _ = texts.reading_windows(
            workspace.readings["search"], "letters", "tiny-llama", workspace
        )
        with torch.no_grad(), focus.mode(built.model, "hard", top_k=2, probe="multi_probe"):
            logits = built.model(windows[:1], use_cache=False).logits
            kept = focus.density(built.model)
        wanted = torch.nn.functional.cross_entropy(logits[0, :-1], windows[0, 1:], reduction="sum")
        own = table[(table["seed"] == 1) & (table["budget"] == "0.5")
                    & (table["document"] == document.title)].iloc[0]  # fmt: skip
        assert own["nll"] == pytest.approx(float(wanted), rel=1e-5)
        assert own["tokens"] == 63
        assert own["density"] == pytest.approx(sum(kept.values()) / len(kept), rel=1e-6)
        assert own["sha"] == document.sha

    def test_a_control_aims_at_what_it_keeps_under_its_budgets_name(
        self, workspace: Settings
    ) -> None:
        stage.read("matched", workspace, "search")
        kept = rows_of("search", "matched").groupby("budget")[["distant_density", "window"]].mean()
        assert kept["distant_density"][0.25] >= 0.6 > kept["distant_density"][0.5] >= 0.5
        assert kept["window"][0.25] > kept["window"][0.5] > 8

    def test_a_rerun_does_nothing_and_a_kill_loses_one_part(
        self, workspace: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        parts = stage.parts

        def counted(kind: Any, subject: Subject, reading: Perplexity) -> list[Part]:
            def noted(name, call):
                done.append(name)
                if len(done) == 3:
                    raise KeyboardInterrupt
                return call()

            made = parts(kind, subject, reading)
            return [(name, lambda n=name, c=call: noted(n, c)) for name, call in made]

        monkeypatch.setattr(stage, "parts", counted)
        with pytest.raises(KeyboardInterrupt):
            stage.read("routed", workspace, "search")
        assert not (ROUTED / "search/run.json").exists()
        stage.read("routed", workspace, "search")
        assert len(done) == 3 + 4  # six parts, and the one that was killed again
        assert earlier() == {"parts": 2}
        part = next((stage.CHECKPOINTS / workspace.scale / "routed/search").rglob("*.json"))
        assert "rows" in read_json(part)
        for damaged in (part.read_text()[:-20], "", "{}"):
            part.write_text(damaged)
            assert "rows" not in (read_json(part) or {})  # and is made again
        rows, read = ROUTED / "search/rows.csv", (ROUTED / "search/rows.csv").read_text()
        rows.write_text(read.replace("hard", "soft"))  # somebody's hand
        stage.read("routed", workspace, "search")
        assert rows.read_text() == read
        assert len(done) == 8
        assert earlier() == {"parts": 5}
        before = (ROUTED / "search/run.json").stat().st_mtime_ns
        stage.read("routed", workspace, "search")
        assert len(done) == 8
        assert (ROUTED / "search/run.json").stat().st_mtime_ns == before

    def test_a_record_has_the_time_of_the_parts_that_others_made(self, workspace: Settings) -> None:
        stage.read("routed", workspace, "search")
        record = ROUTED / "search/run.json"
        assert "earlier" not in json.loads(record.read_text())["notes"]
        for path in parts_of("search"):
            part = json.loads(path.read_text())
            part["took"] |= {"seconds": 100.0, "peak_memory_mb": 1e6}
            path.write_text(json.dumps(part))
        record.unlink()
        stage.read("routed", workspace, "search")  # puts together what is there
        found = json.loads(record.read_text())
        assert 600 <= found["wall_seconds"] < 660
        assert found["peak_memory_mb"] == 1e6
        assert earlier() == {"parts": 6}
        del part["took"]  # as before parts told
        path.write_text(json.dumps(part))
        record.unlink()
        stage.read("routed", workspace, "search")
        assert json.loads(record.read_text())["wall_seconds"] is None
        assert earlier()["untold"].startswith("1 parts do not tell")

    def test_the_record_says_which_documents_were_opened(self, workspace: Settings) -> None:
        stage.read("routed", workspace, "final")
        run = json.loads((ROUTED / "final/run.json").read_text())
        assert run["notes"]["opened"]["side"] == "test"
        assert run["notes"]["opened"]["final"]
        assert set(rows_of("final")["document"]) == {"test 0", "test 1"}
        assert set(rows_of("final")["tokens"]) == {2 * 63}

    def test_missing_weights_name_the_command(self, workspace: Settings) -> None:
        with pytest.raises(ValueError, match=r"stages.train adapted --seed 0"):
            stage.read("adapted", workspace)

    def test_a_reading_that_is_not_asked_for(self, workspace: Settings) -> None:
        with pytest.raises(ValueError, match=r"^experiments.pretrained.readings: 'final'"):
            stage.read("pretrained", workspace, "final")


def test_copying_has_full_new_and_masked_rows(workspace: Settings) -> None:
    stage.read("untrained", workspace, "copying")
    table = rows_of("copying", "untrained")
    assert set(table["condition"]) == {"full", "new", "hard"}
    assert len(table) == 3 * 2 * 2
    assert set(table["tokens"]) == {14}
    assert (table["density"][table["condition"] == "hard"] < 1).all()
    stage.read("pretrained", workspace, "copying")
    assert set(rows_of("copying", "pretrained")["condition"]) == {"full", "new"}


def test_the_causal_balance_leaks_nothing_and_sinkhorn_does(workspace: Settings) -> None:
    stage.read("routed", workspace, "leak")
    table = rows_of("leak").groupby("balance")
    assert table["changed"].max()["causal"] == 0
    assert table["max_logit_change"].max()["causal"] == 0
    assert table["changed"].max()["sinkhorn"] > 0
    assert all(map(math.isfinite, rows_of("leak")["largest_group"]))
