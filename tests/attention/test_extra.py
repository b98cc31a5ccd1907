"""Further keys of single queries, beside the mask's: every path against the definition."""

from __future__ import annotations

import pytest
import torch

from focus.attention import dense_attention, focus_attention
from focus.attention.checks import check_arguments
from focus.attention.dense import checked, pairs_kept
from focus.density import count_pairs
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
from tests.attention.pasts import CHUNKS, GRID, PAIRS, STEPS
from tests.attention.pasts import Case as PastCase

CASES = [
    Case(150, 4, 1, extra=3),
    Case(150, 8, 2, sinks=4, window=1, extra=1),
    Case(150, 8, 1, 1, sinks=2, routers="kv_head", extra=4),
    Case(150, 8, 2, 1, sinks=2, routers="query_head", extra=4, kind="unbalanced"),
    Case(90, 6, 2, 2, batch=3, padding="left", sinks=3, extra=3, kind="ragged"),
    Case(90, 6, 1, batch=3, padding="right", window=5, extra=3, layout="tokens"),
    Case(90, 4, 3, extra=2),  # all meet: every pair is kept already
    Case(20, 4, 1, window=20, extra=2),
    Case(200, 40, 2, extra=2),  # two words of bits
    Case(1, 2, 1, extra=2),
]
KERNEL = [pytest.param(way, marks=needs_kernel) for way in ("native", "lists", "dense test")]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", ["auto", "rehearsed", "stripes", *KERNEL])
def test_outputs_and_gradients_are_the_definitions(case: Case, backend: str) -> None:
    check(case, backend)


@needs_kernel
def test_half_precision() -> None:
    tensors, options = draw(Case(400, 8, 1, dim=64, extra=4, dtype=torch.bfloat16))
    exact = definition(tensors, options)[0]
    assert relative_error(focus_attention(*tensors, **options), exact) < 4e-3


def test_long_sequences_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focus.attention.extra.ROWS", 2000)
    check(Case(150, 4, 1, extra=3, batch=2), "rehearsed")


def test_they_change_the_answer_and_count_once() -> None:
    case = Case(150, 6, 1, sinks=2, extra=3)
    tensors, options = draw(case)
    without = {**options, "extra_keys": None}
    own, other = dense_attention(*tensors, **options), dense_attention(*tensors, **without)
    assert relative_error(own, other.double()) > 1e-2
    again = {**options, "extra_keys": options["extra_keys"].repeat(1, 1, 2)}
    assert torch.equal(dense_attention(*tensors, **again), own)
    assert torch.allclose(focus_attention(*tensors, **again), own, atol=1e-5)


@pytest.mark.parametrize("padding", [None, "left"])
def test_they_are_counted(padding: str | None) -> None:
    case = Case(100, 6, 2, 1, batch=2, sinks=2, padding=padding, routers="query_head", extra=3)
    tensors, options = draw(case)
    x = checked(check_arguments(*tensors, **options))
    counts = count_pairs(x.membership, x.key_membership, x.window, x.sinks, x.real,
                         options["extra_keys"])  # fmt: skip
    kept = pairs_kept(x.membership, x.key_membership, x.window, x.sinks, x.real,
                      options["extra_keys"])  # fmt: skip
    assert counts.near + counts.distant_kept == int(kept.sum())


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (torch.zeros(1, 20, 2), "must be int64"),
        (torch.zeros(1, 19, 2, dtype=torch.int64), "tokens 20"),
        (torch.zeros(20, 2, dtype=torch.int64), "must be int64 of shape"),
        (torch.full((1, 20, 2), 1), "after its query"),
        (torch.full((1, 20, 2), -2), "below -1"),
    ],
)
def test_nonsense_is_refused(extra: torch.Tensor, message: str) -> None:
    tensors, options = draw(Case(20))
    with pytest.raises(ValueError, match=f"^extra_keys: .*{message}"):
        focus_attention(*tensors, **{**options, "extra_keys": extra})


# ------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(("changes", "softcap"), [
    ({}, None), ({"padded": True}, 3.0), ({"routings": 2, "padded": True}, None),
    ({"routings": 4}, 3.0), ({"key_heads": 1}, None),
    ({"batch": 3, "heads": 6, "routings": 6, "padded": True}, None),
])  # fmt: skip
@pytest.mark.parametrize("chunks", [STEPS, CHUNKS])
def test_every_step_is_the_definition(
    chunks: list[int], changes: dict, softcap: float | None
) -> None:
    for rule in PAIRS:
        case = PastCase(rule, extra=3, **changes)
        out, total, _ = case.run(chunks, softcap)
        assert torch.allclose(out, case.expected(softcap), atol=1e-12), rule
        assert total == int(case.kept().sum()), rule


@needs_kernel
@pytest.mark.parametrize("changes", [{}, {"routings": 2, "padded": True}, {"routings": 4}])
def test_compiled_steps_are_the_definition(changes: dict) -> None:
    for rule in PAIRS if changes else GRID:
        case = PastCase(rule, extra=3, dim=16, dtype=torch.float32, **changes)
        out, total, _ = case.run(STEPS)
        assert torch.allclose(out, case.expected(), atol=1e-6), rule
        assert total == int(case.kept().sum()), rule


@pytest.mark.parametrize("backend", ["rehearsed", "stripes", *KERNEL])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_may_hold_anything(padding: str, backend: str) -> None:
    case = Case(80, 4, 2, batch=3, padding=padding, sinks=2, window=8, extra=3)
    tensors, options = draw(case)
    real = options["key_padding_mask"]
    clean = [x.masked_fill(~real[:, None, :, None], 0.0) for x in tensors]
    dirty = [x.masked_fill(~real[:, None, :, None], float("nan")) for x in tensors]
    found = with_gradients(attention_of(backend), dirty, **options)
    for one, exact in zip(found, definition(clean, options), strict=True):
        assert relative_error(one, exact) <= 1e-4


def test_none_at_all_is_no_further_key() -> None:
    tensors, options = draw(Case(40, 4, 1))
    nothing = torch.zeros(1, 40, 0, dtype=torch.int64)
    for backend in ("auto", "stripes", "dense"):
        found = focus_attention(*tensors, **{**options, "extra_keys": nothing}, backend=backend)
        assert torch.equal(found, focus_attention(*tensors, **options, backend=backend))
