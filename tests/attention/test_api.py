"""Arguments that are refused, the choice of path, and memory that grows with the length only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from focus.attention import dense_attention, focus_attention, operator
from focus.attention.checks import check_arguments
from focus.attention.dense import checked
from tests import forked
from tests.attention.cases import Case, attention_of, draw, with_gradients

PEAK = """
import resource, torch
from focus.attention import focus_attention
torch.set_num_threads(2)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def run(tokens):
    q = torch.randn(1, 2, tokens, 16, requires_grad=bool(backward))
    k, v = torch.randn(2, 1, 1, tokens, 16).unbind()
    def draw(top_k):
        near = torch.randn(1, tokens, 16).topk(top_k, -1).indices
        return torch.zeros(1, tokens, 16, dtype=torch.bool).scatter_(-1, near, True)
    keys = draw(1) if separate else None
    out = focus_attention(q, k, v, draw(top_k), window=32, key_membership=keys, backend=backend)
    if backward:
        out.sum().backward()
run(2048)  # libraries and pools
before = peak()
run(tokens)
print((peak() - before) / 1024)
"""


@pytest.mark.parametrize(
    ("backend", "top_k", "separate", "backward"),
    [("auto", 1, 0, 1), ("auto", 2, 1, 0), ("stripes", 2, 0, 1)],
)
def test_memory_grows_with_the_length_only(
    backend: str, top_k: int, separate: int, backward: int, tmp_path: Path
) -> None:
    tokens = 20_000
    names = f"{backend=}; {tokens=}; {top_k=}; {separate=}; {backward=}\n"
    status, said, warned = forked.run(names + PEAK, tmp_path)
    assert status == 0, warned[-2000:]
    # A T x T tensor of one byte an entry would take 381 MB here.
    assert float(said) < 200, f"{said} MB for {tokens} tokens"


def arguments(**changes: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    tensors, options = draw(Case(12))
    return tensors, {**options, **changes}


@pytest.mark.parametrize("backend", ["auto", "dense", "stripes"])
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


@pytest.mark.parametrize("backend", ["auto", "dense", "stripes"])
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
    with pytest.raises(ValueError, match="head_dim must be at least 1"):
        focus_attention(*(x[..., :0] for x in (query, key, value)), backend=backend, **options)
    empty = [x[:, :, :0] for x in (query, key, value)]
    with pytest.raises(ValueError, match="one token"):
        focus_attention(*empty, backend=backend, **options)


@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize("name", ["query", "key", "value", "membership", "key_membership",
                                  "key_padding_mask", "extra_keys"])  # fmt: skip
def test_what_is_no_tensor(backend: str, name: str) -> None:
    tensors, options = arguments()
    named = {**dict(zip(("query", "key", "value"), tensors, strict=True)), **options}
    for bad, kind in (([[0.0]], "list"), (np.zeros((1, 12)), "ndarray")):
        with pytest.raises(ValueError, match=f"^{name}: must be a torch.Tensor, got {kind}; "):
            focus_attention(**{**named, name: bad}, backend=backend)


@pytest.mark.parametrize("backend", ["dense", "stripes", "auto"])
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
    assert operator.keeps_all(checked(check_arguments(*tensors, **options))) == expected


@pytest.mark.parametrize("backend", ["auto", "dense", "stripes"])
def test_mixed_dtypes_only_under_autocast(backend: str) -> None:
    (query, key, value), options = arguments()
    mixed = query, key, value.bfloat16()
    with pytest.raises(ValueError, match=r"value: is torch.bfloat16.*query is torch.float32"):
        focus_attention(*mixed, backend=backend, **options)
    leaves = [x.detach().requires_grad_() for x in mixed]
    with torch.autocast("cpu", torch.bfloat16):
        out = focus_attention(*leaves, backend=backend, **options)
        torch_out = torch.nn.functional.scaled_dot_product_attention(
            query, key.repeat_interleave(2, 1), key.repeat_interleave(2, 1)
        )
    assert out.dtype == torch_out.dtype == torch.bfloat16
    rounded = [x.bfloat16() for x in mixed]
    if backend != "dense":  # whose products autocast casts
        assert torch.equal(out, focus_attention(*rounded, backend=backend, **options))
    out.sum().backward()
    assert [x.grad.dtype for x in leaves] == [x.dtype for x in leaves]
    double = [x.double() for x in (query, key, value)]
    with torch.autocast("cpu", torch.bfloat16):
        assert focus_attention(*double, backend=backend, **options).dtype == torch.float64


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "dense", "stripes", "rehearsed"])
def test_the_default_dtype_plays_no_part(backend: str, default: torch.dtype) -> None:
    tensors, options = draw(Case(70, 4, 2, 1, batch=2, padding="left", sinks=2, extra=2))
    wanted = with_gradients(attention_of(backend), tensors, **options)
    before = torch.get_default_dtype()
    generator = torch.Generator().manual_seed(99)
    grad = torch.randn(wanted[0].shape, generator=generator)
    leaves = [x.detach().requires_grad_() for x in tensors]
    try:
        torch.set_default_dtype(default)
        out = attention_of(backend)(*leaves, **options)
        out.backward(grad)
    finally:
        torch.set_default_dtype(before)
    for one, other in zip([out, *(x.grad for x in leaves)], wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other)


def test_where_every_pair_is_kept_the_bits_are_torchs() -> None:
    (query, key, value), options = draw(Case(90, 4, 3, dim=16))
    leaves = [[x.detach().requires_grad_() for x in (query, key, value)] for _ in range(2)]
    own = focus_attention(*leaves[0], **options)
    full = torch.nn.functional.scaled_dot_product_attention(
        *leaves[1], is_causal=True, enable_gqa=True
    )
    assert torch.equal(own, full)
    for out in (own, full):
        out.backward(torch.ones_like(out))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(*leaves, strict=True))
