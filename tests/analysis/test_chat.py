"""How far answers are, against what was gained."""

from __future__ import annotations

import pytest

from analysis import chat
from analysis.rows import Missing
from tests.analysis.answer_files import write_chat


def test_distances_stand_beside_what_was_gained(results):
    write_chat(results.root, 0.3, 0.2)
    frame = chat.table(results).set_index(["experiment", "before"])
    lora, mask = frame.loc[("lora4", 1024)], frame.loc[("answers_paper", 1024)]
    assert lora["divergence"] == pytest.approx(0.3 * 1.15)
    assert lora["low"] < lora["divergence"] < lora["high"]
    assert (lora["questions"], lora["rate"], lora["role"]) == (4, 0.002, "adapted")
    assert lora["gain"] < 0 < mask["gain"]
    assert frame.loc[("answers_paper", 0), "divergence"] == 0


def test_questions_are_paired(results):
    write_chat(results.root, 0.3, 0.2)
    found = chat.apart(results, "lora4", "answers_paper", 1024)
    assert found.value == pytest.approx(0.115)
    assert found.documents == 4
    with pytest.raises(Missing):
        chat.apart(results, "lora4", "lora16", 1024)
