"""What torch.compile makes of an attached model: how often its graph breaks."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import focus

CONFIGS = {"plain": focus.FocusConfig(num_groups=8, top_k=1, window=32),
           "recipe": focus.FocusConfig.recipe(window=32)}  # fmt: skip


def breaks(config: focus.FocusConfig, layers: int) -> int:
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": layers}  # fmt: skip
    model = focus.attach(LlamaForCausalLM(LlamaConfig(**sizes)).eval(), config, seed=0)
    torch.compiler.reset()
    with torch.no_grad():
        found: int = torch._dynamo.explain(model)(torch.randint(1, 97, (1, 100))).graph_break_count
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_the_graph_breaks_as_often_as_the_page_says(name: str) -> None:
    """docs/support.md: 13 times in two layers, twice in each further one."""
    assert breaks(CONFIGS[name], 2) <= 13
    assert breaks(CONFIGS[name], 4) <= 17
