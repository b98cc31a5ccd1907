"""Which models qualify by their structure, and what the others are told."""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, BartConfig, BartForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

import focus
from focus import architectures
from focus.architectures import attention_layers
from focus.call import running
from tests.models import SUPPORTED, UNSUPPORTED, build, tiny, token_ids

LOCAL = {"gemma2": [0], "gemma3": [0, 1, 2, 3, 4], "gemma3-vision": [0, 1, 2, 3, 4],
         "gemma4": [0, 2]}  # fmt: skip


def probe(model: PreTrainedModel) -> None:
    architectures.probe(model, attention_layers(model))


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_model_with_self_attention_in_every_layer_qualifies(name: str) -> None:
    model = build(name)
    layers = attention_layers(model)
    text = model.config.get_text_config()
    assert [layer.index for layer in layers] == list(range(text.num_hidden_layers))
    assert [layer.index for layer in layers if layer.local] == LOCAL.get(name, [])
    grouped = name not in ("gpt2", "gpt_neox", "olmo2", "opt")
    assert {(la.hidden_size, la.query_heads, la.key_heads) for la in layers} == {
        (64, 4, 2 if grouped else 4)
    }
    probe(model)


@pytest.mark.parametrize(("name", "reason"), UNSUPPORTED.items())
def test_the_others_are_told_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)not supported: .*{reason}"):
        probe(build(name))


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_attaches_computes_what_it_computed(name: str) -> None:
    """In full mode, padded as well; and in hard mode from a cache what it computes without."""
    model, ids = build(name), token_ids(2, 90).clamp(max=250)
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    with torch.no_grad():
        plain = [model(ids).logits, model(ids, attention_mask=mask).logits]
        focus.attach(model, focus.FocusConfig.recipe(num_groups=4, window=16), seed=0)
        with focus.mode(model, "full"):
            assert torch.equal(model(ids).logits, plain[0])
            assert torch.equal(model(ids, attention_mask=mask).logits, plain[1])
        whole = model(ids, use_cache=False).logits
        assert not torch.allclose(whole, plain[0], atol=1e-3)
        first = model(ids[:, :60], use_cache=True)
        rest = [model(ids[:, 60:61], past_key_values=first.past_key_values),
                model(ids[:, 61:], past_key_values=first.past_key_values)]  # fmt: skip
        found = torch.cat([first.logits, *(each.logits for each in rest)], 1)
        assert torch.allclose(found, whole, atol=1e-4)


def test_an_interrupted_pass_leaves_nothing_to_the_next() -> None:
    """torch runs no hook after Ctrl-C, so that the pass is not ended: in a context of its own."""
    contextvars.copy_context().run(interrupted_and_again)


def interrupted_and_again() -> None:
    model, ids = build("gemma3-vision"), token_ids(1, 60).clamp(max=250)
    focus.attach(model, focus.FocusConfig.recipe(num_groups=4, window=16), seed=0)
    with torch.no_grad(), focus.mode(model, "full"):
        plain = model(ids).logits

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    handle = model.get_decoder().norm.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(ids[:, :30])
    handle.remove()
    with torch.no_grad(), focus.mode(model, "full"):
        decoded = model.get_decoder()(input_ids=ids).last_hidden_state  # by itself, too
        assert torch.equal(model.lm_head(decoded), plain)
        assert torch.equal(model(ids).logits, plain)
    assert running.get() is None


def test_a_cache_by_a_name_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focus.hooks.CACHE", ("past_key_values",))
    model = focus.attach(build("gpt_neox"), focus.FocusConfig(window=8), seed=0)
    with pytest.raises(ValueError, match=r"1 queries over 13 keys, and no cache that Focus knows"):
        model.generate(token_ids(1, 12), max_new_tokens=3)


def test_more_layers_than_the_config_says() -> None:
    config = BartConfig(vocab_size=257, d_model=64, encoder_layers=2, decoder_layers=3,
                        decoder_attention_heads=4, decoder_ffn_dim=96)  # fmt: skip
    with pytest.raises(ValueError, match=r"attention in layers \[2\], and by its config 2 layers"):
        attention_layers(BartForCausalLM(config))


def test_heads_are_those_of_the_layer_itself() -> None:
    model = build("llama")
    layer = model.model.layers[1].self_attn
    layer.q_proj, layer.o_proj = nn.Linear(64, 8 * 16), nn.Linear(8 * 16, 64)
    assert [found.query_heads for found in attention_layers(model)] == [4, 8]
    probe(model)


def test_the_probe_leaves_no_trace() -> None:
    model = build("llama").train()
    model.config.attention_dropout = 0.5
    ids, interfaces = token_ids(1, 20), set(AttentionInterface._global_mapping)
    state = torch.get_rng_state()
    before = copy.deepcopy(model).eval()(ids).logits
    probe(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert set(AttentionInterface._global_mapping) == interfaces
    assert torch.equal(model.eval()(ids).logits, before)


def test_nothing_is_run_without_weights() -> None:
    with torch.device("meta"):
        model = build("llama")
    probe(model)


def test_a_probe_runs_offloaded_weights() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build("llama")
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    ran = []
    model.model.layers[1].register_forward_hook(lambda *_: ran.append(True))
    probe(model)
    assert ran == [True]


def replaced(forward: Callable[..., tuple[Tensor, Tensor | None]]) -> PreTrainedModel:
    """A tiny llama whose second attention module runs another forward."""
    model = build("llama")
    module = model.model.layers[1].self_attn
    module.__class__ = type("OtherAttention", (LlamaAttention,), {"forward": forward})
    return model


def test_a_module_that_drops_keywords_is_refused() -> None:
    def forward(self: LlamaAttention, hidden_states: Tensor, **kwargs: object):
        kept = {k: v for k, v in kwargs.items() if not k.startswith("focus")}
        return LlamaAttention.forward(self, hidden_states, **kept)  # type: ignore[arg-type]

    refused(forward, "OtherAttention 1 does not pass further keywords")


def test_a_module_that_attends_twice_or_not_at_all_is_refused() -> None:
    def twice(self: LlamaAttention, hidden_states: Tensor, **kwargs: object):
        LlamaAttention.forward(self, hidden_states, **kwargs)  # type: ignore[arg-type]
        return LlamaAttention.forward(self, hidden_states, **kwargs)  # type: ignore[arg-type]

    def never(self: LlamaAttention, hidden_states: Tensor, **kwargs: object):
        return hidden_states, None

    refused(twice, "OtherAttention 1 called the attention interface 2 times")
    refused(never, "OtherAttention 1 called the attention interface 0 times")


def test_a_further_tensor_is_refused_by_its_name() -> None:
    def forward(self: LlamaAttention, hidden_states: Tensor, **kwargs: object):
        bias = torch.zeros(1)
        return LlamaAttention.forward(self, hidden_states, logit_bias=bias, **kwargs)  # type: ignore[arg-type]

    refused(forward, "further tensors: logit_bias")


def test_other_shapes_than_declared_are_refused() -> None:
    def forward(self: LlamaAttention, hidden_states: Tensor, **kwargs: object):
        twice = LlamaAttention.forward(self, hidden_states.repeat(2, 1, 1), **kwargs)  # type: ignore[arg-type]
        return twice[0][:1], None

    refused(forward, r"OtherAttention 1 hands over a query of \(2, 4, 4, 16\)")


def refused(forward: Callable[..., tuple[Tensor, Tensor | None]], reason: str) -> None:
    model = replaced(forward)
    interfaces = set(AttentionInterface._global_mapping)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("focus.architectures._hands_over", lambda m: isinstance(m, LlamaAttention))
        with pytest.raises(ValueError, match=reason):
            probe(model)
    assert model.config._attn_implementation == "sdpa"
    assert set(AttentionInterface._global_mapping) == interfaces


def test_tiny_models_of_the_suite_qualify() -> None:
    for name in ("tiny-gpt2", "tiny-mistral", "tiny-gemma2"):
        probe(tiny(name))
