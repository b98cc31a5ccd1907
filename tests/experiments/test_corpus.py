from __future__ import annotations

import gzip
import json
import random

import pytest

from experiments import data, settings, texts
from experiments.stages import corpus
from experiments.texts import Text

WORDS = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("a", "e", "i", "o", "u", "an", "en")]


def prose(seed: int, words: int = 400) -> str:
    """A text that shares no run of eight words with that of another seed."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def as_texts(**documents: str) -> list[Text]:
    return [Text(title, f"{title}.txt", text) for title, text in documents.items()]


def titles(found: list[Text]) -> list[str]:
    return [text.title for text in found]


GUTENBERG = """The Project Gutenberg EBook of Emma
Produced by somebody
*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***

Emma Woodhouse, handsome.

*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***
licence
"""


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (GUTENBERG, "Emma Woodhouse, handsome."),
        ("a\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04*END*\nb", "b"),
        ("b\n\nEnd of the Project Gutenberg EBook of B\nx", "b"),
        ("a\n\n\n\n\n\nb", "a\n\n\nb"),
        ("  nothing to cut  ", "nothing to cut"),
    ],
)
def test_cleaning_leaves_the_book_alone(raw, wanted):
    assert texts.clean(raw) == wanted


def test_decoding_takes_both_encodings_and_all_line_ends():
    assert texts.decode("\ufeffé\r\nb\rc".encode()) == "é\nb\nc"
    assert texts.decode("é".encode("latin-1")) == "é"


def test_different_books_stay_in_their_order():
    found = as_texts(a=prose(1), b=prose(2), c=prose(3))
    stay, dropped, overlap = texts.distinct(found, 0.05)
    assert titles(stay) == ["a", "b", "c"]
    assert dropped == []
    assert overlap < 0.01


def test_the_same_book_twice_is_one_book_whatever_case_and_punctuation():
    shouted = prose(1).upper().replace(" ", ", ")
    stay, dropped, _ = texts.distinct(as_texts(a=prose(1), b=prose(2), c=shouted), 0.05)
    assert titles(stay) == ["a", "b"]
    assert [(d.title, d.reason) for d in dropped] == [("c", "the same book as a")]


def test_an_excerpt_is_the_book_it_is_from():
    stay, dropped, _ = texts.distinct(as_texts(short=prose(1)[:600], long=prose(1)), 0.05)
    assert titles(stay) == ["long"]
    assert dropped[0].reason == "the same book as long"


def test_complete_works_are_left_out_and_their_parts_stay():
    works = as_texts(works=f"{prose(1)} {prose(2)} {prose(3)}", a=prose(1), b=prose(2), c=prose(3))
    stay, dropped, overlap = texts.distinct(works, 0.05)
    assert titles(stay) == ["a", "b", "c"]
    assert [(d.title, d.reason) for d in dropped] == [("works", "a collection of other documents")]
    assert overlap < 0.01


def test_two_editions_of_one_part_do_not_make_a_collection():
    found = as_texts(long=f"{prose(1)} {prose(2)}", a=prose(1), again=prose(1))
    stay, _, _ = texts.distinct(found, 0.05)
    assert titles(stay) == ["long"]


def test_the_overlap_that_is_counted_is_the_true_one():
    found = as_texts(a=prose(1), b=f"{prose(1, 100)} {prose(2)}")
    first, second = (texts.shingles(text.text) for text in found)
    ((pair, overlap),) = texts._overlaps([first, second])
    assert pair == (0, 1)
    assert overlap == texts.shared(first, second)
    assert overlap == pytest.approx((100 - 7) / (400 - 7), abs=0.01)


def test_a_text_of_fewer_words_than_a_shingle_has_one():
    assert len(texts.shingles("too short")) == 1


@pytest.fixture
def chosen(params):
    """Small settings over byte tokens."""
    params["model"]["name"] = "tiny-llama"
    params["corpus"].update(source="mine", min_tokens=1000, test_every=3, validation_every=4)
    params["copying"].update(context=700, distances=[400])
    params["recipe"]["search"]["windows_per_document"] = 1
    params["protocol"].update(context=64, stride=64, windows_per_document=2, documents=2)
    params["retrofit"].update(context=64)
    params["leak"].update(documents=2)
    for name in ("search", "protocol", "retrofit"):
        params["recipe"][name].update(context=64)
    return settings.parse(params)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A source folder of 12 books; some of them bad."""
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path))
    folder = tmp_path / "mine"
    folder.mkdir()
    for seed in range(12):
        (folder / f"book{seed:02}.txt").write_text(prose(seed))
    (folder / "book03 again.txt").write_text(prose(3).title())
    (folder / "leaflet.txt").write_text("short")
    return folder


def build(chosen, library, folder):
    return corpus.build(chosen, root=library.parent, folder=folder)


def test_no_book_is_on_two_sides_and_the_manifest_tells_all(chosen, library, tmp_path):
    out = tmp_path / "corpus"
    manifest = build(chosen, library, out)
    assert manifest == json.loads((out / "corpus.json").read_text()) == data.manifest(out)
    sides = {name: data.load_split(name, out) for name in data.SPLITS}
    assert {name: len(books) for name, books in sides.items()} == {
        "train": 6, "validation": 2, "test": 4,
    }  # fmt: skip
    names = [book.title for books in sides.values() for book in books]
    assert len(set(names)) == 12
    assert {item["title"] for item in manifest["left_out"]} == {"book03", "leaflet"} or {
        item["title"] for item in manifest["left_out"]
    } == {"book03 again", "leaflet"}
    for name, books in sides.items():
        part = manifest["splits"][name]
        assert part["tokens"] == sum(len(book.tokens) for book in books)
        for row, book in zip(part["list"], books, strict=True):
            assert (row["title"], row["tokens"]) == (book.title, len(book.tokens))


def test_the_corpus_is_the_same_every_time(chosen, library, tmp_path):
    build(chosen, library, tmp_path / "one")
    build(chosen, library, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_tokens_are_those_of_the_text(chosen, library, tmp_path):
    from experiments.models import byte_tokenizer

    build(chosen, library, tmp_path / "out")
    book = data.load_split("test", tmp_path / "out")[0]
    assert byte_tokenizer().decode(book.tokens) == (library / f"{book.title}.txt").read_text()


def test_a_sources_own_splits_are_kept(chosen, library, tmp_path):
    for path in library.glob("*.txt"):
        path.unlink()
    for seed, split in enumerate(["test", "train", "test", "validation", "train"]):
        (library / split).mkdir(exist_ok=True)
        (library / split / f"{seed}.txt").write_text(prose(seed))
    build(chosen, library, tmp_path / "out")
    found = {n: {b.title for b in data.load_split(n, tmp_path / "out")} for n in data.SPLITS}
    assert found == {"test": {"0", "2"}, "train": {"1", "4"}, "validation": {"3"}}


def test_too_few_test_books_are_refused_with_the_settings_to_change(chosen, library, tmp_path):
    for path in sorted(library.glob("book*.txt"))[:-4]:
        path.unlink()
    with pytest.raises(ValueError, match=r"gives 1 test documents of at least 1000 tokens, but 2"):
        build(chosen, library, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing is missing: run `python -m experiments.stag"):
        texts.read(tmp_path / "nothing", "texts")
    with pytest.raises(ValueError, match="holds no document"):
        texts.read(tmp_path, "texts")


def test_wikitext_is_cut_at_its_headings(tmp_path):
    raw = " = One = \n \n text \n = = Part = = \n more \n = Two = \n \n other \n"
    (tmp_path / "valid.raw.gz").write_bytes(gzip.compress(raw.encode()))
    one, two = texts.read(tmp_path, "wikitext")
    assert (one.title, one.split, two.title) == ("One", "validation", "Two")
    assert "= = Part = =" in one.text
    assert "Two" not in one.text


def test_enwik8_loses_its_markup(tmp_path):
    page = (
        "<page><title>A &amp; B</title><text xml:space=\"preserve\">'''A''' is [[b|the b]] and"
        " [[c]] {{cite|{{x}}}}&lt;ref&gt;note&lt;/ref&gt;\n== Head ==\n[[Image:x.jpg|a [[link]]"
        " there]][http://x.org see]</text></page>"
        "<page><title>R</title><text>#REDIRECT [[A]]</text></page>"
    )
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(page.encode()))
    (found,) = texts.read(tmp_path, "enwik8")
    assert (found.title, found.text) == ("A & B", "A is the b and c \nHead\nsee")
