"""Parts of speech of tokens, in the categories that the paper sees groups in (Section 5).

textblob's tagger knows words, and a token takes the tag of the word that it is a part of.
"""

from __future__ import annotations

from collections.abc import Sequence

from textblob.en import tag
from transformers import PreTrainedTokenizerBase

# By Penn Treebank tags; what has no letter or digit is punctuation, whatever its tag.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "punctuation": (),
    "determiners": ("DT", "PRP$", "PDT"),
    "prepositions": ("IN", "TO"),
    "connectives": ("CC", "WP", "WP$", "WDT", "WRB"),
    "verbs and pronouns": ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "MD", "PRP"),
    "content nouns": ("NN", "NNS", "NNP", "NNPS"),
    "modifiers": ("JJ", "JJR", "JJS", "RB", "RBR", "RBS", "CD"),
    "other": (),
}
NAMES = tuple(CATEGORIES)
KNOWN = {each: name for name, tags in CATEGORIES.items() for each in tags}


def categories(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The category of every token, one of :data:`NAMES`."""
    pieces = [tokenizer.decode([each]) for each in ids]
    text = "".join(pieces)
    by_character = tagged(text)
    found, start = [], 0
    for piece in pieces:
        first = start + len(piece) - len(piece.lstrip())
        start += len(piece)
        known = by_character[first] if first < start else "other"
        found.append(known if any(c.isalnum() for c in piece) else _mark(piece))
    return found


def tagged(text: str) -> list[str]:
    """The category of the word that each character is a part of."""
    found, place = ["other"] * len(text), 0
    for word, name in tag(text, tokenize=True):
        at = text.find(word, place)
        if at < 0:  # the tagger has changed the word
            continue
        place = at + len(word)
        found[at:place] = [KNOWN.get(name, "other")] * len(word)
    return found


def _mark(piece: str) -> str:
    return "punctuation" if piece.strip() else "other"
