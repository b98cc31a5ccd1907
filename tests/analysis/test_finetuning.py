"""All weights trained with Focus beside full attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import models
from analysis.results import Results
from analysis.rows import Missing
from tests.analysis.small_files import write_tuned

LONG = ("before_steps", "finetuned_steps", "finetuned_focus_steps")


def test_the_longest_training_speaks_for_a_text(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_tuned(results.root, 0.07)
    write_tuned(results.root, 0.01, names=LONG, steps=4000)
    row = models.of_training(Results(tmp_path), "fine-tuned", "focus", "plays", "soft")
    assert row["cell"] == "finetuned_focus_steps-textsplays"
    assert row["change"] == pytest.approx(0.01, abs=0.002)


def test_a_text_that_was_not_read_is_missing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_tuned(results.root, 0.07)
    with pytest.raises(Missing):
        models.of_training(results, "fine-tuned", "focus", "articles", "soft")
