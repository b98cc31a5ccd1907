"""The page of a text's groups."""

from __future__ import annotations

import json

import pytest

from experiments.view.page import page
from experiments.view.passage import Layer, Passage


def passage(piece: str) -> Passage:
    layer = Layer(3, keys=[[[1, 0], [0, 1]]], confidence=[[0.9, 0.5]])
    return Passage("a text", "tiny", 2, 1, 0, [piece, " b"], [[], []], [layer])


def test_the_page_holds_what_was_found() -> None:
    made = page([passage("a")])
    start = made.index("const passages = ") + len("const passages = ")
    (told,), _ = json.JSONDecoder().raw_decode(made[start:])
    assert told["pieces"] == ["a", " b"]
    assert told["layers"][0]["keys"] == [[[1, 0], [0, 1]]]
    assert "http" not in made


def test_a_text_cannot_end_the_script() -> None:
    assert page([passage("</script>")]).count("</script>") == 1


def test_without_a_passage_there_is_no_page() -> None:
    with pytest.raises(ValueError, match="give a text"):
        page([])
