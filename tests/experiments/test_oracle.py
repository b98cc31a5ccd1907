import pytest
import torch

import focus
from experiments.oracle import heaviest, oracle
from tests.models import tiny, token_ids


def attached(kind: str = "tiny-llama") -> torch.nn.Module:
    return focus.attach(tiny(kind), focus.FocusConfig(num_groups=4, window=8), seed=0)


@pytest.mark.parametrize("each_head", [False, True])
def test_the_heaviest_distant_keys_are_kept(each_head: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 40, 8, generator=generator) for heads in (4, 2))
    kept = heaviest(query, key, 0.3, 0.25, window=4, sinks=2, each_head=each_head)
    assert kept.shape == (1, 4 if each_head else 2, 40, 40)
    assert not kept.triu(1).any()
    logits = query.unflatten(1, (2, 2)) @ key.unsqueeze(2).transpose(-1, -2) * 0.3
    future = torch.ones(40, 40, dtype=torch.bool).triu(1)
    every = logits.masked_fill(future, -torch.inf).softmax(-1)
    weights = every.flatten(1, 2) if each_head else every.mean(2)
    for head in range(kept.shape[1]):
        for i in (5, 20, 39):
            distant = range(2, i - 3)
            own = {j for j in distant if kept[0, head, i, j]}
            assert len(own) == round(0.25 * len(distant))
            rest = [weights[0, head, i, j] for j in distant if j not in own]
            assert all(weights[0, head, i, j] >= max(rest) for j in own)
            assert kept[0, head, i, :2].all()
            assert kept[0, head, i, i - 3 : i + 1].all()


def test_a_choice_for_each_query_head_keeps_as_many_pairs_of_more_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 60, 8, generator=generator) for heads in (4, 2))
    shared, own = (
        heaviest(query, key, 1.0, 0.2, window=4, sinks=2, each_head=each) for each in (False, True)
    )
    shared = shared.repeat_interleave(2, 1)  # query heads of a key head stand side by side
    assert own.sum(-1).equal(shared.sum(-1))
    logits = query @ key.repeat_interleave(2, 1).transpose(-1, -2)
    future = torch.ones(60, 60, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    more = (weights * own).sum(-1) - (weights * shared).sum(-1)
    assert (more > -1e-5).all()
    assert more.mean() > 0.01


@pytest.mark.parametrize("each_head", [False, True])
def test_with_all_pairs_it_is_the_pretrained_model(each_head: bool) -> None:
    model, ids = attached(), token_ids(2, 60)
    with torch.no_grad():
        with focus.mode(model, "full"):
            wanted = model(ids, use_cache=False).logits
        with oracle(model, 1.0, 8, 4, each_head):
            found = model(ids, use_cache=False).logits
        with oracle(model, 0.1, 8, 0, each_head):
            assert not torch.allclose(model(ids, use_cache=False).logits, wanted, atol=1e-3)
    assert model.focus_state.settings.mode == "hard"
    assert torch.allclose(found, wanted, atol=1e-5)


def test_what_it_cannot_do_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"^share: must be between 0 and 1, got 2"),
        oracle(attached(), 2.0, 8, 4),
    ):
        pass
    model, mask = attached(), torch.ones(1, 20, dtype=torch.int64)
    mask[0, :3] = 0
    with oracle(model, 0.5, 8, 4), pytest.raises(ValueError, match=r"^oracle: .*without padding"):
        model(token_ids(1, 20), attention_mask=mask, use_cache=False)
