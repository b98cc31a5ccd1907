from __future__ import annotations

from pathlib import Path

import yaml

from experiments.stages import corpus
from tests.experiments.sources.archive_makers import below
from tests.experiments.texts.library import fill, small


def test_the_stage_writes_one_text_and_fails_with_the_reason(tmp_path, monkeypatch, capsys, params):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    fill(tmp_path / "own/mine", range(1))
    Path("params.yaml").write_text(yaml.safe_dump(small(params, mine={"source": "mine"})))
    assert corpus.main(["mine"]) == 1
    assert "run `python -m experiments.stages.fetch mine` first" in capsys.readouterr().err
    fill(tmp_path / "data/sources/mine", range(5))
    (tmp_path / "data/sources/mine/note.txt").write_text("short")
    assert corpus.main(["mine"]) == 0
    assert below(tmp_path / "data/texts/mine") == [
        "test.jsonl", "texts.json", "train.jsonl", "validation.jsonl",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "corpus: mine: train: 4 documents" in said
    assert "corpus: mine: left out 1 documents that are too short" in said
    assert corpus.main(["poems"]) == 1
    assert "texts.poems: no such text; there are mine" in capsys.readouterr().err
