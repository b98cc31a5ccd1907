"""Stage decode at its smallest."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from experiments import settings
from experiments.record import Run
from experiments.settings import Decode, DecodeRouting
from experiments.stages import decode

ROUTINGS = (
    DecodeRouting(groups=4),
    DecodeRouting(groups=4, top_k=2, probe="multi_probe", routers="key_head", extra_keys=3),
)


def test_a_step_of_every_method(tmp_path: Path, params: dict) -> None:
    params["decode"] = {
        "contexts": [40, 700], "repetitions": 5, "megabytes": 1, "window": 16,
        "dtypes": ["float32", "bfloat16"],
        "routings": [
            {"groups": 4},
            {"groups": 4, "top_k": 2, "probe": "multi_probe", "extra_keys": 2},
        ],
    }  # fmt: skip
    with Run(tmp_path, {}, [0]) as run:
        decode.decode(run, settings.parse(params))
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 2 * 2 * 5
    ours = table[table["method"] == "ours"]
    assert (ours["error"] < ours["dtype"].map({"float32": 1e-5, "bfloat16": 3e-2})).all()
    assert (table["low_s"] <= table["median_s"]).all()
    assert sorted(ours["extra_keys"].unique()) == [0, 2]
    full = table[(table["method"] == "full") & (table["context"] == 700)]
    assert len(full) == 2
    assert (full["speedup"] == 1).all()
    # Steps of warming up and of the measurement make the cache longer.
    assert full["bytes_read"].min() >= 2 * 3 * 700 * 64 * 2


def test_what_ours_is_said_to_read_is_what_it_needs() -> None:
    plan = Decode(contexts=(3000,), routings=ROUTINGS, window=64, megabytes=1)
    layers = decode.Layers(plan, 3000, torch.float32, torch.device("cpu"), seed=0)
    for routing, share in zip(ROUTINGS, (1 / 4, 1 / 2), strict=True):
        read = decode.ours(layers, routing).step(0)
        keys = read / (2 * 3 * 64 * 4)
        assert share * 2500 < keys < share * 3100 + 64 + 32 + 128 + 4
