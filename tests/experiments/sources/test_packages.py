"""Taking members out of archives."""

from __future__ import annotations

import pytest

from experiments.sources import Source, SourceError
from experiments.sources.packages import extract
from tests.experiments.sources.archive_makers import below, make_tar, make_zip


@pytest.fixture(params=[(make_zip, "a.whl"), (make_tar, "a.tar.gz")], ids=["zip", "tar"])
def archive(request, tmp_path):
    make, name = request.param
    members = {
        "p/a.txt": b"A",
        "p/b.py": b"",
        "p/deep.txt/c.txt": b"C",
        "../evil": b"",
        "q/a.txt": b"",
    }
    return make(tmp_path / name, members)


def taken(archive, folder, *members, strip=0):
    row = {"role": "corpus", "kind": "package", "what": "x", "licence": "y", "package": "p",
           "version": "1", "file": archive.name, "sha256": "0" * 64}  # fmt: skip
    extract(Source(name="books", members=members, strip=strip, **row), archive, folder)
    return below(folder)


def test_only_named_files_are_taken(archive, tmp_path):
    assert taken(archive, tmp_path / "one", "p/*.txt", strip=1) == ["a.txt"]
    assert (tmp_path / "one/a.txt").read_bytes() == b"A"
    assert taken(archive, tmp_path / "two", "*/a.txt", "p/*/*") == [
        "p/a.txt", "p/deep.txt/c.txt", "q/a.txt",
    ]  # fmt: skip


def test_a_missing_member_is_named(archive, tmp_path):
    with pytest.raises(SourceError, match=rf"books: {archive.name} has no member p/none, r/\*"):
        taken(archive, tmp_path / "one", "p/a.txt", "p/none", "r/*")
