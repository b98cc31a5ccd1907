"""The training gates as they are called: the method's definitions, precision and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus import dense_attention
from focus.attention.dense import attend, pairs_kept
from focus.config import GATES
from focus.gates import gated_assignments, gated_attention
from focus.groups import Assignments, top_k_groups

SHAPE, KEY_SHAPE = (2, 4, 75, 16), (2, 2, 75, 16)
WINDOW, SINKS = 16, 2


def tensors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (SHAPE, KEY_SHAPE, KEY_SHAPE)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def assignments(routers: int = 2, sharpness: float = 1.0,
                dtype: torch.dtype = torch.float64) -> Assignments:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 2, routers, 75, 4, generator=generator, dtype=torch.float64)
    soft = (sharpness * scores).softmax(-1).to(dtype).requires_grad_()
    return Assignments(soft[0], soft[1])


def rule(gate: str = "log", **changes: Any) -> dict[str, Any]:
    return {"gate": gate, "window": WINDOW, "sinks": SINKS, "top_k": 1, "key_top_k": 1, "probes": 1,
            "hard_keys": False, **changes}  # fmt: skip


def by_loops(gate: str, q: Tensor, k: Tensor, v: Tensor, groups: Assignments) -> Tensor:
    """The gates of the method's page, pair by pair."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            routed = min(h // 2, groups.query.shape[1] - 1)
            for i in range(q.shape[2]):
                logits = (k[b, h // 2, : i + 1] @ q[b, h, i]) * 16**-0.5
                affinity = groups.key[b, routed, : i + 1] @ groups.query[b, routed, i]
                position = torch.arange(i + 1)
                distant = (i - position >= WINDOW) & (position >= SINKS)
                gated = logits * torch.sigmoid(8.0 * affinity)
                gated = logits + affinity.log() if gate == "log" else gated
                weights = torch.where(distant, gated, logits).softmax(-1)
                out[b, h, i] = weights @ v[b, h // 2, : i + 1]
    return out


@pytest.mark.parametrize("gate", ["eq2", "log"])
@pytest.mark.parametrize("routers", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_gates_are_their_definitions(
    gate: str, routers: int, dtype: torch.dtype, tolerance: float
) -> None:
    (q, k, v), groups = [t.detach() for t in tensors()], assignments(routers)
    groups = Assignments(*(g.detach() for g in groups))
    low = gated_attention(*tensors(dtype), groups, **rule(gate))
    assert low.dtype == dtype
    assert torch.allclose(low.double(), by_loops(gate, q, k, v, groups), atol=tolerance)


@pytest.mark.parametrize("gate", GATES)
def test_probes_are_the_probability_that_one_of_n_draws_hits(gate: str) -> None:
    drawn, groups = tensors(), assignments()
    probed = Assignments(1 - (1 - groups.query) ** 3, groups.key)
    found = gated_attention(*drawn, groups, **rule(gate, probes=3))
    expected = gated_attention(*drawn, probed, **rule(gate))
    assert torch.allclose(found, expected, atol=1e-12)
    certain = Assignments(torch.eye(4).double()[torch.arange(75) % 4].expand(2, 2, 75, 4),
                          groups.key)  # fmt: skip
    certain.query.requires_grad_()
    gated_attention(*drawn, certain, **rule(gate, probes=3)).sum().backward()
    assert certain.query.grad is not None
    assert bool(certain.query.grad.isfinite().all())


@pytest.mark.parametrize("gate", ["eq2", "log"])
def test_hard_keys_count_in_their_groups_alone_and_learn_softly(gate: str) -> None:
    drawn, groups = tensors(), assignments()
    joined = top_k_groups(groups.key.detach(), 1).double().requires_grad_()
    expected = gated_attention(*drawn, Assignments(groups.query, joined), **rule(gate))
    found = gated_attention(*drawn, groups, **rule(gate, hard_keys=True))
    assert torch.allclose(found, expected, atol=1e-9)
    wanted = torch.autograd.grad(expected.square().sum(), (groups.query, joined))
    found_grads = torch.autograd.grad(found.square().sum(), groups)
    for one, other in zip(found_grads, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def test_probes_of_hard_keys_in_several_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^probes:"):
        gated_assignments(assignments(), probes=2, hard_keys=True, key_top_k=2)


@pytest.mark.parametrize("gate", GATES)
def test_query_heads_with_assignments_of_their_own(gate: str) -> None:
    (q, k, v), groups = tensors(), assignments(4)
    keys = groups.key[:, :2]
    found = gated_attention(q, k, v, Assignments(groups.query, keys), **rule(gate))
    k, v, keys = (x.repeat_interleave(2, 1) for x in (k, v, keys))
    expected = gated_attention(q, k, v, Assignments(groups.query, keys), **rule(gate))
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("gate", ["eq2", "log", "straight_through"])
@pytest.mark.parametrize("same", [{"window": 75}, {"sinks": 75}, {"one_group": True}])
def test_what_leaves_nothing_distant_is_full_attention(gate: str, same: dict[str, Any]) -> None:
    drawn, groups, changes = tensors(), assignments(), dict(same)
    if changes.pop("one_group", False):
        groups = Assignments(*(torch.ones(2, 2, 75, 1).double() for _ in range(2)))
        gate = "log" if gate == "eq2" else gate  # at affinity 1 its factor is not quite 1
    full = scaled_dot_product_attention(*drawn, is_causal=True, enable_gqa=True)
    assert torch.allclose(gated_attention(*drawn, groups, **rule(gate, **changes)), full)


def hard(drawn: list[Tensor], groups: Assignments, limit: int | None = None,
         **more: Any) -> Tensor:  # fmt: skip
    queries, keys = top_k_groups(groups.query, 2), top_k_groups(groups.key, 1)
    if limit is not None:
        position = torch.arange(75)
        band = position[:, None] - position < limit
        kept = pairs_kept(queries, keys, WINDOW, SINKS) & band
        return attend(*drawn, 16**-0.5, kept=kept)
    return dense_attention(
        *drawn, queries, key_membership=keys, window=WINDOW, sinks=SINKS, **more
    )  # fmt: skip


def test_log_gate_tends_to_the_hard_mask() -> None:
    drawn, groups = tensors(), assignments(sharpness=1e5)
    soft = gated_attention(*drawn, groups, **rule())
    wanted = dense_attention(
        *drawn, top_k_groups(groups.query, 1), key_membership=top_k_groups(groups.key, 1),
        window=WINDOW, sinks=SINKS,
    )  # fmt: skip
    assert torch.allclose(soft, wanted, atol=1e-9)


@pytest.mark.parametrize(("how", "dense"), [
    ({}, {}),
    ({"limit": 30}, {"limit": 30}),
    ({"limit": 75}, {}),
    ({"softcap": 2.0}, {"softcap": 2.0}),
    ({"scale": 0.7}, {"scale": 0.7}),
    ({"real": torch.arange(75).expand(2, -1) >= 9},
     {"key_padding_mask": torch.arange(75).expand(2, -1) >= 9}),
])  # fmt: skip
def test_straight_through_is_hard_forwards_and_log_backwards(
    how: dict[str, Any], dense: dict[str, Any]
) -> None:
    drawn, groups = tensors(), assignments()
    out = gated_attention(*drawn, groups, **rule("straight_through", top_k=2, **how))
    assert torch.allclose(out, hard(drawn, groups, **dense), atol=1e-12)
    soft = gated_attention(*drawn, groups, **rule("log", **how))
    flow = torch.randn_like(out)
    inputs = (*drawn, *groups)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, flow), torch.autograd.grad(soft, inputs, flow), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_bfloat16_is_within_twice_full_attentions_own_error() -> None:
    def error(low: Tensor, exact: Tensor) -> Tensor:
        return (low.double() - exact).norm() / exact.norm()

    def full(dtype: torch.dtype) -> Tensor:
        return scaled_dot_product_attention(*tensors(dtype), is_causal=True, enable_gqa=True)

    low = gated_attention(*tensors(torch.bfloat16), assignments(), **rule())
    assert low.dtype == torch.bfloat16
    ours = error(low, gated_attention(*tensors(), assignments(), **rule()))
    assert ours < 2 * error(full(torch.bfloat16), full(torch.float64))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_autocast_casts_as_torchs_attention_does(
    gate: str, dtype: torch.dtype, backward_inside: bool
) -> None:
    """Rotary embedding leaves query and key float32, the value arrives narrow."""
    (q, k, v), groups = tensors(torch.float32), assignments(dtype=torch.float32)
    inputs = (q, k, v, *groups)
    with torch.autocast("cpu", dtype):
        out = gated_attention(q, k, v.to(dtype), groups, **rule(gate))
        like = scaled_dot_product_attention(q, k, v.to(dtype), enable_gqa=True)
        grads = torch.autograd.grad(out.float().sum(), inputs) if backward_inside else None
    grads = torch.autograd.grad(out.float().sum(), inputs) if grads is None else grads
    assert out.dtype == like.dtype == dtype
    plain = gated_attention(*(x.to(dtype) for x in (q, k, v)), groups, **rule(gate))
    assert torch.equal(out, plain)
    wanted = torch.autograd.grad(plain.float().sum(), inputs)
    for one, other in zip(grads, wanted, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_assignments_stay_float32_under_autocast() -> None:
    """Two affinities that bfloat16 cannot tell apart give weights that differ."""
    x = torch.zeros(1, 1, 3, 16)
    value = torch.tensor([1.0, -1.0, 0.0]).view(1, 1, 3, 1).expand(1, 1, 3, 16)
    near = torch.tensor([1.0, 1.0 - 2**-12, 1.0]).view(1, 1, 3, 1)
    groups = Assignments(torch.ones(1, 1, 3, 1), near)
    with torch.autocast("cpu", torch.bfloat16):
        out = gated_attention(x, x, value, groups, **rule(window=1, sinks=0))
    assert float(out[0, 0, 2, 0]) == pytest.approx(2**-12 / 3, rel=0.01)
