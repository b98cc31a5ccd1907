from __future__ import annotations

from pathlib import Path

import yaml

from experiments.stages import fetch
from tests.experiments.sources.archive_makers import below
from tests.experiments.texts.library import fill, small


def test_the_stage_fetches_what_it_is_given_and_fails_with_the_cure(
    tmp_path, monkeypatch, capsys, params
):
    (tmp_path / "scales").mkdir()
    fill(tmp_path / "own/mine", range(1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    Path("params.yaml").write_text(yaml.safe_dump(small(params, mine={"source": "mine"})))
    assert fetch.main(["mine", "tiny-llama"]) == 0
    wanted = [
        "sources/mine/book00.txt", "sources/mine/source.json", "sources/tiny-llama/source.json",
    ]  # fmt: skip
    assert below(tmp_path / "data") == wanted
    capsys.readouterr()
    assert fetch.main([]) == 0
    assert "openai-community/gpt2: GPT-2 124M" in capsys.readouterr().out
    assert fetch.main(["bible"]) == 1
    assert "fetch: bible: no such source" in capsys.readouterr().err
    assert fetch.main(["gutenberg"]) == 1
    assert "the folder gutenberg/ of the folder that FOCUS_DATA" in capsys.readouterr().err
    assert below(tmp_path / "data") == wanted
