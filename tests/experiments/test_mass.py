import gc
import math
import weakref

import pytest
import torch

import focus
from experiments.mass import mass_left_out, mass_loss
from tests.models import tiny, token_ids


def attached(kind: str = "tiny-llama", **changes: object) -> torch.nn.Module:
    values = {"num_groups": 4, "window": 8, "sinks": 2, **changes}
    model = focus.attach(tiny(kind), focus.FocusConfig(**values), seed=0)  # type: ignore[arg-type]
    for router in model.focus_state.routers.values():
        router.train()
    return model


@pytest.mark.parametrize("routings", [(1, 1), (2, 2), (4, 2)])  # of queries, of keys
def test_it_is_the_logarithm_of_the_weight_that_groups_keep(routings: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 20, 8, generator=generator) for heads in (4, 2))
    own, others = (torch.rand(2, heads, 20, 3, generator=generator) for heads in routings)
    missed, total = 0.0, 0.0
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(20)):
        weights = (query[b, h, i] @ key[b, h // 2, : i + 1].T * 0.3).softmax(-1)
        of_query = own[b, h * len(own[0]) // 4, i]
        of_keys = others[b, h * len(others[0]) // 4]
        distant = [j for j in range(2, int(i) + 1) if i - j >= 4]
        if distant:
            mass = weights[distant].sum()
            kept = sum(weights[j] * (of_query @ of_keys[j]) for j in distant)
            missed += float(mass * torch.log(mass / kept))
            total += float(mass)
    config = focus.FocusConfig(num_groups=3, window=4, sinks=2)
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float64, 1e-5)):
        found = mass_left_out(query.to(dtype), key.to(dtype), own, others, config, 0.3)
        assert found.dtype == torch.float32
        assert float(found) == pytest.approx(missed / total, rel=close)


@pytest.mark.parametrize("kind", ["tiny-gpt2", "tiny-llama"])
def test_without_preferences_it_is_the_logarithm_of_the_number_of_groups(kind: str) -> None:
    model = attached(kind)
    for router in model.focus_state.routers.values():
        router.centroids.data.zero_()  # every token belongs to all groups alike
    loss = mass_loss(model, token_ids(2, 40)).detach()
    assert float(loss) == pytest.approx(math.log(4), rel=1e-5)


def test_groups_count_as_gates_count_them() -> None:
    """Of several draws one is likelier to hit a group; a hard key counts in one group alone."""
    found = {}
    for top_k, probe in ((2, "symmetric"), (1, "multi_probe"), (2, "multi_probe")):
        model = attached(top_k=top_k, probe=probe, routers="key_head")
        for router in model.focus_state.routers.values():
            router.centroids.data[:-1].zero_()  # queries belong to all groups alike
        found[top_k, probe] = float(mass_loss(model, token_ids(2, 40)).detach())
    assert found[2, "symmetric"] == pytest.approx(math.log(4), rel=1e-5)
    assert found[1, "multi_probe"] == pytest.approx(math.log(4), rel=1e-5)
    assert found[2, "multi_probe"] == pytest.approx(-math.log(1 - 0.75**2), rel=1e-5)


@pytest.mark.parametrize("how", [
    {}, {"top_k": 2, "routers": "query_head", "probe": "multi_probe"},
])  # fmt: skip
def test_routers_learn_from_it_and_nothing_else_changes(how: dict[str, object]) -> None:
    model = attached(**{"window": 4, "routers": "key_head", **how})
    ids = token_ids(2, 64)
    frozen = {n: t.clone() for n, t in model.state_dict().items() if "focus_router" not in n}
    optimizer = torch.optim.AdamW(focus.trainable_parameters(model), lr=0.01)
    losses = []
    for _ in range(30):
        loss = mass_loss(model, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.2
    assert all(torch.equal(frozen[n], t) for n, t in model.state_dict().items() if n in frozen)


def test_a_step_moves_the_potentials_once() -> None:
    """The checkpointed part is computed twice, the router once."""
    model, other, ids = attached(), attached(), token_ids(1, 40)
    mass_loss(model, ids).backward()
    mass_loss(other, ids)
    for one, two in zip(model.focus_state.routers.values(), other.focus_state.routers.values(),
                        strict=True):  # fmt: skip
        assert int(one.batches) == 1
        assert torch.equal(one.potentials, two.potentials)


def test_without_gradients_nothing_is_kept_for_them() -> None:
    model, ids = attached(), token_ids(1, 40)
    with torch.no_grad():
        assert not mass_loss(model, ids).requires_grad
    assert all(int(router.batches) == 0 for router in model.focus_state.routers.values())


def test_a_loss_that_is_dropped_leaves_nothing_behind() -> None:
    model = attached()
    mass_loss(model, token_ids(1, 40))
    gone = [weakref.ref(p) for p in focus.trainable_parameters(model)]
    del model
    gc.collect()
    assert gone
    assert all(ref() is None for ref in gone)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^retrofit.hard_from: the loss 'mass' runs no gate"):
        mass_loss(attached(), token_ids(1, 20), gate="straight_through")
    with pytest.raises(ValueError, match=r"^input_ids: 8 tokens have no pair beyond"):
        mass_loss(attached(), token_ids(1, 8))
    model = attached("tiny-gemma2")
    former, hooks = model.focus_state.implementation, hooked(model)
    with pytest.raises(ValueError, match=r"^retrofit.loss: .*without sliding windows and soft-cap"):
        mass_loss(model, token_ids(1, 20))
    assert (model.focus_state.implementation, hooked(model)) == (former, hooks)


def hooked(model: torch.nn.Module) -> int:
    """How many pre-hooks wait on its modules."""
    return sum(len(module._forward_pre_hooks) for module in model.modules())
