from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.texts import cleaning

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
    assert cleaning.clean(raw) == wanted


def test_decoding_takes_both_encodings_and_all_line_ends():
    assert cleaning.decode("\ufeffé\r\nb\rc".encode()) == "é\nb\nc"
    assert cleaning.decode("é".encode("latin-1")) == "é"


def test_a_source_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing is missing: run `python -m experiments.stag"):
        cleaning.read(tmp_path / "nothing", "texts")
    with pytest.raises(ValueError, match="holds no document"):
        cleaning.read(tmp_path, "texts")


def test_wikitext_is_cut_at_its_headings(tmp_path):
    raw = " = One = \n \n text \n = = Part = = \n more \n = Two = \n \n other \n"
    (tmp_path / "valid.raw.gz").write_bytes(gzip.compress(raw.encode()))
    one, two = cleaning.read(tmp_path, "wikitext")
    assert (one.title, one.split, two.title) == ("One", "validation", "Two")
    assert "= = Part = =" in one.text
    assert "Two" not in one.text


def test_wikitext_in_shards_of_lines_is_the_same_articles(tmp_path):
    raw = " = One = \n \n text \n = = Part = = \n more \n = Two = \n \n other \n"
    lines = [line + "\n" if line.strip() else "" for line in raw.split("\n")]  # as on the hub
    for number, own in enumerate((lines[:3], lines[3:])):
        path = tmp_path / "raw" / f"validation-0000{number}-of-00002.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": own}), path)
    one, two = cleaning.read(tmp_path, "wikitext")
    assert (one.title, one.split, two.title) == ("One", "validation", "Two")
    assert [line.strip() for line in one.text.split("\n")] == ["= One =", "", "text",
                                                               "= = Part = =", "more"]  # fmt: skip
    assert two.text.endswith("other")


def test_folders_are_sides_and_a_manifest_names_the_books(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "12.txt").write_text("a book")
    (tmp_path / "13.txt").write_text("another")
    (tmp_path / "manifest.json").write_text(json.dumps([{"id": "12", "title": "Emma"}]))
    other, emma = cleaning.read(tmp_path, "texts")
    assert (emma.title, emma.file, emma.split) == ("Emma", "test/12.txt", "test")
    assert (other.title, other.split) == ("13", None)


ESSAYS = (
    "April 2012Work less.If you had to\n\nchoose.May 2013 was late.June 2014  \n  \n_(A talk.)_  \n"
    "  \nSee [what it\nis](http://x.org/a_b.html) and \x97 **this**, \\- or\nMay 2015, which"
    "  \nwas.  \n  \n\nJuly 2016, rev. May 2017  \n  \nThe _second_ one.  \n"
)


def test_essays_are_told_apart_by_their_dates_and_lose_their_markup(tmp_path):
    (tmp_path / "PaulGrahamEssays.json").write_text(json.dumps({"text": ESSAYS}))
    (tmp_path / "source.json").write_text("{}")
    first, second = cleaning.read(tmp_path, "essays")
    assert first.title == "essay 0 of June 2014"
    assert first.text.startswith("(A talk.)\n\nSee what it\nis and — this, - or\nMay 2015, which")
    assert second.title == "essay 1 of July 2016, rev. May 2017"
    assert second.text == "The second one."


def test_code_is_what_is_no_test(tmp_path):
    for name in ("a.py", "b/c.py", "b/tests/d.py", "test_e.py", "b/conftest.py", "latest.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    found = cleaning.read(tmp_path, "code")
    assert [text.title for text in found] == ["a.py", "b/c.py", "latest.py"]
    assert found[0].text == "x = 1"
