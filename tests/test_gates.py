import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus import FocusConfig, dense_attention
from focus.gating import GATES, gated_attention
from focus.routing import Assignments, top_k_groups

SHAPE = (2, 4, 75, 8)
KEY_SHAPE = (2, 2, 75, 8)
WINDOW, SINKS = 16, 2


def tensors(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (SHAPE, KEY_SHAPE, KEY_SHAPE)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def assignments(routers: int = 2, sharpness: float = 1.0, seed: int = 0) -> Assignments:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 2, routers, 75, 4, generator=generator, dtype=torch.float64)
    soft = (sharpness * scores).softmax(-1).requires_grad_()
    return Assignments(soft[0], soft[1])


def config(gate: str, **changes: object) -> FocusConfig:
    values = {"num_groups": 4, "top_k": 1, "window": WINDOW, "sinks": SINKS, "gate": gate}
    return FocusConfig(**{**values, **changes})  # type: ignore[arg-type]


def by_loops(gate: str, q: Tensor, k: Tensor, v: Tensor, groups: Assignments) -> Tensor:
    """The gates of the method's page, pair by pair."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            routed = min(h // 2, groups.query.shape[1] - 1)
            for i in range(q.shape[2]):
                logits = (k[b, h // 2, : i + 1] @ q[b, h, i]) * 8**-0.5
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
def test_gates_are_their_definitions(gate: str, routers: int) -> None:
    (q, k, v), groups = [t.detach() for t in tensors()], assignments(routers)
    groups = Assignments(*(g.detach() for g in groups))
    out = gated_attention(q, k, v, groups, config(gate))
    assert torch.allclose(out, by_loops(gate, q, k, v, groups), atol=1e-12)


@pytest.mark.parametrize("gate", sorted(GATES))
def test_probes_are_the_probability_that_one_of_n_draws_hits(gate: str) -> None:
    drawn, groups = tensors(), assignments()
    probed = Assignments(1 - (1 - groups.query) ** 3, groups.key)
    found = gated_attention(*drawn, groups, config(gate, gate_probes=3))
    expected = gated_attention(*drawn, probed, config(gate))
    assert torch.allclose(found, expected, atol=1e-12)
    certain = Assignments(torch.eye(4).double()[torch.arange(75) % 4].expand(2, 2, 75, 4),
                          groups.key)  # fmt: skip
    certain.query.requires_grad_()
    gated_attention(*drawn, certain, config(gate, gate_probes=3)).sum().backward()
    assert certain.query.grad is not None
    assert bool(certain.query.grad.isfinite().all())


@pytest.mark.parametrize("gate", ["eq2", "log"])
def test_hard_keys_count_in_their_groups_alone_and_learn_softly(gate: str) -> None:
    drawn, groups = tensors(), assignments()
    joined = top_k_groups(groups.key.detach(), 1).double().requires_grad_()
    expected = gated_attention(*drawn, Assignments(groups.query, joined), config(gate))
    found = gated_attention(*drawn, groups, config(gate, gate_keys="hard"))
    assert torch.allclose(found, expected, atol=1e-9)
    wanted = torch.autograd.grad(expected.square().sum(), (groups.query, joined))
    found_grads = torch.autograd.grad(found.square().sum(), groups)
    for one, other in zip(found_grads, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def test_probes_of_hard_keys_in_several_groups_are_refused() -> None:
    several = config("log", top_k=2, gate_keys="hard", gate_probes=2)
    with pytest.raises(ValueError, match=r"^gate_probes:"):
        gated_attention(*tensors(), assignments(), several)


@pytest.mark.parametrize("gate", sorted(GATES))
def test_query_heads_with_assignments_of_their_own(gate: str) -> None:
    (q, k, v), groups = tensors(), assignments(4)
    keys = groups.key[:, :2]
    found = gated_attention(q, k, v, Assignments(groups.query, keys), config(gate))
    k, v, keys = (x.repeat_interleave(2, 1) for x in (k, v, keys))
    expected = gated_attention(q, k, v, Assignments(groups.query, keys), config(gate))
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("gate", ["eq2", "log"])
@pytest.mark.parametrize("routers", [1, 2])
@pytest.mark.parametrize(
    ("tokens", "window", "sinks"),
    [(300, 16, 2), (1, 4, 1), (200, 1, 150), (75, 128, 4), (260, 8, 0)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
def test_gates_in_blocks_are_the_gates_over_all_pairs(
    gate: str,
    routers: int,
    tokens: int,
    window: int,
    sinks: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, h, tokens, 8, generator=generator).to(dtype).requires_grad_()
        for h in (4, 2, 2)
    )
    soft = torch.randn(2, 2, routers, tokens, 4, generator=generator).double().softmax(-1)
    soft = soft.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    own = config(gate, window=window, sinks=sinks)
    out = gated_attention(q, k, v, Assignments(soft[0], soft[1]), own)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, soft)]
    real = torch.ones(2, tokens, dtype=torch.bool)  # with a mask, the definition is taken
    groups = Assignments(wide[3][0], wide[3][1])
    exact = gated_attention(*wide[:3], groups, own, real=real)
    assert (out - exact).norm() <= tolerance * exact.norm()
    flow = torch.randn(out.shape, generator=generator)
    ours = torch.autograd.grad(out, (q, k, v, soft), flow.to(dtype))
    theirs = torch.autograd.grad(exact, wide, flow.double())
    for found, expected in zip(ours, theirs, strict=True):
        assert (found - expected).norm() <= tolerance * (expected.norm() + 0.1)


def test_eq2_halves_and_never_removes_at_zero_affinity() -> None:
    q, k, v = (t.detach() for t in tensors())
    apart = torch.zeros(2, 1, 75, 4, dtype=torch.float64)
    one, other = apart.clone(), apart.clone()
    one[..., 0], other[..., 1] = 1, 1
    out = gated_attention(q, k, v, Assignments(one, other), config("eq2"))
    window = dense_attention(
        q, k, v, one[:, 0].bool(), key_membership=other[:, 0].bool(), window=WINDOW, sinks=SINKS
    )
    assert not torch.allclose(out[:, :, -1], window[:, :, -1], atol=1e-3)


def test_log_gate_tends_to_the_hard_mask() -> None:
    q, k, v = (t.detach() for t in tensors())
    groups = assignments(sharpness=1e5)
    soft = gated_attention(q, k, v, Assignments(*(g.detach() for g in groups)), config("log"))
    hard = dense_attention(
        q, k, v, top_k_groups(groups.query, 1), key_membership=top_k_groups(groups.key, 1),
        window=WINDOW, sinks=SINKS,
    )  # fmt: skip
    assert torch.allclose(soft, hard, atol=1e-9)


def test_straight_through_is_hard_forwards_and_log_backwards() -> None:
    (q, k, v), groups = tensors(), assignments()
    out = gated_attention(q, k, v, groups, config("straight_through"))
    hard = dense_attention(
        q, k, v, top_k_groups(groups.query, 1), key_membership=top_k_groups(groups.key, 1),
        window=WINDOW, sinks=SINKS,
    )  # fmt: skip
    assert torch.allclose(out, hard, atol=1e-12)
    soft = gated_attention(q, k, v, groups, config("log"))
    flow = torch.randn_like(out)
    inputs = (q, k, v, groups.query, groups.key)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, flow), torch.autograd.grad(soft, inputs, flow), strict=True
    ):
        assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("probe", ["symmetric", "multi_probe"])
def test_sparse_log_is_the_log_gate_over_the_top_groups(probe: str) -> None:
    q, k, v = (t.detach() for t in tensors())
    groups = assignments()
    own = config("sparse_log", top_k=2, probe=probe)
    kept = Assignments(groups.query.detach() * top_k_groups(groups.query, 2),
                       groups.key.detach() * top_k_groups(groups.key, own.key_top_k))  # fmt: skip
    out = gated_attention(q, k, v, groups, own)
    assert torch.allclose(out, by_loops("log", q, k, v, kept), atol=1e-12)


def test_sparse_log_over_all_groups_is_the_log_gate() -> None:
    (q, k, v), groups = tensors(), assignments()
    out = gated_attention(q, k, v, groups, config("sparse_log", top_k=4))
    whole = gated_attention(q, k, v, groups, config("log"))
    flow = torch.randn_like(out)
    inputs = (q, k, v, groups.query, groups.key)
    assert torch.allclose(out, whole, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(out, inputs, flow),
                            torch.autograd.grad(whole, inputs, flow), strict=True):  # fmt: skip
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("gate", sorted(GATES))
def test_padding_equals_per_sequence_runs_and_stops_nan(gate: str) -> None:
    q, k, v = (t.detach() for t in tensors())
    groups = Assignments(*(g.detach() for g in assignments()))
    real = torch.ones(2, 75, dtype=torch.bool)
    real[0, :20], real[1, 60:] = False, False
    for tensor in (q, k, v):
        tensor.masked_fill_(~real[:, None, :, None], float("nan"))
        tensor.requires_grad_()
    out = gated_attention(q, k, v, groups, config(gate), real=real)
    for b, span in ((0, slice(20, None)), (1, slice(0, 60))):
        part = [t[b : b + 1, :, span] for t in (q, k, v, groups.query, groups.key)]
        alone = gated_attention(*part[:3], Assignments(*part[3:]), config(gate))
        assert torch.allclose(out[b : b + 1, :, span], alone, atol=1e-12)
    assert not out[0, :, :20].any()
    assert not out[1, :, 60:].any()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_bfloat16_is_within_twice_full_attentions_own_error() -> None:
    def error(low: Tensor, exact: Tensor) -> Tensor:
        return (low.double() - exact).norm() / exact.norm()

    def full(dtype: torch.dtype) -> Tensor:
        q, k, v = tensors(dtype)
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    low = gated_attention(*tensors(torch.bfloat16), assignments(), config("log"))
    assert low.dtype == torch.bfloat16
    ours = error(low, gated_attention(*tensors(), assignments(), config("log")))
    assert ours < 2 * error(full(torch.bfloat16), full(torch.float64))
