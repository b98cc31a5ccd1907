from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize
from transformers import PreTrainedModel

import focus
from focus.initial import Moments, cluster, from_attention, from_hidden, set_router
from tests.models import ARCHITECTURES, tiny, token_ids

TEXT = [token_ids(2, 96, seed) for seed in (0, 1)]


def attached(kind: str = "tiny-llama", **changes: object) -> PreTrainedModel:
    values = {"num_groups": 4, "window": 8, "sinks": 2, **changes}
    return focus.attach(tiny(kind), focus.FocusConfig(**values), seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("routers", ["layer", "key_head", "query_head"])
@pytest.mark.parametrize("space", ["attention", "hidden"])
def test_every_router_starts_from_text(
    kind: str, routers: str, space: Literal["attention", "hidden"]
) -> None:
    model = attached(kind, routers=routers)
    weights = {n: t.clone() for n, t in model.state_dict().items() if "focus_router" not in n}
    drawn = [p.clone() for p in focus.trainable_parameters(model)]
    focus.initialise(model, TEXT, seed=0, space=space)
    for before, after in zip(drawn, focus.trainable_parameters(model), strict=True):
        assert after.isfinite().all()
        assert not torch.equal(before, after)
    for router in model.focus_state.routers.values():
        assert router.potentials.any()
        size = router.projection.square().mean((-2, -1)).sqrt()
        assert torch.allclose(size, torch.full_like(size, 64**-0.5))
    assert all(torch.equal(weights[n], t) for n, t in model.state_dict().items() if n in weights)
    assert model.focus_state.settings.mode == "hard"
    assert model(TEXT[0], use_cache=False).logits.isfinite().all()


def test_the_same_seed_gives_the_same_routers() -> None:
    one, other = (focus.initialise(attached(), TEXT, seed=3) for _ in range(2))
    pairs = zip(focus.trainable_parameters(one), focus.trainable_parameters(other), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def routed_logits(routers: str) -> tuple[Tensor, Tensor]:
    """Logits of a made-up layer of rank 3, and the inner products of its routing space."""
    generator = torch.Generator().manual_seed(0)
    to_query, to_key = (torch.randn(96, 3, generator=generator) for _ in range(2))
    to_key = to_query if routers == "layer" else to_key
    hidden = torch.randn(4, 2000, 96, generator=generator) * torch.linspace(0.2, 2, 96)
    x = layer_norm(hidden, (96,))
    config = focus.FocusConfig(num_groups=4, routing_dim=3, routers=routers)
    router = focus.Router(config, 96, 1, 1)
    moments = Moments()
    with torch.no_grad():
        moments.add(hidden, (x @ to_query).unsqueeze(1), (x @ to_key).unsqueeze(1))
        set_router(router, moments, from_attention(router, moments),
                   torch.Generator().manual_seed(0))  # fmt: skip
        centred = x[0] - x.flatten(0, 1).mean(0)
        wanted = (centred @ to_query) @ (centred @ to_key).T
        found = (centred @ router.projection[0, 0]) @ (centred @ router.projection[-1, 0]).T
    return wanted.flatten(), found.flatten()


@pytest.mark.parametrize("routers", ["layer", "key_head"])
def test_the_routing_space_holds_the_attentions_own_logits(routers: str) -> None:
    wanted, found = routed_logits(routers)
    correlation = torch.corrcoef(torch.stack([wanted, found]))[0, 1]
    assert correlation > 0.9  # blindness to the mean costs one direction of 96


@pytest.mark.parametrize("routers", ["layer", "key_head"])
def test_clusters_of_hidden_states_are_groups(routers: Literal["layer", "key_head"]) -> None:
    """On all sides the same, none with tokens of two kinds, whatever all tokens share."""
    generator = torch.Generator().manual_seed(0)
    shared, own = torch.randn(1, 96, generator=generator), torch.randn(3, 96, generator=generator)
    kinds = torch.arange(600) % 3
    hidden = 3 * shared + own[kinds] + 0.1 * torch.randn(600, 96, generator=generator)
    config = focus.FocusConfig(num_groups=8, routing_dim=32, routers=routers)
    router = focus.Router(config, 96, 1, 1, generator)
    moments, rows = Moments(), torch.randn(1, 1, 600, 16, generator=generator)
    with torch.no_grad():
        moments.add(hidden[None], rows, rows)
        set_router(router, moments, from_hidden(router, moments), generator)
        groups = router.scores(hidden[None])[0, :, 0].argmax(-1)
        routed = normalize(layer_norm(hidden, (96,)) @ router.projection[-1, 0], dim=-1)
    assert all(torch.equal(side, groups[0]) for side in groups)
    met = {(int(kind), int(group)) for kind, group in zip(kinds, groups[0], strict=True)}
    assert len(met) == len({group for _, group in met}) >= 3
    assert (routed @ routed.T).mean() < 0.1  # 0.9 with what all tokens share


def test_clusters_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(5, 16, generator=generator), dim=-1)
    points = centres.repeat(200, 1) + 0.02 * torch.randn(1000, 16, generator=generator)
    found = cluster(normalize(points, dim=-1), 5, torch.Generator().manual_seed(1))
    assert torch.allclose(found.norm(dim=-1), torch.ones(5))
    near = (centres @ found.T).amax(0)  # two starts may share a cluster; none may lie between
    assert (near > 0.99).sum() >= 4


def test_what_cannot_start_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^space: must be one of attention, hidden, got 'keys'"):
        focus.initialise(attached(), TEXT, space="keys")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^model: Focus is not attached"):
        focus.initialise(tiny("tiny-llama"), TEXT)
    with pytest.raises(ValueError, match=r"^routers: the paper's raw dot"):
        focus.initialise(attached(routers="paper"), TEXT)
    with pytest.raises(ValueError, match=r"^batches: 4 tokens are too few for 4 groups"):
        focus.initialise(attached(), [token_ids(1, 4)])
    with pytest.raises(ValueError, match=r"^batches: .*one token.* no distant pair"):
        focus.initialise(attached(), [token_ids(8, 1)])
    with pytest.raises(ValueError, match=r"^batches: 0 tokens are too few"):
        focus.initialise(attached(), [])
