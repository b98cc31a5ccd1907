from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import sources
from experiments.sources import Source, SourceError, files
from tests.experiments.sources.archive_makers import below, changed, make_tar, make_zip

# ---- fetching from the package index: real pip, an index of one folder ----


def make_wheel(folder: Path, name: str = "booklet", content: bytes = b"text") -> Path:
    """A wheel that pip accepts."""
    members = {
        f"{name}/data/a.txt": content,
        f"{name}/code.py": b"raise SystemExit",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        .encode(),
        f"{name}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }  # fmt: skip
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for path, data in members.items()
    )
    members[f"{name}-1.0.dist-info/RECORD"] = record.encode()
    return make_zip(folder / f"{name}-1.0-py3-none-any.whl", members)


BACKEND = b"""
import pathlib
pathlib.Path("%s").write_text("ran")
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / "pamphlet-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: pamphlet\\nVersion: 1.0\\n")
    return info.name
def build_wheel(*arguments, **named):
    raise SystemExit("nobody asked for a wheel")
"""


def make_sdist(folder: Path, witness: Path) -> Path:
    """An sdist whose build backend leaves a witness when it runs."""
    project = b'[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'
    return make_tar(folder / "pamphlet-1.0.tar.gz", {
        "pamphlet-1.0/pyproject.toml": project,
        "pamphlet-1.0/b.py": BACKEND % str(witness).encode(),
        "pamphlet-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: pamphlet\nVersion: 1.0\n",
        "pamphlet-1.0/texts/a.txt": b"text",
    })  # fmt: skip


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that stands for the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def package(archive: Path, **changes) -> Source:
    values = {
        "name": "books", "role": "corpus", "kind": "package", "what": "x", "licence": "y",
        "package": "booklet", "version": "1.0", "file": archive.name,
        "sha256": files.sha256(archive), "members": ("booklet/data/*.txt",), "strip": 2,
        "megabytes": 3,
    }  # fmt: skip
    return Source(**{**values, **changes})


def test_a_wheel_is_fetched_verified_and_unpacked(index, places):
    source = package(make_wheel(index))
    target = places.fetch(source)
    assert below(target) == ["a.txt", "source.json"]
    assert (target / "a.txt").read_bytes() == b"text"
    assert below(places.downloads) == [source.file]
    assert places.said[0] == "fetch: books: downloading 3 MB from the package index (booklet==1.0)"


def test_a_second_fetch_does_nothing_and_needs_no_index(index, places):
    source = package(make_wheel(index))
    before = places.fetch(source).stat().st_mtime_ns
    (index / source.file).unlink()
    assert places.fetch(source).stat().st_mtime_ns == before
    assert places.said[-1] == "fetch: books: is there"
    for path in sorted(places.root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert below(places.fetch(source)) == ["a.txt", "source.json"]  # from the kept download


def test_a_changed_row_is_fetched_again(index, places):
    source = package(make_wheel(index))
    places.fetch(source)
    target = places.fetch(changed(source, strip=1))
    assert below(target) == ["data/a.txt", "source.json"]


def test_an_sdist_is_fetched(index, places, tmp_path):
    archive = make_sdist(index, tmp_path / "witness")
    source = package(archive, package="pamphlet", members=("pamphlet-1.0/texts/*.txt",))
    assert below(places.fetch(source)) == ["a.txt", "source.json"]


def test_another_checksum_is_refused_before_anything_of_it_runs(index, places, tmp_path):
    witness = tmp_path / "witness"
    archive = make_sdist(index, witness)
    source = package(archive, package="pamphlet", members=("x",), sha256="0" * 64)
    with pytest.raises(SourceError, match="DO NOT MATCH THE HASHES"):
        places.fetch(source)
    assert not witness.exists()
    assert places.everything() == []


def test_a_kept_download_that_is_damaged_is_taken_anew(index, places):
    source = package(make_wheel(index))
    places.downloads.mkdir(parents=True)
    (places.downloads / source.file).write_bytes(b"half of it")
    assert below(places.fetch(source)) == ["a.txt", "source.json"]
    assert any("has another checksum" in line for line in places.said)


def test_a_package_that_is_not_to_be_had_says_where_to_put_it(index, places):
    source = package(make_wheel(index))
    (index / source.file).unlink()
    with pytest.raises(SourceError) as caught:
        places.fetch(source)
    for part in ("booklet==1.0", f"put {source.file} (sha256 {source.sha256}) into data/downloads",
                 "No matching distribution"):  # fmt: skip
        assert part in str(caught.value)
    assert places.everything() == []


def test_a_file_put_by_hand_is_used(index, places):
    archive = make_wheel(index)
    source = package(archive)
    places.downloads.mkdir(parents=True)
    archive.rename(places.downloads / archive.name)
    assert below(places.fetch(source)) == ["a.txt", "source.json"]


def test_a_failed_extraction_leaves_nothing_and_keeps_what_was_there(index, places):
    source = package(make_wheel(index))
    places.fetch(source)
    with pytest.raises(SourceError, match=r"books: booklet.*has no member booklet/none"):
        places.fetch(changed(source, members=("booklet/data/*.txt", "booklet/none")))
    assert below(places.root) == ["books/a.txt", "books/source.json"]


def test_a_killed_fetch_leaves_nothing_that_counts_and_the_next_one_cleans_up(index, places):
    source = package(make_wheel(index))
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom experiments.sources import files\n"
        f"root = Path({str(places.root)!r})\nroot.mkdir(parents=True)\n"
        "with files.part_folder(root, 'books') as part:\n"
        "    (part / 'half.txt').write_text('half')\n    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parents[3])  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (places.root / "books").exists()
    assert [Path(name).name for name in below(places.root)] == ["half.txt"]
    places.fetch(source)
    assert below(places.root) == ["books/a.txt", "books/source.json"]


def test_the_part_folder_of_a_living_fetch_is_left_alone(tmp_path):
    living = tmp_path / f"{files.PART}{os.getppid()}-books-x"
    living.mkdir()
    files.remove_leftovers(tmp_path)
    assert living.exists()


# ---- the user's own folder ----


@pytest.fixture
def own(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    (folder / "books" / "train").mkdir(parents=True)
    (folder / "books" / "train" / "a.txt").write_text("mine")
    monkeypatch.setenv("FOCUS_DATA", str(folder))
    return folder


def test_focus_data_overrides_a_source_and_a_change_in_it_is_seen(own, index, places):
    source = package(make_wheel(index))
    assert below(places.fetch(source)) == ["source.json", "train/a.txt"]
    assert not places.downloads.exists()
    places.fetch(source)
    assert places.said[-1] == "fetch: books: is there"
    (own / "books" / "train" / "a.txt").unlink()
    (own / "books" / "train" / "b.txt").write_text("changed")
    assert below(places.fetch(source)) == ["source.json", "train/b.txt"]


def test_without_focus_data_the_declared_source_comes_back(own, index, places, monkeypatch):
    source = package(make_wheel(index))
    places.fetch(source)
    monkeypatch.delenv("FOCUS_DATA")
    assert below(places.fetch(source)) == ["a.txt", "source.json"]


def test_the_users_folder_is_never_written_to(own, places, index):
    (own / "books" / "source.json").write_text("the user's own file")
    time_before = (own / "books").stat().st_mtime_ns
    places.fetch(package(make_wheel(index)))
    assert (own / "books" / "source.json").read_text() == "the user's own file"
    assert (own / "books").stat().st_mtime_ns == time_before


def test_a_folder_of_focus_data_is_a_source_of_its_own(own, places):
    source = sources.find("books", {})
    assert source.kind == "folder"
    assert below(places.fetch(source)) == ["source.json", "train/a.txt"]


def test_a_source_that_only_a_folder_can_give_says_so(places):
    source = Source(name="lexicon", role="corpus", kind="folder", what="words", licence="y")
    cure = r"lexicon: .* the folder lexicon/ of the folder that FOCUS_DATA names \(words\)"
    with pytest.raises(SourceError, match=cure):
        places.fetch(source)


def test_a_model_of_random_weights_needs_no_files(places):
    assert below(places.fetch(sources.find("tiny-llama", {}))) == ["source.json"]


def test_what_only_a_folder_can_give_stays_once_it_was_given(own, places, monkeypatch):
    source = sources.find("books", {})
    target = places.fetch(source)
    monkeypatch.delenv("FOCUS_DATA")
    assert places.fetch(source) == target
    assert places.said[-1] == "fetch: books: is there"
