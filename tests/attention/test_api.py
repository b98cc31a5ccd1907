"""Arguments that are refused, the choice of path, and memory that grows with the length only."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from focus.attention import cost, dense_attention, focus_attention
from focus.attention.checks import validate
from tests.attention.cases import Case, draw

PEAK = """
import resource, sys, torch
from focus.attention import focus_attention
torch.set_num_threads(2)
tokens, top_k, separate, backward = (int(a) for a in sys.argv[1:])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def run(tokens):
    q = torch.randn(1, 2, tokens, 16, requires_grad=bool(backward))
    k, v = torch.randn(2, 1, 1, tokens, 16).unbind()
    def draw(top_k):
        near = torch.randn(1, tokens, 16).topk(top_k, -1).indices
        return torch.zeros(1, tokens, 16, dtype=torch.bool).scatter_(-1, near, True)
    keys = draw(1) if separate else None
    out = focus_attention(q, k, v, draw(top_k), window=32, key_membership=keys, backend="auto")
    if backward:
        out.sum().backward()
run(2048)  # libraries and pools
before = peak()
run(tokens)
print((peak() - before) / 1024)
"""


def peak_mb(*arguments: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, arguments)], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return float(done.stdout)


@pytest.mark.parametrize(("top_k", "separate", "backward"), [(1, 0, 1), (2, 1, 0)])
def test_memory_grows_with_the_length_only(top_k: int, separate: int, backward: int) -> None:
    tokens = 20_000
    used = peak_mb(tokens, top_k, separate, backward)
    # A T x T tensor of one byte an entry would take 381 MB here.
    assert used < 200, f"{used} MB for {tokens} tokens"


def arguments(**changes: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    tensors, options = draw(Case(12))
    return tensors, {**options, **changes}


@pytest.mark.parametrize("backend", ["auto", "dense", "decomposed", "flex"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window"),
        ({"window": 2.5}, "window"),
        ({"sinks": -1}, "sinks"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"membership": torch.zeros(1, 12, 4, dtype=torch.bool)}, "membership"),
        ({"membership": torch.ones(1, 11, 4, dtype=torch.bool)}, "membership"),
        ({"membership": torch.ones(1, 3, 12, 4, dtype=torch.bool)}, "membership"),
        ({"membership": torch.ones(1, 12, 4)}, "membership"),
        ({"key_membership": torch.ones(1, 12, 5, dtype=torch.bool)}, "key_membership"),
        ({"key_padding_mask": torch.ones(1, 11, dtype=torch.bool)}, "key_padding_mask"),
        ({"key_padding_mask": torch.ones(1, 12)}, "key_padding_mask"),
    ],
)
def test_bad_options(backend: str, changes: dict[str, Any], message: str) -> None:
    tensors, options = arguments(**changes)
    with pytest.raises(ValueError, match=message):
        focus_attention(*tensors, backend=backend, **options)


@pytest.mark.parametrize("backend", ["auto", "dense", "decomposed", "flex"])
def test_bad_tensors(backend: str) -> None:
    (query, key, value), options = arguments()
    for index, name in enumerate(("query", "key", "value")):
        for bad in (torch.nan, torch.inf):
            tensors = [query.clone(), key.clone(), value.clone()]
            tensors[index][0, 0, 5, 0] = bad
            with pytest.raises(ValueError, match=name):
                focus_attention(*tensors, backend=backend, **options)
    with pytest.raises(ValueError, match="key heads"):
        focus_attention(query[:, :3], key, value, backend=backend, **options)
    with pytest.raises(ValueError, match="value"):
        focus_attention(query, key, value[..., :8], backend=backend, **options)
    with pytest.raises(ValueError, match="key"):
        focus_attention(query, key[:, :, :6], value[:, :, :6], backend=backend, **options)
    with pytest.raises(ValueError, match="key"):
        focus_attention(query, key.double(), value, backend=backend, **options)
    empty = [x[:, :, :0] for x in (query, key, value)]
    with pytest.raises(ValueError, match="one token"):
        focus_attention(*empty, backend=backend, **options)


@pytest.mark.parametrize("backend", ["dense", "decomposed", "auto", "flex"])
def test_memberships_of_query_heads_are_those_of_repeated_key_heads(backend: str) -> None:
    case = Case(120, 6, 2, 1, sinks=2, heads=6, key_heads=2, routers="query_head")
    (query, key, value), options = draw(case)
    with torch.no_grad():
        found = focus_attention(query, key, value, backend=backend, **options)
        key, value = (x.repeat_interleave(3, 1) for x in (key, value))
        options["key_membership"] = options["key_membership"].repeat_interleave(3, 1)
        expected = dense_attention(query, key, value, **options)
    assert torch.allclose(found, expected, atol=1e-5)


def test_unknown_backend() -> None:
    tensors, options = arguments()
    with pytest.raises(ValueError, match=r"backend.*auto"):
        focus_attention(*tensors, backend="fast", **options)


@pytest.mark.parametrize(
    ("case", "path"),
    [
        (Case(256, 8, window=128, dim=64, heads=9, key_heads=3), "stripes"),
        (Case(4096, 8, window=128, dim=64, heads=9, key_heads=3), "stairs"),
        (Case(32768, 4, window=128, dim=64, heads=9, key_heads=3), "aligned"),
        (Case(2048, 4, 2, window=128, dim=64, heads=9, key_heads=3), "stripes"),
        (Case(16384, 4, 2, window=128, dim=64, heads=9, key_heads=3), "patterns"),
        (Case(4096, 8, 1, window=4000, dim=64, heads=9, key_heads=3), "stripes"),
    ],
    ids=str,
)
def test_choice_of_path(case: Case, path: str) -> None:
    tensors, options = draw(case)
    x = validate(*tensors, scale=None, **options)
    assert not cost.keeps_all(x)
    assert cost.choose(x)[0] == path


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(40, 4, 3), True),
        (Case(40, 4, 2), False),
        (Case(40, 4, 3, 1), False),
        (Case(40, 4, 3, 2), True),
        (Case(40, 4, 1, window=40), True),
        (Case(40, 4, 3, padding="left", batch=2), True),
    ],
    ids=str,
)
def test_when_every_pair_is_kept(case: Case, expected: bool) -> None:
    tensors, options = draw(case)
    assert cost.keeps_all(validate(*tensors, scale=None, **options)) == expected


def test_gpu_choice_needs_no_gpu() -> None:
    for case, packed, path in (
        (Case(512, 8), True, "dense"),
        (Case(8192, 8, heads=2, key_heads=1), True, "packed"),
        (Case(8192, 8, heads=2, key_heads=1), False, "flex"),
        (Case(8192, 4, 2, heads=2, key_heads=1), True, "flex"),
    ):
        tensors, options = draw(case)
        assert cost.choose_on_gpu(validate(*tensors, scale=None, **options), packed) == path
