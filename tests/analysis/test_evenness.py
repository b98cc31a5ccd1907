"""How uneven groups are, by layer and over steps."""

from __future__ import annotations

import pytest

from analysis import evenness
from analysis.figures.groups import uneven
from analysis.results import Results
from analysis.rows import Missing
from tests.analysis.group_files import write_cure


def test_each_layer_and_the_range_over_layers_at_three_steps(results: Results) -> None:
    assert evenness.table(results).empty
    with pytest.raises(Missing):
        uneven(results)
    write_cure(results.root, "sinkhorn", 13.0, apart=0.1, one_plus_cv2=2.0)
    frame = evenness.table(Results(results.base)).set_index("layer")
    assert list(frame.index) == ["median", "least", "most", 0, 1, 2, 3]
    assert frame.loc[0, "first"] == pytest.approx(1.1 * 0.85)
    assert frame.loc["most", "last"] == pytest.approx(2 * 1.15)
    assert frame.loc["median", "last"] == pytest.approx(2.0)
    assert uneven(Results(results.base)).axes[0].lines[0].get_ydata()[3] == pytest.approx(2.3)
