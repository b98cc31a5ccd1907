"""Stage speed at its smallest."""

from __future__ import annotations

import pandas as pd

from experiments import settings
from experiments.record import Run
from experiments.stages import speed


def test_every_method_stands_beside_full_attention(params, tmp_path):
    params["speed"].update(lengths=[64, 300], groups=[4], seconds=0.01, quadratic_until=64,
                           both_until=64, heads=4, key_heads=2, head_dim=16,
                           most_repetitions=2)  # fmt: skip
    with Run(tmp_path, {}, [0]) as run:
        speed.speed(run, settings.parse(params))
    table = pd.read_csv(tmp_path / "table.csv")
    assert set(table["method"]) == {"full", "window", "paper_k1", "ours", "stripes"}
    assert (table["bound"] * table["density"]).round(6).eq(1).all()
    assert table.loc[table["method"] == "full", "speedup"].eq(1).all()
    assert set(table.loc[table["direction"] == "both", "length"]) == {64}
