"""Stage masks at its smallest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from experiments import settings
from experiments.record import Run
from experiments.stages import masks
from focus.attention import dense_attention

SMALL = {"length": 300, "heads": 9, "key_heads": 3, "head_dim": 16, "window": 32, "repetitions": 3}


def test_every_mask_stands_beside_full_attention(params: dict[str, Any], tmp_path: Path) -> None:
    params["masks"].update(SMALL)
    with Run(tmp_path, {}, [0]) as run:
        masks.time_masks(run, settings.parse(params))
    table = pd.read_csv(tmp_path / "table.csv")
    assert table["method"].tolist() == ["full"] + ["groups"] * 9 + ["window"] * 3
    assert table.loc[0, "time"] == table.loc[0, "density"] == 1
    assert (table["time_low"] <= table["time"]).all()
    assert (table["time"] <= table["time_high"]).all()
    assert table["density"].iloc[1:].between(0, 1, inclusive="neither").all()


@pytest.mark.parametrize("number", [3, 5])
def test_masks_are_what_the_definition_computes(params: dict[str, Any], number: int) -> None:
    params["masks"].update(SMALL, length=100)
    plan = settings.parse(params).masks
    query, key, value = (torch.randn(1, heads, 100, 16) for heads in (9, 3, 3))
    routing = plan.routings[number]
    assert routing.heavy
    drawn = masks.drawn(plan, routing, torch.Generator().manual_seed(0))
    further = masks.further_keys(plan, 4, 32, torch.Generator().manual_seed(1))
    own = masks.masked(plan, {}, 32, (*drawn, further), torch.device("cpu"))
    wanted = dense_attention(query, key, value, drawn[0], window=32, sinks=plan.sinks,
                             key_membership=drawn[1], extra_keys=further)  # fmt: skip
    torch.testing.assert_close(own.run(query, key, value), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0625, 0.25, 1.0])
def test_a_window_keeps_the_share(share: float) -> None:
    tokens, narrow = 2000, 128
    wide = masks.window_of(share, narrow, tokens)
    beyond = [sum(range(1, tokens - each + 1)) for each in (narrow, wide)]
    assert 1 - beyond[1] / beyond[0] == pytest.approx(share, abs=0.002)
    assert wide <= tokens
