import pytest
import torch
from torch import Tensor

from focus.attention import stairs
from focus.attention.weighted import weighted_attention

# batch, query heads, key heads, routings, tokens, groups, window, sinks, groups of query and of key
CASES = {
    "one_routing": (1, 3, 1, 1, 200, 4, 16, 2, 1, 1),
    "multi_probe": (2, 6, 2, 2, 333, 5, 16, 4, 2, 1),
    "shorter_than_the_window": (2, 6, 2, 1, 100, 3, 128, 4, 2, 2),
    "no_sinks": (1, 6, 2, 2, 300, 5, 16, 0, 2, 2),
    "window_of_one": (1, 4, 2, 2, 150, 5, 1, 4, 2, 2),
    "one_token": (1, 2, 1, 1, 1, 2, 4, 1, 1, 1),
    "groups_left_empty": (1, 2, 2, 1, 90, 60, 8, 1, 1, 1),
    "more_sinks_than_tokens": (1, 2, 1, 1, 5, 2, 1, 9, 1, 1),
}


def operands(case: str, dtype: torch.dtype) -> list[Tensor]:
    batch, heads, key_heads, routings, tokens, groups, _, _, of_query, of_key = CASES[case]
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def logs(most: int) -> Tensor:
        log = drawn(batch, routings, tokens, groups).log_softmax(-1)
        kept = torch.zeros_like(log, dtype=torch.bool)
        kept.scatter_(-1, log.topk(most, -1).indices, True)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return log.masked_fill(~kept, -torch.inf).to(wide).requires_grad_()

    size = [(heads, 8), (key_heads, 8), (key_heads, 8)]
    tensors = [drawn(batch, h, tokens, d).to(dtype).requires_grad_() for h, d in size]
    return [*tensors, logs(of_query), logs(of_key)]


def definition(case: str, tensors: list[Tensor]) -> Tensor:
    window, sinks = CASES[case][6:8]
    query, key, value, query_log, key_log = (x.double() for x in tensors)
    heads, tokens = query.shape[1:3]
    weight = query_log.exp() @ key_log.exp().transpose(-1, -2)
    position = torch.arange(tokens)
    distance = position[:, None] - position
    weight = torch.where((distance < window) | (position < sinks), 1.0, weight) * (distance >= 0)
    key, value, weight = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value, weight))
    logits = query @ key.transpose(-1, -2) * 0.3
    raised = weight * (logits - logits.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True) @ value


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)],
)
def test_outputs_and_gradients_are_the_definitions(
    case: str, dtype: torch.dtype, tolerance: float
) -> None:
    tensors = operands(case, dtype)
    out = weighted_attention(*tensors, window=CASES[case][6], sinks=CASES[case][7], scale=0.3)
    exact = definition(case, tensors)
    assert out.dtype == dtype
    assert (out - exact).norm() <= tolerance * exact.norm()
    flow = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(out, tensors, flow.to(dtype))
    theirs = torch.autograd.grad(exact, tensors, flow)
    for found, expected in zip(ours, theirs, strict=True):
        assert found.isfinite().all()
        assert (found - expected).norm() <= tolerance * (expected.norm() + 0.1)


def test_long_lists_take_two_calls_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    case, tensors = "multi_probe", operands("multi_probe", torch.float64)
    whole = weighted_attention(*tensors, window=16, sinks=4, scale=0.3)
    monkeypatch.setattr(stairs, "RECTANGLE", 16)
    parted = weighted_attention(*tensors, window=16, sinks=4, scale=0.3)
    flow = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1)).double()
    assert torch.allclose(parted, definition(case, tensors), atol=1e-12)
    for one, other in zip(torch.autograd.grad(whole, tensors, flow),
                          torch.autograd.grad(parted, tensors, flow), strict=True):  # fmt: skip
        assert torch.allclose(one, other, atol=1e-12)


def test_nan_weights_do_not_pass_for_no_group() -> None:
    tensors = operands("one_routing", torch.float32)
    with torch.no_grad():
        tensors[3][0, 0, 150] = torch.nan
    out = weighted_attention(*tensors, window=16, sinks=2, scale=0.3)
    assert out[:, :, 150].isnan().all()


def test_nothing_of_tokens_by_tokens_is_kept() -> None:
    tokens = 8192
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, 1, tokens, 16, generator=generator, requires_grad=True) for _ in range(3)
    )
    log = torch.randn(1, 1, tokens, 32, generator=generator).log_softmax(-1)
    kept = torch.zeros_like(log, dtype=torch.bool).scatter_(-1, log.argmax(-1, keepdim=True), True)
    log = log.masked_fill(~kept, -torch.inf).requires_grad_()
    profiler = torch.profiler.profile(profile_memory=True)
    with profiler:
        out = weighted_attention(query, key, value, log, log, window=64, sinks=4, scale=0.25)
        out.sum().backward()
    largest = max(event.self_cpu_memory_usage for event in profiler.events())
    assert 0 < largest < tokens * tokens * 4 / 16  # bytes of a float32 matrix
