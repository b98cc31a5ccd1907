"""Stage exactness at its smallest."""

from __future__ import annotations

import pandas as pd

from experiments import settings
from experiments.record import Run
from experiments.stages import exactness
from focus.attention.native import call as native


def test_every_way_but_double_counting_is_exact(params, tmp_path):
    params["exactness"].update(groups=[1, 4], top_ks=[1, 2], windows=[8], sinks=[0, 2],
                               lengths=[1, 40], kinds=["balanced", "one"])  # fmt: skip
    with Run(tmp_path, {}, [0]) as run:
        exactness.exactness(run, settings.parse(params))
    table = pd.read_csv(tmp_path / "table.csv")
    own = {"ours", "stripes"} | ({"native_lists"} if native.library() is not None else set())
    assert table.loc[table["method"].isin(own), "passed"].all()
    merged = {"log_sum_exp", "subtraction", "double_counting"}
    assert set(table["method"]) == own | merged
    exact = table[(table["method"] == "log_sum_exp") & (table["dtype"] == "float32")]
    assert exact["passed"].all()
    wrong = table.query("method == 'double_counting' and K == 4 and length == 40 and window == 8")
    assert not wrong.loc[wrong["groups"] == "balanced", "passed"].any()
