from __future__ import annotations

import io
import os
import stat
import tarfile

import pytest

from experiments.sources import archives
from experiments.sources.archives import ArchiveError, extract
from tests.experiments.sources.archive_makers import below, make_tar, make_zip, regular


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "outer" / "target"
    folder.mkdir(parents=True)
    return folder


def test_only_named_members_are_taken(tmp_path, target):
    tar = make_tar(tmp_path / "a.tar.gz", regular("p/a.txt", b"A"), regular("p/b.py"),
                   regular("p/deep/c.txt"), regular("../../evil"))  # fmt: skip
    assert [p.name for p in extract(tar, ["p/*.txt"], target, strip=1)] == ["a.txt"]
    assert below(target) == ["a.txt"]
    assert (target / "a.txt").read_bytes() == b"A"
    zipped = make_zip(tmp_path / "a.whl", {"p/z.txt": b"Z", "q/z.txt": b"no"})
    extract(zipped, ["p/*.txt"], target)
    assert below(target) == ["a.txt", "p/z.txt"]


ESCAPES = ["../evil", "p/../../evil", "/evil", "p/./evil", "p//evil", "p\\..\\evil", "C:/evil"]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, target, name):
    pattern = "/".join("*" for _ in name.split("/"))
    for archive in (
        make_tar(tmp_path / "a.tar.gz", regular(name)),
        make_zip(tmp_path / "a.zip", {name: b"x"}),
    ):
        with pytest.raises(ArchiveError, match="would leave the target folder"):
            extract(archive, [pattern], target)
    assert below(tmp_path / "outer") == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_are_refused(tmp_path, target, kind):
    tar = make_tar(tmp_path / "a.tar.gz", ("p/a.txt", "/etc/passwd", kind))
    with pytest.raises(ArchiveError, match="is a link or no regular file"):
        extract(tar, ["p/*"], target)
    assert below(target) == []


def test_a_link_in_a_zip_is_refused(tmp_path, target):
    zipped = make_zip(tmp_path / "a.zip", {"p/a.txt": b"/etc/passwd"}, stat.S_IFLNK | 0o777)
    with pytest.raises(ArchiveError, match="is a link or no regular file"):
        extract(zipped, ["p/*"], target)


def test_a_member_that_comes_twice_is_refused(tmp_path, target):
    tar = make_tar(tmp_path / "a.tar.gz", regular("p/a"), regular("q/a"))
    with pytest.raises(ArchiveError, match="would overwrite another member"):
        extract(tar, ["*/a"], target, strip=1)


def test_a_member_with_nothing_left_after_the_cut_is_refused(tmp_path, target):
    tar = make_tar(tmp_path / "a.tar.gz", regular("p/a"))
    with pytest.raises(ArchiveError, match="no more than 2 folders to cut off"):
        extract(tar, ["p/a"], target, strip=2)


def test_the_unpacked_size_is_bounded(tmp_path, target):
    bomb = make_zip(tmp_path / "a.zip", {"a": bytes(10**6), "b": bytes(10**6)})
    assert bomb.stat().st_size < 10**4
    with pytest.raises(ArchiveError, match="unpacks to more than 1500000 bytes"):
        extract(bomb, ["*"], target, max_bytes=1_500_000)


def test_a_header_that_lies_about_the_size_does_not_help(tmp_path, target):
    class Lying:
        def open(self):
            return io.BytesIO(bytes(100))

    with pytest.raises(ArchiveError, match="unpacks to more than the bound"):
        archives._copy(Lying(), target / "a", 50, tmp_path / "a.zip")


def test_a_missing_member_is_named(tmp_path, target):
    zipped = make_zip(tmp_path / "a.zip", {"a": b"x"})
    with pytest.raises(ArchiveError, match=r"a\.zip: has no member b\.txt"):
        extract(zipped, ["a", "b.txt"], target)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04 broken", b"\x1f\x8b broken"])
def test_what_is_no_archive_is_refused(tmp_path, target, content):
    path = tmp_path / "a.whl"
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=r"a\.whl: "):
        extract(path, ["*"], target)


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
def test_a_cut_off_archive_is_refused(tmp_path, target, keep):
    tar = make_tar(tmp_path / "a.tar.gz", regular("a", os.urandom(10**5)))
    tar.write_bytes(tar.read_bytes()[: int(tar.stat().st_size * keep)])
    with pytest.raises(ArchiveError):
        extract(tar, ["*"], target)
