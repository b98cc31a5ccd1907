"""Texts to calibrate on: a batch of them, and padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from focus.named import state_of
from tests.models import tiny, token_ids

CONFIG = focus.FocusConfig(num_groups=6, top_k=2, window=16, sinks=2, probe="multi_probe",
                           routers="query_head")  # fmt: skip
IDS = token_ids(3, 640)


def calibrated(texts: list[Tensor]) -> PreTrainedModel:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    focus.find_heavy_hitters(model, texts, 0.05)
    focus.allocate_groups(model, texts)
    return model


def test_texts_of_a_batch_count_one_by_one() -> None:
    batch, alone = (state_of(calibrated(each).focus_state.routers)
                    for each in ([IDS], list(IDS.split(1))))  # fmt: skip
    for name, tensor in batch.items():
        torch.testing.assert_close(tensor, alone[name], msg=name)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("token", "count"), [(7, 2), (9, 64)])  # known padding, and any other
def test_padding_is_refused(side: str, token: int, count: int) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), IDS.clone()
    model.config.pad_token_id = 7
    ids[1, :count] = token
    given = ids if side == "left" else ids.flip(1)
    for calibrate in (focus.find_heavy_hitters, focus.allocate_groups):
        with pytest.raises(ValueError, match=r"^texts: one begins or ends with padding"):
            calibrate(model, [given])
    assert model.focus_state.config == CONFIG


def test_a_text_may_end_with_what_pads_others() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), IDS[:1].clone()
    model.config.pad_token_id = 7
    ids[0, -1] = ids[0, 300:310] = 7
    ids[0, :63] = 9
    focus.find_heavy_hitters(model, [ids])


def test_heavy_hitters_that_come_late_are_told() -> None:
    model = calibrated([IDS])
    with pytest.warns(UserWarning, match=r"call focus\.allocate_groups afterwards"):
        focus.find_heavy_hitters(model, [IDS], 0.05)
    assert not model.focus_state.config.allocated
