"""All weights trained with Focus beside full attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import models
from analysis.paper import claims
from analysis.results import Results
from analysis.rows import Missing
from tests.analysis.small_files import write_tuned

OTHERS = ("before", "finetuned", "finetuned_focus")
LONG = ("before_steps", "finetuned_steps", "finetuned_focus_steps")


def test_the_longest_training_speaks_for_a_text(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_tuned(results.root, 0.07)
    write_tuned(results.root, 0.01, names=LONG, steps=4000)
    row = models.of_training(Results(tmp_path), "fine-tuned", "focus", "plays", "soft")
    assert row["cell"] == "finetuned_focus_steps-textsplays"
    assert row["change"] == pytest.approx(0.01, abs=0.002)


def test_the_papers_own_text_and_model_speak_first(tmp_path: Path) -> None:
    write_tuned(Results(tmp_path).root, 0.07)
    assert models.text_of(Results(tmp_path), "pg19") == "plays"
    write_tuned(tmp_path / "laptop", -0.02, texts="pg19", names=LONG, model="gpt2")
    write_tuned(tmp_path / "laptop", -0.04, texts="pg19", names=OTHERS, model="gpt2-xl")
    results = Results(tmp_path)
    assert models.text_of(results, "pg19") == "pg19"
    assert models.text_of(results, "openwebtext") == "essays"
    assert models.text_of(results, "openwebtext", "from scratch") == "articles"
    own = next(claim for claim in claims() if claim.id == "table5.gpt2-124m.ppl_focus_ft")
    row = models.of_training(results, "fine-tuned", "focus", "pg19", "soft", own)
    assert row["change"] == pytest.approx(-0.02, abs=0.002)


def test_a_text_that_was_not_read_is_missing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_tuned(results.root, 0.07)
    with pytest.raises(Missing):
        models.of_training(results, "fine-tuned", "focus", "articles", "soft")
