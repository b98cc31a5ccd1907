"""The hub without a connection: its cache on this disk."""

from __future__ import annotations

import pytest

from experiments.sources import Source, SourceError
from tests.experiments.sources.archive_makers import below, changed

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A cache as a machine has it that took the repository before."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--who--what" / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    blob = tmp_path / "hub" / "models--who--what" / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "config.json").symlink_to(blob)
    return snapshot


HUB = Source(name="net", role="model", kind="hub", what="x", licence="y", repo="who/what",
             revision=REVISION, files=("*.json",))  # fmt: skip


def test_a_hub_source_comes_from_the_hubs_own_cache(hub_cache, places):
    target = places.fetch(HUB)
    assert below(target) == ["config.json", "source.json"]
    assert not (target / "config.json").is_symlink()
    assert (target / "config.json").read_text() == "{}"


def test_a_hub_source_that_is_not_there_says_what_to_do(hub_cache, places):
    with pytest.raises(SourceError, match=r"net: who/else is not to be had from the hub .*FOCUS_H"):
        places.fetch(changed(HUB, repo="who/else"))
    assert places.everything() == []


def test_a_hub_that_fails_without_a_word_is_named_too(places, monkeypatch):
    def fail(*_, **__):
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(SourceError, match=r"who/what is not to be had from the hub \(TimeoutErr"):
        places.fetch(HUB)
