"""A forward pass of an attached model against the pretrained one, and against itself."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaAttention

import focus
from focus import FocusConfig
from focus.masks import refuse_four_dimensions
from tests.attention.cases import needs_kernel
from tests.models import ARCHITECTURES, logits, tiny, token_ids
from tests.stepping import CONFIG

# GPT-2 takes absolute positions, so left padding moves its tokens even in the pretrained model.
RELATIVE = [name for name in ARCHITECTURES if name != "tiny-gpt2"]


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("changes", [{"num_groups": 1}, {"top_k": 3}, {"window": 90}])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_limit_cases_are_full_attention(name: str, changes: dict, mode: str) -> None:
    if mode == "soft" and "top_k" in changes:
        pytest.skip("top_k does not enter the soft gate")
    model, ids = tiny(name), token_ids(2, 90)
    reference = logits(model, ids)
    focus.attach(model, CONFIG.replace(**changes), seed=0)
    with focus.mode(model, mode):
        assert torch.allclose(logits(model, ids), reference, atol=2e-5)
    if name != "tiny-mistral":  # whose own window removes pairs
        assert all(share == 1.0 for share in focus.density(model).values())


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("balance", ["sinkhorn", "causal"])
def test_padded_batches_equal_single_sequences(name: str, mode: str, balance: str) -> None:
    model, ids = tiny(name), token_ids(2, 90)
    changes = {"routers": "key_head", "balance": balance}
    focus.attach(model, CONFIG.replace(**changes), seed=0)
    mask = torch.ones(2, 90, dtype=torch.long)
    mask[0, :13], mask[1, -9:] = 0, 0
    with focus.mode(model, mode):
        batch = logits(model, ids, attention_mask=mask)
        for row, span in ((0, slice(13, None)), (1, slice(0, -9))):
            alone = logits(model, ids[row : row + 1, span])
            assert torch.allclose(batch[row : row + 1, span], alone, atol=2e-5)


def test_gemma2_local_layers_stay_as_they_are() -> None:
    model = focus.attach(tiny("tiny-gemma2"), CONFIG, seed=0)
    local, routed = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    assert not hasattr(local, "focus_router")
    assert hasattr(routed, "focus_router")
    logits(model, token_ids(1, 90))
    assert list(focus.density(model)) == [1]


def test_mistrals_own_sliding_window_still_holds() -> None:
    ids = token_ids(1, 90)
    model = tiny("tiny-mistral", sliding_window=20)
    focus.attach(model, CONFIG.replace(sinks=0), seed=0)
    changed = ids.clone()
    changed[:, :40] = 7
    # Two layers see at most 2 * 19 tokens back.
    assert torch.equal(logits(model, ids)[:, 80:], logits(model, changed)[:, 80:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_keeps_all_is_the_pretrained_model(name: str, dtype: torch.dtype) -> None:
    """Two 3-subsets of 4 groups meet: not one logit may change (the identity of Table 7)."""
    model, ids = tiny(name).to(dtype), token_ids(2, 60)
    before = logits(model, ids)
    focus.attach(model, CONFIG.replace(top_k=3), seed=0)
    if name in ("tiny-gemma2", "tiny-mistral"):  # a soft-cap, a window of their own: to rounding
        close = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(logits(model, ids), before, rtol=0, atol=close)
    else:
        assert torch.equal(logits(model, ids), before)


def test_density_is_of_the_last_forward() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.raises(ValueError, match="no forward pass"):
        focus.density(model)
    logits(model, token_ids(1, 90))
    hard = focus.density(model)
    assert all(0 < share < 1 for share in hard.values())
    with focus.mode(model, "hard", top_k=2):
        logits(model, token_ids(1, 90))
        assert all(focus.density(model)[i] > hard[i] for i in hard)
    with focus.mode(model, "full"):
        logits(model, token_ids(1, 90))
    assert set(focus.density(model).values()) == {1.0}


def test_causal_balance_keeps_the_prefix_whatever_follows(name: str) -> None:
    model = focus.attach(tiny(name), CONFIG.replace(routers="key_head"), seed=0)
    ids = token_ids(1, 90)
    other = torch.cat([ids[:, :50], token_ids(1, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend="dense"):
        one = logits(model, ids)
        groups = focus.memberships(model)
        two = logits(model, other)
    for index, found in focus.memberships(model).items():
        assert torch.equal(found.query[..., :50, :], groups[index].query[..., :50, :])
    assert torch.equal(one[:, :50], two[:, :50])


SUFFIX_CONFIGS = {
    "several probes": CONFIG.replace(top_k=2, probe="multi_probe", routers="key_head"),
    "recipe": focus.FocusConfig.recipe(window=8, sinks=2, ngram_keys=2),
}


@pytest.mark.parametrize("config", SUFFIX_CONFIGS.values(), ids=SUFFIX_CONFIGS)
@pytest.mark.parametrize(
    "backend", ["dense", pytest.param("native", marks=needs_kernel), "stripes", "auto"]
)
def test_no_path_lets_a_suffix_change_the_past(backend: str, config: focus.FocusConfig) -> None:
    """Bit for bit by the definition, to rounding otherwise; words that come again included."""
    model, ids = focus.attach(tiny("tiny-llama"), config, seed=0), token_ids(2, 120)
    for router in model.focus_state.routers.values():
        router.potentials.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    ids[:, 60:80] = ids[:, 10:30]
    other = torch.cat([ids[:, :80], token_ids(2, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend=backend):
        one, groups = logits(model, ids), focus.memberships(model)
        two = logits(model, other)
    for index, found in focus.memberships(model).items():
        for side, before in zip(found, groups[index], strict=True):
            assert side is None or torch.equal(side[..., :80, :], before[..., :80, :])
    assert not torch.allclose(one[:, 80:], two[:, 80:], atol=1e-3)
    close = 0.0 if backend == "dense" else 1e-4
    torch.testing.assert_close(one[:, :80], two[:, :80], rtol=0, atol=close)


def test_two_forward_passes_before_one_backward_keep_their_own_keys() -> None:
    """As preference training does it; with n-grams, and checkpointing that runs layers again."""
    config = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
    found = []
    for checkpointed in (False, True):
        model = focus.attach(tiny("tiny-llama"), config, seed=0).train()
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        embedding = model.get_input_embeddings().weight.requires_grad_()
        one, other = token_ids(1, 60, seed=1), token_ids(1, 60, seed=2)
        one[:, -20:], other[:, -20:] = one[:, 5:25], other[:, 9:29]
        losses = [model(ids, labels=ids, use_cache=False).loss for ids in (one, other)]
        (losses[0] - losses[1]).backward()
        found.append(embedding.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_token_type_ids_are_no_token_ids() -> None:
    """GPT-2 looks them up in the same embedding."""
    config = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
    model, ids = focus.attach(tiny("tiny-gpt2"), config, seed=0), token_ids(1, 60)
    ids[:, -20:] = ids[:, 5:25]
    logits(model, ids)
    plain = model.focus_state.last.further
    logits(model, ids, token_type_ids=torch.full_like(ids, 7))
    assert int((plain >= 0).sum()) > 0
    assert torch.equal(model.focus_state.last.further, plain)


def test_a_frozen_base_with_one_trained_projection() -> None:
    """Gradients that flow through values alone, under a soft-cap."""
    model, ids = focus.attach(tiny("tiny-gemma2"), CONFIG, seed=0), token_ids(1, 60)
    weights = [layer.self_attn.v_proj.weight.requires_grad_() for layer in model.model.layers]
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in weights)


def test_flash_attention_gets_no_mask_that_it_would_misread() -> None:
    mask = torch.zeros(2, 1, 3, 8)
    refuse_four_dimensions(mask, "sdpa")
    refuse_four_dimensions(mask[:, 0, 0], "flash_attention_2")
    with pytest.raises(ValueError, match=r"attention_mask: FlashAttention .* dynamic cache"):
        refuse_four_dimensions(mask, "flash_attention_2")


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_bidirectional_pass_is_refused(mode: str) -> None:
    model, ids = tiny("tiny-llama"), token_ids(1, 40)
    plain = logits(model, ids, is_causal=False)
    focus.attach(model, CONFIG, seed=0)
    with focus.mode(model, mode), pytest.raises(ValueError, match=r"^is_causal: "):
        logits(model, ids, is_causal=False)
    with focus.mode(model, "full"):
        assert torch.equal(logits(model, ids, is_causal=False), plain)


class Own(LlamaAttention):
    """In a file that has no eager attention of its own."""


def test_full_mode_finds_the_eager_attention_of_a_parent_class() -> None:
    model, ids = tiny("tiny-llama"), token_ids(1, 40)
    model.set_attn_implementation("eager")
    plain = logits(model, ids)
    for layer in model.model.layers:
        layer.self_attn.__class__ = Own
    focus.attach(model, CONFIG, seed=0)
    with focus.mode(model, "full"):
        assert torch.equal(logits(model, ids), plain)
