"""The command that shows a text's groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import focus
from experiments.settings import Settings
from experiments.stages import view
from experiments.training import train
from tests.experiments.training import CENTROIDS


@pytest.fixture
def trained(work: Callable[..., Settings]) -> None:
    """A folder in which routers were trained, and others were not."""
    routed = {"base": "routed", "seeds": [0], "regime": {**CENTROIDS, "steps": 2}}
    chosen = work(paper=routed, other={**routed, "seeds": [1]})
    train("paper", 0, chosen)


@pytest.mark.usefixtures("trained")
def test_ones_own_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert view.main(["--text", "abcdef fedcba"]) == 0
    assert "build/groups.html" in capsys.readouterr().out
    assert "your text" in view.OWN.read_text()
    Path("mine.txt").write_text("abc abc")
    assert view.main(["--file", "mine.txt", "--out", "mine.html"]) == 0
    made = Path("mine.html").read_text()
    start = made.index("const passages = ") + len("const passages = ")
    (told,), _ = json.JSONDecoder().raw_decode(made[start:])
    assert told["title"] == "mine.txt"
    assert "".join(told["pieces"]) == "abc abc"
    assert len(told["layers"][0]["keys"][0]) == len(told["pieces"])
    assert "http" not in made


@pytest.mark.usefixtures("trained")
def test_a_page_says_whose_groups_it_shows(work: Callable[..., Settings]) -> None:
    assert view.main(["--text", "abc"]) == 0
    told = " ".join(view.OWN.read_text().split("<select")[0].split())
    assert "<code>paper</code> (tiny-llama, seed 0): 4 groups and one routing a query head" in told
    assert "view --experiment NAME --out PAGE.html</code>" in told
    setup = {"name": "focus", "num_groups": 4, "top_k": 2, "gate": "eq2", "sinks": 0,
             "balance": "sinkhorn", "routers": "paper", "window": 128,
             "probe": focus.FocusConfig().probe}  # fmt: skip
    cell = work(theirs={"base": "routed", "method": setup}).cell("theirs")
    assert "the paper's setup, with 4 groups and one routing a layer." in view.described(cell, 0)


@pytest.mark.usefixtures("trained")
def test_what_cannot_be_shown_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--text", ""], "is empty"),
        (["--text", "a", "--experiment", "none"], "no such experiment"),
        (["--text", "a", "--experiment", "adapted"], "has no groups"),
        (["--text", "a", "--experiment", "other", "--seed", "1"], "train"),
        (["--file", "nowhere.txt"], "give a text file"),
    ):
        assert view.main(arguments) == 1
        assert message in capsys.readouterr().err


def test_a_text_cannot_end_the_script() -> None:
    assert view.page([{"pieces": ["</script>"]}], "").count("</script>") == 1


def test_the_passages_are_not_empty() -> None:
    passages = view.wanted(None, None)
    assert passages
    assert all(len(text.split()) > 100 for text in passages.values())
