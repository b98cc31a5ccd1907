"""A tiny attached model, and what clients ask of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import focus
from focus import FocusConfig
from tests.models import tiny, token_ids

CONFIG = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
Found = tuple[Tensor, Tensor]


def ids(batch: int = 2, tokens: int = 60) -> Tensor:
    """Token ids in which a passage comes twice, so that n-grams are found."""
    found = token_ids(batch, tokens)
    found[:, -15:] = found[:, 5:20]
    return found


def attached(config: FocusConfig = CONFIG, **changes: Any) -> PreTrainedModel:
    """A tiny model with routers whose groups are of mixed size."""
    return with_potentials(focus.attach(tiny("tiny-llama", **changes), config, seed=0))


def with_potentials(model: Any) -> Any:
    """Gives every router potentials, the same for the same layer."""
    for index, router in focus.state.attached(model).routers.items():
        router.potentials.normal_(generator=torch.Generator().manual_seed(index)).mul_(0.1)
    return model


@torch.no_grad()
def logits(model: Any, mode: str, input_ids: Tensor | None = None, **kwargs: Any) -> Tensor:
    """Logits of a whole sequence."""
    with focus.mode(model, mode):
        return model(ids() if input_ids is None else input_ids, use_cache=False, **kwargs).logits


def gradients(model: Any, mode: str, backward_inside: bool = True) -> Tensor:
    """Of what is trained in that mode, flat: the routers in soft mode, else the first embedding."""
    inner = focus.state.transformers_model(model)
    embedding = inner.get_input_embeddings().weight
    if mode == "soft":
        wanted = list(focus.trainable_parameters(model))
    else:
        wanted = [embedding.requires_grad_()]
    model.zero_grad()
    with focus.mode(model, mode):
        loss = model(ids(), labels=ids(), use_cache=False).loss
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    return torch.cat([p.grad.float().flatten() for p in wanted])


def restore(model: Any, other: Any) -> None:
    here, there = (focus.state.attached(each).routers for each in (model, other))
    for index, router in here.items():
        router.load_state_dict(there[index].state_dict())


def lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], r=2))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    return wrapped


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for each token id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {**{f"w{i}": i for i in range(256)}, "<end>": 256}
    own = Tokenizer(models.WordLevel(words, unk_token="w0"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>",
                                   pad_token="<end>")  # fmt: skip


def text(tokens: Tensor) -> str:
    return " ".join(f"w{int(token)}" for token in tokens)
