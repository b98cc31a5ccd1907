"""Stages exactness and speed at a tiny scale, and what they share with the GPU harness."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest
import torch

from experiments import settings, timing
from experiments.record import Run
from experiments.rivals.paper_k1 import paper_k1_attention
from experiments.stages import exactness, speed
from experiments.synthetic import cosine, draw_membership, draw_tensors, relative_error
from experiments.timing import Shape
from focus import dense_attention
from focus.attention.native import call as native


@pytest.fixture
def chosen(params) -> settings.Settings:
    return settings.parse(params)


def test_exactness_stage(chosen, tmp_path):
    grid = dataclasses.replace(
        chosen.exactness, groups=(1, 4), top_ks=(1, 2), windows=(8,), sinks=(0, 2),
        lengths=(1, 40), kinds=("balanced", "one"),
    )  # fmt: skip
    with Run("exactness", None, dataclasses.replace(chosen, exactness=grid), tmp_path) as run:
        exactness.exactness(run, run.settings)
    table = pd.read_csv(tmp_path / "exactness" / "table.csv")
    ours = table[table["method"] == "ours"]
    assert ours["passed"].all()
    own = {"ours", "stripes"} | ({"native_lists"} if native.library() is not None else set())
    assert table.loc[table["method"].isin(own), "passed"].all()
    merged = {"log_sum_exp", "subtraction", "double_counting"}
    assert set(table["method"]) == own | merged
    exact = table[(table["method"] == "log_sum_exp") & (table["dtype"] == "float32")]
    assert exact["passed"].all()
    wrong = table.query("method == 'double_counting' and K == 4 and length == 40 and window == 8")
    assert not wrong.loc[wrong["groups"] == "balanced", "passed"].any()
    metrics = json.loads((tmp_path / "exactness" / "metrics.json").read_text())
    assert metrics["ours.float32.passed"] == metrics["ours.float32.cases"]


def test_speed_stage(chosen, tmp_path):
    plan = dataclasses.replace(chosen.speed, lengths=(64, 300), groups=(4,), seconds=0.01,
                               quadratic_until=64, both_until=64, heads=4, key_heads=2,
                               head_dim=16, most_repetitions=2)  # fmt: skip
    with Run("speed", None, dataclasses.replace(chosen, speed=plan), tmp_path) as run:
        speed.speed(run, run.settings)
    table = pd.read_csv(tmp_path / "speed" / "table.csv")
    assert set(table["method"]) == {"full", "window", "paper_k1", "ours", "stripes"}
    assert (table["bound"] * table["density"]).round(6).eq(1).all()
    assert table.loc[table["method"] == "full", "speedup"].eq(1).all()
    assert set(table.loc[table["direction"] == "both", "length"]) == {64}
    if native.library() is None:
        return
    parts = pd.read_csv(tmp_path / "speed" / "parts.csv")
    assert (parts["seconds"] >= 0).all()
    assert {"lists", "packing", "groups"} < set(parts["part"])


def test_crossing_is_where_all_longer_ones_are_faster():
    own = pd.DataFrame({"length": [256, 1024, 4096], "speedup": [1.2, 0.9, 2.0]})
    assert speed.crossing(own).length == 4096
    own["speedup"] = [1.2, 1.1, 2.0]
    assert speed.crossing(own).length == 256
    own["speedup"] = [1.2, 1.1, 0.5]
    assert speed.crossing(own).length is None


@pytest.mark.parametrize("tokens", [1, 100, 256])
def test_the_papers_decomposition_is_exact(tokens):
    generator = torch.Generator().manual_seed(0)
    tensors = draw_tensors(1, 4, 2, tokens, 16, torch.float32, generator)
    membership = draw_membership((1, tokens, 5), 1, generator, "unbalanced")
    found = paper_k1_attention(*tensors, membership[0].int().argmax(-1), 32)
    torch.testing.assert_close(found, dense_attention(*tensors, membership, window=32),
                               rtol=1e-4, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("window", [1, 32, 200])
def test_the_window_alone(window):
    tensors = draw_tensors(2, 4, 2, 100, 16, torch.float32, torch.Generator().manual_seed(0))
    distance = torch.arange(100)[:, None] - torch.arange(100)
    mask = (distance >= 0) & (distance < window)
    exact = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, enable_gqa=True
    )
    shape = Shape(100, 4, 2, 16, window, torch.float32, torch.device("cpu"))
    found = timing.window_alone(shape)(*tensors)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_multi_probe_keys_are_in_their_querys_first_group():
    shape = Shape(50, 2, 1, 8, 4, torch.float32, torch.device("cpu"))
    routed = timing.route(shape, 8, 3, "multi_probe", 0)
    assert routed.key_membership is not None
    assert routed.membership.sum(-1).eq(3).all()
    assert routed.key_membership.sum(-1).eq(1).all()
    assert (routed.membership & routed.key_membership).any(-1).all()


def test_errors_of_zero_and_equal_tensors():
    zero, one = torch.zeros(3), torch.ones(3)
    assert relative_error(one, one) == 0
    assert relative_error(one * 1e-12, zero) < 1e-10
    assert cosine(one, one) == pytest.approx(1)
    assert cosine(zero, zero) == 1
    with pytest.raises(ValueError, match="kind"):
        draw_membership((1, 4, 2), 1, torch.Generator(), "strange")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("exactness.groups", [], "exactness.groups: must name"),
        ("exactness.windows", [0], "exactness.windows: must be >= 1"),
        ("exactness.key_heads", 3, "exactness.key_heads: 3 does not divide"),
        ("exactness.kinds", ["odd"], "exactness.kinds[0]: must be one of"),
        ("speed.lengths", [64, 64], "speed.lengths: must name"),
        ("speed.window", 0, "speed.window: must be >= 1"),
        ("speed.top_ks", [1, 5], "speed.top_ks: 5 is above groups = 4"),
        ("speed.seconds", 0, "speed.seconds: must be > 0"),
        ("speed.probes", ["none"], "speed.probes[0]: must be one of"),
        ("speed.typo", 1, "speed.typo: unknown"),
    ],
)
def test_nonsense_settings_are_refused(params, field, value, message):
    block, name = field.split(".")
    params[block][name] = value
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    assert str(caught.value).startswith(message)
