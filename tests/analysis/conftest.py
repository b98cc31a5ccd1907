"""Tolerances and an empty results folder for the tests of the analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.results import Results
from experiments.settings import Tolerances
from experiments.settings.schema import parse


@pytest.fixture
def limits(params: dict[str, Any]) -> Tolerances:
    """The tolerances that stand in params.yaml."""
    return parse(Tolerances, params["tolerances"], "tolerances")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path)
    found.root.mkdir()
    return found
