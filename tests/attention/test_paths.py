"""Every path against the float64 definition: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from focus.attention import dense_attention, focus_attention, stripes
from focus.attention.native.build import library
from tests.attention.cases import (
    Case,
    attention_of,
    check,
    definition,
    draw,
    relative_error,
    with_gradients,
)

ANY, KERNELS = ["rehearsed", "stripes", "auto"], ["lists", "dense test"]
BOTH = pytest.mark.parametrize("backend", ANY[:2])
EVERY = pytest.mark.parametrize("backend", ANY)
KINDS = ["balanced", "unbalanced", "empty", "one", "ragged"]
GROUPS_AND_K = [(1, 1), (2, 1), (4, 1), (4, 2), (4, 3), (4, 4), (8, 1), (8, 2), (8, 3), (16, 2)]


@BOTH
@pytest.mark.parametrize(("groups", "top_k"), GROUPS_AND_K)
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (64, 4)])
def test_groups(groups: int, top_k: int, window: int, sinks: int, backend: str) -> None:
    check(Case(150, groups, top_k, window=window, sinks=sinks), backend)


@BOTH
@pytest.mark.parametrize("window", [1, 64, 149, 150])
@pytest.mark.parametrize("sinks", [0, 4])
def test_windows_and_sinks(window: int, sinks: int, backend: str) -> None:
    check(Case(150, 8, 2, window=window, sinks=sinks), backend)


@pytest.mark.parametrize("kind", ["unbalanced", "empty", "one", "ragged"])
@pytest.mark.parametrize("top_k", [1, 2])
@EVERY
def test_uneven_groups(kind: str, top_k: int, backend: str) -> None:
    check(Case(130, 4, top_k, kind=kind, sinks=2), backend)


@pytest.mark.parametrize("tokens", [1, 2, 31, 33, 63, 111])
@EVERY
@pytest.mark.parametrize("key_top_k", [None, 1])
def test_odd_lengths(tokens: int, backend: str, key_top_k: int | None) -> None:
    check(Case(tokens, 4, 2, key_top_k, window=5, sinks=1), backend)


@BOTH
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("routers", ["layer", "kv_head", "query_head"])
def test_grouped_queries(heads: int, key_heads: int, routers: str, backend: str) -> None:
    layout = "tokens" if heads == 6 else "heads"
    case = Case(100, 4, 2, heads=heads, key_heads=key_heads, routers=routers, layout=layout,
                sinks=3, batch=2)  # fmt: skip
    check(case, backend)


@BOTH
@pytest.mark.parametrize(("top_k", "key_top_k"), [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3), (4, 2)])
@pytest.mark.parametrize(
    ("kind", "sinks"), [("balanced", 0), ("balanced", 4), ("empty", 0), ("ragged", 4)]
)
def test_separate_key_memberships(
    top_k: int, key_top_k: int, kind: str, sinks: int, backend: str
) -> None:
    case = Case(140, 5, top_k, key_top_k, sinks=sinks, kind=kind, routers="kv_head")
    check(case, backend)


@BOTH
def test_keys_that_share_no_group_with_any_query(backend: str) -> None:
    tensors, options = draw(Case(90, 4, 1, 1))
    options["membership"] = torch.zeros(1, 90, 4, dtype=torch.bool)
    options["membership"][..., 0] = True
    options["key_membership"] = ~options["membership"]
    for window in (1, 16):
        options["window"] = window
        found = attention_of(backend)(*tensors, **options)
        exact = dense_attention(*(x.double() for x in tensors), **options)
        assert relative_error(found, exact) <= 1e-5


@pytest.mark.parametrize("padding", ["left", "right"])
@EVERY
def test_padding(padding: str, backend: str) -> None:
    check(Case(80, 4, 2, batch=3, padding=padding, sinks=3, window=8), backend)
    check(Case(80, 4, 2, 1, batch=3, padding=padding, sinks=3, window=8), backend)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("backend", ["rehearsed", "stripes", "auto", "dense"])
def test_padding_may_hold_anything_and_changes_nothing(padding: str, backend: str) -> None:
    case = Case(64, 4, 1, batch=2, padding=padding, sinks=2, window=8)
    tensors, options = draw(case)
    real = options["key_padding_mask"]
    poisoned = [x.masked_fill(~real[:, None, :, None], torch.nan) for x in tensors]
    found = with_gradients(attention_of(backend), poisoned, **options)
    clean = with_gradients(attention_of(backend), tensors, **options)
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one, other)
    assert not found[0].masked_select(~real[:, None, :, None]).any()


@BOTH
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padded_batch_equals_each_sequence_alone(padding: str, backend: str) -> None:
    tensors, options = draw(Case(72, 4, 2, batch=3, padding=padding, sinks=3, window=8))
    out = attention_of(backend)(*tensors, **options)
    for b, real in enumerate(options["key_padding_mask"]):
        own = [x[b : b + 1, :, real] for x in tensors]
        alone = attention_of(backend)(
            *own, membership=options["membership"][b : b + 1, real], window=8, sinks=3
        )
        torch.testing.assert_close(out[b : b + 1, :, real], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("routers", ["layer", "query_head"])
@EVERY
def test_padding_between_real_tokens(backend: str, routers: str) -> None:
    tensors, options = draw(Case(90, 4, 1, batch=2, sinks=3, routers=routers, extra=2))
    real = torch.rand(2, 90, generator=torch.Generator().manual_seed(0)) < 0.7
    options["key_padding_mask"] = real
    dirty = [x.masked_fill(~real[:, None, :, None], torch.nan) for x in tensors]
    found = with_gradients(attention_of(backend), dirty, **options)
    for one, exact in zip(found, definition(tensors, options), strict=True):
        assert relative_error(one, exact) <= 1e-5
    with pytest.raises(ValueError, match=r"key_padding_mask.*between.*backend='stripes'"):
        focus_attention(*tensors, backend="native", **options)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(90, 4, 3, window=4), "k > K / 2: two sets of groups must meet"),
        (Case(90, 1, 1, window=4), "K = 1"),
        (Case(90, 4, 1, window=90), "w >= T"),
    ],
)
@EVERY
def test_limits_are_full_attention(case: Case, why: str, backend: str) -> None:
    tensors, options = draw(case)
    full = torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in tensors), is_causal=True, enable_gqa=True
    )
    assert relative_error(attention_of(backend)(*tensors, **options), full) <= 1e-5, why


@BOTH
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_scale(scale: float, backend: str) -> None:
    tensors, options = draw(Case(80, 4, 2, 2))
    found = attention_of(backend)(*tensors, scale=scale, **options)
    exact = dense_attention(*(x.double() for x in tensors), scale=scale, **options)
    assert relative_error(found, exact) <= 1e-5


@BOTH
def test_a_repeated_pair_with_a_dominant_logit_counts_once(backend: str) -> None:
    tensors, options = draw(Case(100, 16, 9, kind="ragged", window=2))
    tensors[1][:, :, 3] *= 60  # one key far above all others, in several groups of most queries
    found = attention_of(backend)(*tensors, **options)
    exact = dense_attention(*(x.double() for x in tensors), **options)
    assert relative_error(found, exact) <= 1e-5


@pytest.mark.parametrize("top_k", [1, 2])
@EVERY
def test_float64_is_exact(top_k: int, backend: str) -> None:
    check(Case(120, 4, top_k, sinks=2, dtype=torch.float64), backend)


@EVERY
@pytest.mark.parametrize(("groups", "top_k"), [(4, 1), (4, 2), (16, 3)])
def test_bfloat16_error_within_twice_full_attentions(backend: str, groups: int, top_k: int) -> None:
    case = Case(400, groups, top_k, dim=64, dtype=torch.bfloat16, window=64, sinks=4)
    tensors, options = draw(case)
    full = torch.nn.functional.scaled_dot_product_attention
    errors = {}
    for name, attention, more in (
        ("focus", attention_of(backend), options),
        ("full", full, {"is_causal": True, "enable_gqa": True}),
    ):
        found = with_gradients(attention, tensors, **more)
        attention = dense_attention if name == "focus" else full
        leaves = [x.detach().double().requires_grad_() for x in tensors]
        out = attention(*leaves, **more)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(99))
        out.backward(grad.to(torch.bfloat16).double())
        exact = [out.detach(), *(x.grad for x in leaves)]
        errors[name] = [relative_error(a, b) for a, b in zip(found, exact, strict=True)]
    for ours, theirs in zip(errors["focus"], errors["full"], strict=True):
        assert ours <= 2 * theirs, errors


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_case(data: st.DataObject) -> None:
    draw_one = data.draw
    groups = draw_one(st.integers(1, 9), "groups")
    heads, key_heads = draw_one(st.sampled_from([(1, 1), (2, 1), (6, 2)]), "heads")
    case = Case(
        tokens=draw_one(st.integers(1, 150), "tokens"), groups=groups,
        top_k=draw_one(st.integers(1, groups), "top_k"),
        key_top_k=draw_one(st.none() | st.integers(1, groups), "key_top_k"),
        window=draw_one(st.integers(1, 160), "window"), sinks=draw_one(st.integers(0, 6), "sinks"),
        kind=draw_one(st.sampled_from(KINDS), "kind"),
        batch=draw_one(st.integers(1, 2), "batch"), heads=heads, key_heads=key_heads,
        routers=draw_one(st.sampled_from(["layer", "kv_head", "query_head"]), "routers"),
        padding=draw_one(st.sampled_from([None, "left", "right"]), "padding"),
        layout=draw_one(st.sampled_from(["heads", "tokens"]), "layout"),
        dtype=draw_one(st.sampled_from([torch.float32, torch.float64]), "dtype"),
        seed=draw_one(st.integers(0, 10_000), "seed"),
    )  # fmt: skip
    ways = ANY + (KERNELS if case.dtype == torch.float32 and library() is not None else [])
    check(case, draw_one(st.sampled_from(ways), "backend"))


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("routers", ["layer", "kv_head", "query_head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_stripes(
    padding: str | None, routers: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "PAIRS", 1)
    check(Case(111, 4, 2, 1, batch=2, padding=padding, routers=routers, sinks=2, dtype=dtype,
               heads=6, key_heads=2, extra=2), "stripes")  # fmt: skip


def test_float16_whose_products_overflow_before_they_are_scaled() -> None:
    tensors, options = draw(Case(50, 4, 1, dim=64))
    tensors[0] *= 200 / tensors[0].norm(dim=-1, keepdim=True)
    tensors[1] = tensors[1] / tensors[1].norm(dim=-1, keepdim=True)
    tensors[1][:, :, 0] = tensors[0][:, ::2, 20] * 2  # q.k = 80,000 and 10,000 when scaled
    half = [x.half() for x in tensors]
    exact = dense_attention(*(x.double() for x in half), **options)
    for backend in ("dense", "stripes", "auto"):
        found = attention_of(backend)(*half, **options)
        assert relative_error(found, exact) <= 1e-2, backend
