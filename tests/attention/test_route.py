"""Memberships by one call, the compiled one or Triton's, are those of the logits."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from focus import FocusConfig, Router
from focus.groups import Memberships, memberships_of, of_queries, with_heavy
from tests.attention.rehearsal import routed_by_triton

HIDDEN = 24


def hidden(batch: int, tokens: int) -> torch.Tensor:
    return torch.randn(batch, tokens, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[nullcontext, routed_by_triton], ids=["native", "triton"])
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiled call for CPU, or Triton's by its interpreter."""
    if request.param is routed_by_triton:
        pytest.importorskip("triton", reason="Triton is not installed")
    with request.param():
        yield


def test_triton_takes_groups_as_they_are_allocated() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    config = FocusConfig(num_groups=5, top_k=2, routers="query_head", probe="multi_probe")
    layer, states = Router(config, HIDDEN, 2, 6), hidden(2, 70)
    layer.take(taken_at=torch.tensor([[1.0, k, 3, 4, 5] for k in (1, 2, 2, 1, 3, 2)]))
    config = config.replace(allocated=True)
    wanted = memberships_of(layer(states), config, layer.taken_at)
    assert len(wanted.query.sum(-1).unique()) > 1
    with routed_by_triton():
        assert torch.equal(layer(states, mask=config).query, wanted.query)


@pytest.mark.parametrize(("routers", "balance"), [
    *((routers, "causal") for routers in ("layer", "key_head", "query_head", "paper")),
    ("query_head", "softmax"),
])  # fmt: skip
@pytest.mark.parametrize(("top_k", "probe", "tokens", "heavy"), [
    (1, "symmetric", 70, 0.1), (3, "symmetric", 5, 0.0), (3, "symmetric", 1, 0.1),
    (2, "multi_probe", 70, 0.1), (2, "multi_probe", 1, 0.0), (2, "multi_probe", 5, 0.1),
])  # fmt: skip
@pytest.mark.usefixtures("compiled")
def test_compiled_memberships_are_those_of_the_logits(
    routers: str, balance: str, top_k: int, probe: str, tokens: int, heavy: float
) -> None:
    config = FocusConfig(num_groups=7, top_k=top_k, probe=probe, routers=routers, balance=balance,
                         heavy_hitters=heavy)  # type: ignore[arg-type]  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    layer = Router(config, HIDDEN, 2, 6, draw)
    layer.potentials.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.2)
    states = hidden(3, tokens)
    found, wanted = layer(states, mask=config), memberships_of(layer(states), config)
    if heavy:
        heads = layer.centroids.shape[1]
        layer.take(heavy_weight=torch.randn(heads, HIDDEN, generator=draw),
                   heavy_bias=torch.full((heads,), -1.0))  # fmt: skip
        found, flags = layer(states, mask=config), layer.heavy(states)
        assert not flags.all()
        assert flags.any()
        wanted = Memberships(*with_heavy(wanted.query, wanted.of_keys, flags))
    assert torch.equal(found.query, wanted.query)
    assert torch.equal(found.of_keys, wanted.of_keys)
    assert (found.key is None) == (wanted.key is None)


@pytest.mark.parametrize("routers", ["layer", "query_head", "paper"])
def test_groups_of_bfloat16_states_differ_where_two_are_alike_alone(routers: str) -> None:
    config = FocusConfig(num_groups=7, top_k=2, routers=routers)  # type: ignore[arg-type]
    layer = Router(config, 64, 2, 6, torch.Generator().manual_seed(0))  # on AMX, where there is any
    states = torch.randn(3, 500, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits = layer(states.double(), balance="causal")
    found, exact = layer(states, mask=config), memberships_of(logits, config)
    best = logits.sort(-1, descending=True).values * config.temperature
    clear = (best[..., 1] - best[..., 2] > 1e-5).unsqueeze(-1)
    assert clear.float().mean() > 0.99
    queries = of_queries(clear)
    assert torch.equal(found.query & queries, exact.query & queries)
    assert torch.equal(found.of_keys & clear[:, -1], exact.of_keys & clear[:, -1])
