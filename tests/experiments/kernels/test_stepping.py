"""Bytes that a decoding step is said to read are those that it needs."""

from __future__ import annotations

import torch

from experiments.kernels import stepping
from experiments.settings import Decode, DecodeRouting

ROUTINGS = (
    DecodeRouting(groups=4),
    DecodeRouting(groups=4, top_k=2, probe="multi_probe", routers="key_head", extra_keys=3),
)


def test_what_ours_reads_is_counted() -> None:
    plan = Decode(contexts=(3000,), routings=ROUTINGS, window=64, megabytes=1)
    layers = stepping.Layers(plan, 3000, torch.float32, torch.device("cpu"), seed=0)
    for routing, share in zip(ROUTINGS, (1 / 4, 1 / 2), strict=True):
        read = stepping.ours(layers, routing).step(0)
        keys = read / (2 * 3 * 64 * 4)
        assert share * 2500 < keys < share * 3100 + 64 + 32 + 128 + 4
