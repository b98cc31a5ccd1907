"""Decoding over a filed past against the definition, and what the pages hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focus.attention.pages as pages_module
from focus.attention.dense import attend
from focus.attention.past import Past, Rule
from tests.attention.pasts import CHUNKS, DIM, GRID, STEPS, Case, file_early


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages from the first token on, and a commit every few steps."""
    file_early(monkeypatch)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("routings", [1, 2, 4])
@pytest.mark.parametrize("chunks", [STEPS, CHUNKS])
def test_every_step_is_the_definition(chunks: list[int], routings: int, padded: bool) -> None:
    for window, sinks, limit, (groups, of_query, of_key) in GRID:
        rule = Rule(window, sinks, limit, groups, of_query, of_key)
        case = Case(rule, routings=routings, padded=padded)
        out, total, _ = case.run(chunks)
        assert torch.allclose(out, case.expected(), atol=1e-12), rule
        assert total == int(case.kept().sum()), rule


@pytest.mark.parametrize("changes", [{"key_heads": 4, "routings": 4}, {"key_heads": 1},
                                     {"routings": 4},
                                     {"batch": 3, "padded": True}])  # fmt: skip
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_head_layouts_batches_and_softcap(changes: dict, softcap: float | None) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), **changes)
    for chunks in (STEPS, CHUNKS):
        out, _, _ = case.run(chunks, softcap)
        assert torch.allclose(out, case.expected(softcap), atol=1e-12)


@pytest.mark.parametrize("routings", [(4, 4), (4, 1), (2, 1), (3, 3)])
def test_groups_that_do_not_fit_the_heads_are_refused(routings: tuple[int, int]) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1))
    case.query_groups, case.key_groups = (
        x[:, :1].expand(-1, count, -1, -1)
        for x, count in zip((case.query_groups, case.key_groups), routings, strict=True)
    )
    with pytest.raises(ValueError, match=r"^key_groups:"):
        case.run([1])


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_other_dtypes(dtype: torch.dtype, error: float, softcap: float | None) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=dtype)
    out, _, _ = case.run(CHUNKS, softcap)
    assert out.dtype == dtype
    for name in ("query", "key", "value"):
        setattr(case, name, getattr(case, name).double())
    assert (out.double() - case.expected(softcap)).abs().max() < error


def test_a_cache_goes_on_in_its_own_dtype() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=torch.bfloat16, dim=16)
    past = Past(case.rule)
    case.step(past, 0, 20)
    for name in ("query", "key", "value"):
        setattr(case, name, getattr(case, name).float())
        with pytest.raises(ValueError, match=r"^past_key_values: torch.bfloat16, torch.float32"):
            case.step(past, 20, 21)


@pytest.mark.parametrize("rule", [Rule(60, 0, None, 4, 1, 1), Rule(3, 0, None, 1, 1, 1),
                                  Rule(3, 0, None, 4, 3, 3)])  # fmt: skip
def test_limit_cases_are_full_attention(rule: Rule) -> None:
    case = Case(rule)
    causal = torch.ones(60, 60, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    full = attend(case.query, case.key, case.value, DIM**-0.5, kept=causal)
    assert torch.allclose(case.run(STEPS)[0], full, atol=1e-12)
    assert torch.allclose(case.run(CHUNKS)[0], full, atol=1e-12)


def test_long_pages_are_split_and_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "SPLIT_TOKENS", 32)
    tokens = 600
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        case = Case(Rule(16, 2, None, 2, 1, 1), tokens=tokens, batch=1, dtype=dtype)
        past = Past(case.rule)
        case.step(past, 0, tokens - 40)
        out = torch.cat([case.step(past, t, t + 1)[0] for t in range(tokens - 40, tokens)], 2)
        assert max(len(page.view().key) for _, _, _, page in past._all_pages()) > 1
        assert torch.allclose(out, case.expected()[:, :, -40:], atol=error)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_past_key_is_read_once_by_exactly_the_queries_that_the_mask_keeps(
    data: st.DataObject,
) -> None:
    """Equal logits and one-hot values: an output row is the kept set, each key weighed once."""
    groups = data.draw(st.integers(1, 6))
    of_query = data.draw(st.integers(1, min(3, groups)))
    of_key = data.draw(st.integers(1, min(3, groups)))
    limit = data.draw(st.none() | st.integers(1, 40))
    rule = Rule(data.draw(st.integers(1, 30)), data.draw(st.integers(0, 6)), limit, groups,
                of_query, of_key)  # fmt: skip
    chunks = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    tokens = sum(chunks)
    case = Case(rule, tokens, batch=2, heads=2, routings=data.draw(st.sampled_from([1, 2])))
    if data.draw(st.booleans()):
        flags = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
        case.real = torch.tensor([data.draw(flags), data.draw(flags)])
    case.query = torch.zeros(2, 2, tokens, tokens, dtype=torch.float64)
    case.key = torch.zeros_like(case.query)
    case.value = torch.eye(tokens, dtype=torch.float64).expand(2, 2, -1, -1)
    with pytest.MonkeyPatch.context() as patch:
        file_early(patch, data.draw(st.integers(0, 9)), data.draw(st.integers(0, 5)))
        out, total, past = case.run(chunks)
    kept = case.kept().expand(-1, 2, -1, -1).double()
    expected = kept / kept.sum(-1, keepdim=True).clamp_min(1)
    assert torch.allclose(out, expected, atol=1e-12)
    assert total == int(case.kept().sum())
    if limit is None:
        assert_every_key_is_somewhere_once(case, past)


def assert_every_key_is_somewhere_once(case: Case, past: Past) -> None:
    real = torch.ones(2, case.tokens, dtype=torch.bool) if case.real is None else case.real
    recent = past.near()
    for b, routings in enumerate(past.pages):
        for pages in routings:
            found = [page.alive()[2] for page in pages.by_set.values()]
            found.append(recent.sink_position[b][recent.bias[b, : recent.slots] == 0])
            found.append(recent.block().readable[b].nonzero().flatten() + recent.first)
            everything = torch.cat(found).sort().values
            assert torch.equal(everything, real[b].nonzero().flatten())
            for page in pages.by_set.values():
                assert (page.alive()[2].diff() > 0).all()


def test_pages_hold_keys_of_their_own_groups() -> None:
    case = Case(Rule(5, 2, None, 4, 2, 2))
    _, _, past = case.run(CHUNKS)
    assert past.paged
    for b, r, own, page in past._all_pages():
        key, value, position = page.alive()
        assert torch.equal(key, case.key[b][:, position])
        assert torch.equal(value, case.value[b][:, position])
        assert torch.equal(
            case.key_groups[b, r, position],
            torch.zeros(4, dtype=torch.bool).scatter(0, torch.tensor(own), True).expand(
                len(position), -1
            ),
        )  # fmt: skip


def test_a_step_reads_about_one_group_and_the_window() -> None:
    tokens = 2000
    case = Case(Rule(16, 4, None, 8, 1, 1), tokens, batch=1, dtype=torch.float32)
    past = Past(case.rule)
    case.step(past, 0, tokens - 1)
    _, reads = case.call(past, tokens - 1, tokens)
    keys = reads.bytes_read() / (2 * DIM * 4) / 2  # keys and values, float32, 2 key heads
    kept = int(case.kept()[0, 0, -1].sum())
    assert kept <= keys <= kept + 3 + 2 + 4  # what gathers before a commit is read under a mask
    assert keys < tokens / 6


def test_no_key_is_kept_twice() -> None:
    tokens = 3000
    case = Case(Rule(16, 4, None, 8, 2, 2), tokens, batch=1, dtype=torch.float32)
    past = Past(case.rule)
    case.step(past, 0, tokens - 1)
    case.step(past, tokens - 1, tokens)
    kept = [page.key for _, _, _, page in past._all_pages()] + [past.near().key]
    assert past.prefix is None
    # A quarter of growth, and the free rows of each of the 28 sets of groups.
    assert sum(x.shape[-2] for x in kept) < 1.25 * tokens + 28 * 32 + 600


def test_counts_outlive_the_step() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), batch=1)
    past = Past(case.rule)
    case.step(past, 0, 40)
    _, reads = case.call(past, 40, 41)
    now = reads.pair_counts()
    case.step(past, 41, 42)
    past.crop(6)
    case.step(past, 36, 37)
    assert reads.pair_counts() == now


@pytest.mark.parametrize("limit", [None, 20])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("routings", "extra"), [(1, 0), (2, 0), (1, 3), (4, 3)])
def test_crop_select_and_go_on(limit: int | None, padded: bool, routings: int, extra: int) -> None:
    rule = Rule(5, 3, limit, 4, 2, 2)
    case = Case(rule, batch=3, routings=routings, padded=padded, extra=extra)
    expected = case.expected()
    for remove in (1, 3, 12, 38):
        past = Past(case.rule)
        past.record = True
        for start, stop in ((0, 10), (10, 30), (30, 31), (31, 40)):
            case.step(past, start, stop)
        past.crop(remove)
        rows = torch.tensor([2, 0, 0, 1])
        past.select(rows)
        outs = [case.step(past, t, t + 1, rows=rows)[0] for t in range(40 - remove, 60)]
        assert torch.allclose(torch.cat(outs, 2), expected[rows, :, 40 - remove :], atol=1e-12)


def test_sequences_that_share_pages_do_not_disturb_each_other() -> None:
    case = Case(Rule(5, 3, None, 4, 1, 1), batch=2)
    past = Past(case.rule)
    case.step(past, 0, 30)
    case.step(past, 30, 40)
    past.select(torch.tensor([0, 0]))
    # Different suffixes: the second copy goes on as sequence 1 does.
    for name in ("key", "value", "key_groups"):
        tensor = getattr(case, name)
        tensor[1, :, :40] = tensor[0, :, :40]
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(40, 60)], 2)
    assert torch.allclose(out, case.expected()[:, :, 40:], atol=1e-12)


def test_a_crop_that_needs_dropped_keys_is_refused() -> None:
    case = Case(Rule(3, 0, 10, 4, 1, 1))
    past = Past(case.rule)
    case.step(past, 0, 50)
    case.step(past, 50, 60)
    with pytest.raises(ValueError, match="activate_past_recording"):
        past.crop(30)


def test_garbage_in_padding_reaches_nothing() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), padded=True)
    expected = case.expected()
    assert case.real is not None
    for name in ("query", "key", "value"):
        getattr(case, name)[0][:, ~case.real[0]] = float("nan")
    for chunks in (STEPS, CHUNKS):
        assert torch.allclose(case.run(chunks)[0], expected, atol=1e-12)


def test_errors() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1))
    past = Past(case.rule)
    with pytest.raises(ValueError, match="cache: is empty"):
        past.ordered()
    case.step(past, 0, 20)
    case.key[0, 0, 20, 0] = float("inf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        case.step(past, 20, 21)
    case.query.requires_grad_(True)
    with pytest.raises(ValueError, match="no gradient"):
        case.step(past, 21, 22)
