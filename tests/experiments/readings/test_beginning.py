"""From a shared beginning on, logits are those of a pass over the whole text."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import focus
from experiments.readings.benchmarks import LEAST, Beginning
from tests.models import tiny


def texts() -> list[tuple[Tensor, int]]:
    """Texts (1, T), and how many of their tokens the one before does not begin with."""
    drawn = torch.Generator().manual_seed(0)
    whole = torch.randint(3, 200, (1, LEAST + 40), generator=drawn)
    other = torch.randint(3, 200, (1, 12), generator=drawn)
    branch = torch.cat([whole[:, : LEAST + 20], other], 1)
    return [(whole, LEAST + 40), (branch, 12), (branch[:, : LEAST + 5], 1), (other, 12),
            (whole, LEAST + 40), (whole, 1)]  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
def test_logits_are_those_of_the_whole_text(masked: bool) -> None:
    model = tiny("tiny-llama").eval()
    if masked:
        config = focus.FocusConfig(num_groups=4, window=8, sinks=2, ngram=2)
        focus.attach(model, config, seed=0)
    ran: list[int] = []
    words = next(each for each in model.modules() if isinstance(each, nn.Embedding))
    words.register_forward_hook(lambda module, args, found: ran.append(args[0].shape[1]))
    beginning = Beginning(model)
    with focus.mode(model, "hard") if masked else nullcontext(), torch.no_grad():
        for text, new in texts():
            found = beginning.logits_of(text)
            assert ran.pop() == new
            wanted = model(text, use_cache=False).logits
            ran.clear()
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
            if new == text.shape[1]:
                assert torch.equal(found, wanted)
