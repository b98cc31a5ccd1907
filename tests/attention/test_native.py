"""The compiled kernel against the float64 definition, and what it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad

from focus.attention import dense_attention, focus_attention
from focus.attention.checks import check_arguments
from focus.attention.native import call
from tests.attention.cases import (
    Case,
    attention_of,
    check,
    definition,
    draw,
    needs_kernel,
    relative_error,
    with_gradients,
)
from tests.threads import threads

pytestmark = needs_kernel
WAYS = ("lists", "dense test")
BOTH = pytest.mark.parametrize("way", WAYS)
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 0.006}
EACH_FORMAT = pytest.mark.parametrize("dtype", list(LIMITS))  # bfloat16 has a way of its own on AMX


@pytest.mark.parametrize(("top_k", "key_top_k"), [(1, None), (2, None), (3, None), (2, 1), (1, 2)])
@pytest.mark.parametrize("tokens", [1, 5, 64, 333])
def test_both_ways_are_the_definition(top_k: int, key_top_k: int | None, tokens: int) -> None:
    kinds = ("balanced", "unbalanced", "empty", "one", "ragged")
    for kind, (window, sinks) in itertools.product(kinds, ((1, 0), (1, 40), (16, 4), (100, 40))):
        case = Case(tokens, 8, top_k, key_top_k, window, sinks, kind, routers="kv_head")
        tensors, options = draw(case)
        exact = dense_attention(*(x.double() for x in tensors), **options)
        for way in WAYS:
            found = attention_of(way)(*tensors, **options)
            assert relative_error(found, exact) <= 1e-6, (way, case)


@BOTH
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize(
    ("routers", "layout"),
    [("layer", "heads"), ("layer", "tokens"), ("kv_head", "heads"), ("query_head", "tokens")],
)
@pytest.mark.parametrize("key_top_k", [None, 1])
def test_outputs_and_gradients(
    way: str, padding: str | None, routers: str, layout: str, key_top_k: int | None
) -> None:
    case = Case(200, 6, 2, key_top_k, sinks=3, batch=3, heads=6, routers=routers, padding=padding,
                layout=layout)  # fmt: skip
    check(case, way)


@BOTH
@pytest.mark.parametrize("dim", [16, 48, 64, 80, 128, 256, 512])
def test_head_dimensions(way: str, dim: int) -> None:
    check(Case(150, 4, 2, dim=dim, sinks=2), way)


@BOTH
@pytest.mark.parametrize("groups", [1, 2, 31, 32, 33, 64])
def test_numbers_of_groups(way: str, groups: int) -> None:
    check(Case(300, groups, min(2, groups), sinks=2), way)


@BOTH
def test_each_query_head_with_groups_of_its_own_for_keys_too(way: str) -> None:
    for heads, key_heads in ((6, 2), (4, 4), (5, 1)):
        case = Case(400, 8, 1, heads=heads, key_heads=key_heads, routers="query_head", window=4,
                    batch=2, sinks=2)  # fmt: skip
        check(case, way)


@BOTH
@EACH_FORMAT
def test_a_sequence_of_padding_alone(way: str, dtype: torch.dtype) -> None:
    tensors, options = draw(Case(300, 4, 1, batch=3, sinks=2, dim=64, dtype=dtype))
    real = torch.ones(3, 300, dtype=torch.bool)
    real[1], real[2, :250] = False, False
    options["key_padding_mask"] = real
    found = with_gradients(attention_of(way), tensors, **options)
    for one, exact in zip(found, definition(tensors, options), strict=True):
        assert relative_error(one, exact) <= LIMITS[dtype]
    assert not found[0][1].any()


@BOTH
def test_expanded_tensors_are_read_where_they_are(way: str) -> None:
    tensors, options = draw(Case(200, 4, 1, 1, sinks=2))
    query, key, value = tensors
    wide = [query[:, :1].expand(2, 4, -1, -1), key[:, :1].expand(2, 2, -1, -1),
            value[:, :1].expand(2, 2, -1, -1)]  # fmt: skip
    for name in ("membership", "key_membership"):
        options[name] = options[name].expand(2, -1, -1)
    found = attention_of(way)(*wide, **options)
    exact = dense_attention(*(x.double() for x in wide), **options)
    assert relative_error(found, exact) <= 1e-6


def test_a_membership_that_was_refilled_before_the_backward_pass_is_noticed() -> None:
    tensors, options = draw(Case(100, 4, 1))
    leaves = [x.requires_grad_() for x in tensors]
    out = focus_attention(*leaves, backend="native", **options)
    options["membership"].fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_forward_mode_differentiation_is_refused() -> None:
    tensors, options = draw(Case(20, 4, 1))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensors[0], torch.ones_like(tensors[0]))
        with pytest.raises(ValueError, match="query: carries a forward-mode derivative"):
            focus_attention(dual, *tensors[1:], **options)


@pytest.mark.parametrize(("top_k", "key_top_k"), [(1, None), (2, None), (2, 1)])
@pytest.mark.parametrize("dim", [32, 48, 96, 128])
def test_bfloat16_is_the_definition_to_its_rounding(
    top_k: int, key_top_k: int | None, dim: int
) -> None:
    """Also on AMX, which takes dimensions by 32."""
    kinds, tokens, rest = ("unbalanced", "empty", "ragged"), (1, 37, 333), ((1, 2), (100, 0))
    for kind, count, (window, further) in itertools.product(kinds, tokens, rest):
        case = Case(count, 40 if further else 6, top_k, key_top_k, window, 3, kind, batch=2,
                    routers="query_head", padding="left", dim=dim, extra=further,
                    dtype=torch.bfloat16, layout="tokens")  # fmt: skip
        tensors, options = draw(case)
        exact = dense_attention(*(x.double() for x in tensors), **options)
        for way in WAYS:
            found = attention_of(way)(*tensors, **options)
            assert relative_error(found, exact) <= 0.004, (way, case)


@pytest.mark.parametrize("dim", [64, 128])
def test_bfloat16_is_as_close_as_full_attention_is(dim: int) -> None:
    """Sums stay in float32, and weights but on AMX: what is lost is lost in rounding the output."""
    tensors, options = draw(Case(700, 8, 2, dim=dim, sinks=4, dtype=torch.bfloat16))
    exact = dense_attention(*(x.double() for x in tensors), **options)
    full = torch.nn.functional.scaled_dot_product_attention
    theirs = relative_error(
        full(*tensors, is_causal=True, enable_gqa=True),
        full(*(x.double() for x in tensors), is_causal=True, enable_gqa=True),
    )
    for way in WAYS:
        found = attention_of(way)(*tensors, **options)
        assert found.dtype == torch.bfloat16
        assert relative_error(found, exact) < 1.05 * theirs


@BOTH
@EACH_FORMAT
@pytest.mark.parametrize("factor", [100, 1e10, 1e30])
def test_large_logits_neither_overflow_nor_vanish(
    way: str, dtype: torch.dtype, factor: float
) -> None:
    tensors, options = draw(Case(300, 4, 2, sinks=2, dim=64, dtype=dtype))
    tensors[0] *= factor
    found = attention_of(way)(*tensors, **options)
    exact = dense_attention(*(x.double() for x in tensors), **options)
    assert relative_error(found, exact) <= (1e-4 if dtype == torch.float32 else 0.004)


@BOTH
def test_the_number_of_threads_changes_no_bit(way: str) -> None:
    for dtype in LIMITS:
        case = Case(1000, 8, 2, sinks=4, heads=6, extra=2, dim=32, dtype=dtype)
        tensors, options = draw(case)
        many = with_gradients(attention_of(way), tensors, **options)
        with threads(1):
            one = with_gradients(attention_of(way), tensors, **options)
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


@pytest.mark.parametrize(("top_k", "key_top_k"), [(1, None), (2, None), (2, 1)])
@BOTH
def test_gradients_of_long_sequences(way: str, top_k: int, key_top_k: int | None) -> None:
    """Several cells on each side, in lists and in the window."""
    case = Case(1700, 3, top_k, key_top_k, window=500, sinks=5, heads=2, key_heads=1, batch=2,
                kind="unbalanced", padding="right", extra=2)  # fmt: skip
    check(case, way)


@BOTH
def test_bfloat16_gradients_are_as_close_as_full_attentions_are(way: str) -> None:
    case = Case(400, 4, 1, dim=64, dtype=torch.bfloat16, window=64, sinks=4, extra=2)
    tensors, options = draw(case)
    full = torch.nn.functional.scaled_dot_product_attention
    causal = {"is_causal": True, "enable_gqa": True}
    theirs = zip(
        with_gradients(full, tensors, **causal),
        with_gradients(full, [x.double() for x in tensors], **causal),
        strict=True,
    )
    found = with_gradients(attention_of(way), tensors, **options)
    exact = definition(tensors, options)
    for one, right, (other, other_right) in zip(found, exact, theirs, strict=True):
        assert one.dtype == torch.bfloat16
        assert relative_error(one, right) <= 1.05 * relative_error(other, other_right)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("at", [0, 150, 299])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_named(which: int, at: int, value: float) -> None:
    for dtype in LIMITS:
        tensors, options = draw(Case(300, 4, 1, dim=32, dtype=dtype))
        tensors[which][0, 0, at, 3] = value
        with pytest.raises(ValueError, match=f"^{('query', 'key', 'value')[which]}: holds NaN"):
            focus_attention(*tensors, backend="native", **options)


@EACH_FORMAT
@pytest.mark.parametrize(("top_k", "key_top_k", "sinks"), [(1, None, 4), (1, 1, 4), (2, 1, 100)])
def test_later_tokens_change_no_bit_of_earlier_ones(
    dtype: torch.dtype, top_k: int, key_top_k: int | None, sinks: int
) -> None:
    """Not by the choice between lists and the test of every pair either, which round apart."""
    for tokens in range(300, 1900, 100):
        half = tokens // 2
        case = Case(tokens, 8, top_k, key_top_k, 128, sinks, dim=32, dtype=dtype)
        tensors, options = draw(case)
        before = focus_attention(*tensors, **options)[:, :, :half]
        for each in tensors:
            each[:, :, half:] = each[:, :, half:].flip(2)
        for name in ("membership", "key_membership"):
            if options[name] is not None:
                options[name][:, half:] = options[name][:, :1].roll(1, -1)  # as many groups
        after = focus_attention(*tensors, **options)[:, :, :half]
        assert torch.equal(before, after), tokens


@pytest.mark.parametrize("name", ["membership", "key_membership"])
def test_a_token_without_a_group_is_named(name: str) -> None:
    tensors, options = draw(Case(50, 4, 1, 1))
    options[name][0, 17] = False
    with pytest.raises(ValueError, match=f"^{name}: a real token belongs to no group"):
        focus_attention(*tensors, backend="native", **options)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(20, dim=12), "head dimensions that are multiples"),
        (Case(20, dtype=torch.float64), "float32 and bfloat16"),
        (Case(80, groups=65), "up to 64 groups"),
    ],
)
def test_what_it_cannot_compute_auto_computes_otherwise(case: Case, why: str) -> None:
    tensors, options = draw(case)
    with pytest.raises(ValueError, match=why):
        focus_attention(*tensors, backend="native", **options)
    found = focus_attention(*tensors, **options)
    exact = dense_attention(*(x.double() for x in tensors), **options)
    assert relative_error(found, exact) <= 1e-5


def test_rows_in_pieces_are_copied() -> None:
    tensors, options = draw(Case(40, 4, 1))
    scattered = [torch.stack([x, x], -1)[..., 0] for x in tensors]
    assert scattered[0].stride(-1) == 2
    found = focus_attention(*scattered, backend="native", **options)
    assert torch.equal(found, focus_attention(*tensors, backend="native", **options))


def test_lists_and_the_test_of_every_pair_agree_on_the_log_sum_exp() -> None:
    tensors, options = draw(Case(400, 8, 2, sinks=4))
    x = check_arguments(*tensors, scale=None, **options)
    spans = [(0, 400)]
    (_, by_group), (_, tested) = (call.forward(x, spans, m) for m in (call.LISTS, call.DENSE))
    torch.testing.assert_close(by_group, tested, rtol=1e-5, atol=1e-5)
    alone = replace(x, window=400)
    _, full = call.forward(alone, spans)
    logits = tensors[0] @ tensors[1].repeat_interleave(2, 1).transpose(-1, -2) * x.scale
    logits = logits.masked_fill(~torch.ones(400, 400).tril().bool(), -torch.inf)
    torch.testing.assert_close(full, logits.logsumexp(-1), rtol=1e-5, atol=1e-5)
