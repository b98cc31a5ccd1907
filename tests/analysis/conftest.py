"""Settings and an empty results folder for the tests of the analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.results import Results
from analysis.settings import LedgerSettings, Tolerances, tolerances


@pytest.fixture
def limits() -> Tolerances:
    return Tolerances(
        identity_logits=0.0,
        far_worse=0.1,
        same_ppl=0.02,
        density_points=5.0,
        cosine=0.99995,
        subtraction_cosine=0.05,
        speedup=0.15,
        leak_share=0.001,
        copied=0.9,
        rounding=0.05,
    )


@pytest.fixture
def settings(limits: Tolerances) -> LedgerSettings:
    return LedgerSettings(scale="laptop", seed=0, tolerances=limits, params={})


@pytest.fixture
def declared(params: dict[str, Any]) -> Tolerances:
    """The tolerances that stand in params.yaml."""
    return tolerances(dict(params["tolerances"]))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)
