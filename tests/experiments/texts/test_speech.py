"""Parts of speech of tokens."""

from __future__ import annotations

from experiments.texts.speech import NAMES, categories, tagged


class Pieces:
    """A tokenizer whose tokens are given pieces of text."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[each] for each in ids)


def test_a_token_has_the_category_of_its_word() -> None:
    pieces = [
        "The",
        " king",
        " of",
        " Den",
        "mark",
        " and",
        " who",
        " saw",
        " him",
        ",",
        "\n",
        " a",
    ]
    found = categories(Pieces(*pieces), range(len(pieces)))
    assert found == ["determiners", "content nouns", "prepositions", "content nouns",
                     "content nouns", "connectives", "connectives", "verbs and pronouns",
                     "verbs and pronouns", "punctuation", "other", "determiners"]  # fmt: skip


def test_every_character_has_one() -> None:
    text = "To be, or not to be: that is the question; don't\n\n42 <ab>"
    found = tagged(text)
    assert len(found) == len(text)
    assert set(found) <= set(NAMES)
    assert found[text.index("question")] == "content nouns"


def test_nothing_to_tag() -> None:
    assert categories(Pieces("", " ", "\n\n"), range(3)) == ["other"] * 3
