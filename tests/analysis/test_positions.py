"""Costs by position, against full attention at the same positions."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import models
from tests.analysis.result_files import write_positions


def test_stretches_are_paired_with_the_same_positions(results):
    write_positions(results.root, 0.1)
    first, second = (row for _, row in models.positions(results).iterrows())
    assert (first["position"], second["position"]) == (0, 1024)
    assert first["change"] == pytest.approx(0)
    assert second["change"] == pytest.approx(np.expm1(0.1))
    assert second["low"] <= second["change"] <= second["high"]
    assert (second["documents"], second["moved"], second["largest"]) == (4, 10.0, 30.0)
