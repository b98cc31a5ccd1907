"""Folders to fetch into."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import sources
from experiments.sources import Source
from tests.experiments.sources.archive_makers import below


@pytest.fixture(autouse=True)
def no_own_folder(monkeypatch):
    """The machine's own FOCUS_DATA has no say here."""
    monkeypatch.delenv("FOCUS_DATA", raising=False)


class Places:
    """The folders of a fetch, and what it said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.downloads = folder / "sources", folder / "downloads"
        self.capsys, self.said = capsys, list[str]()

    def fetch(self, source: Source) -> Path:
        try:
            return sources.fetch(source).resolve()
        finally:
            self.said += self.capsys.readouterr().out.splitlines()

    def everything(self) -> list[str]:
        return [name for folder in (self.root, self.downloads) for name in below(folder)]


@pytest.fixture
def places(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return Places(tmp_path / "data", capsys)
