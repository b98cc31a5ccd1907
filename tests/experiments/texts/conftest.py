"""A working folder of its own, with a source of twelve books of which two are bad."""

from __future__ import annotations

import pytest

from experiments import settings
from tests.experiments.texts.library import fill, prose, small


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder: what the stages write is below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    return tmp_path


@pytest.fixture
def library(place):
    """The fetched source `mine`."""
    folder = fill(place / "data/sources/mine", range(12))
    fill(place / "own/mine", range(1))  # a source of that name exists
    (folder / "book03 again.txt").write_text(prose(3).title())
    (folder / "leaflet.txt").write_text("short")
    return folder


@pytest.fixture
def chosen(params):
    """Small settings over byte tokens."""
    mine = {"source": "mine", "test_every": 3, "validation_every": 4}
    return settings.parse(small(params, mine=mine))
