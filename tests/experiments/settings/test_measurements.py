"""Nonsense in the blocks of measurements is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import settings

BAD = [
    ("exactness", "groups", [], "exactness.groups: must name"),
    ("exactness", "windows", [0], "exactness.windows[0]: "),
    ("exactness", "key_heads", 3, "exactness.key_heads: 3 does not divide"),
    ("exactness", "kinds", ["odd"], "exactness.kinds[0]: "),
    ("speed", "lengths", [64, 64], "speed.lengths: must name"),
    ("speed", "window", 0, "speed.window: "),
    ("speed", "top_ks", [1, 5], "speed.top_ks: 5 is above groups = 4"),
    ("speed", "seconds", 0, "speed.seconds: "),
    ("speed", "probes", ["none"], "speed.probes[0]: "),
    ("speed", "typo", 1, "speed.typo: unknown"),
    ("decode", "contexts", [], "decode.contexts: must name"),
    ("decode", "routings", [{"groups": 4, "top_k": 5}], "decode.routings[0].top_k: 5 is above"),
    ("decode", "repetitions", 1, "decode.repetitions: "),
    ("prefill", "texts", "songs", "prefill.texts: 'songs' is unknown"),
    (
        "prefill",
        "experiments",
        ["songs"],
        "prefill.experiments: songs: no such experiment; the nearest are ",
    ),
    (
        "continuation",
        "experiments",
        ["pretrained"],
        "continuation.experiments: pretrained does not train routers of smollm2-135m-instruct",
    ),
    ("prefill", "experiments", ["types_paper"], "prefill.experiments: types_paper: has several"),
    ("continuation", "new_tokens", 0, "continuation.new_tokens: "),
]


@pytest.mark.parametrize(("block", "field", "value", "message"), BAD)
def test_nonsense_is_refused(params: dict[str, Any], block: str, field: str, value: Any,
                             message: str) -> None:  # fmt: skip
    params[block][field] = value
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    assert str(caught.value).startswith(message)
