"""Peak memory of real training steps on the CPU, for a process of its own.

What is printed is the most that the process ever held (resident, as the kernel counts it) above
what it held before there was a model. The allocator's own waste is in it. Weights are random.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM

import focus
from experiments.costs import shapes
from experiments.regimes.base import next_token_loss


def main(name: str, batch: int, context: int, all_weights: bool) -> None:
    """Prints the bytes of steps of routers, or of all weights, too."""
    torch.set_num_threads(1)
    # Whatever is freed goes back at once, as it would into the caching allocator of a GPU.
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    steps(focus.FocusConfig.recipe(), "tiny-llama", 1, 32)  # builds and loads what is compiled
    before = psutil.Process().memory_info().rss
    steps(focus.FocusConfig.recipe(), name, batch, context, all_weights)
    print(peak() - before)


def peak() -> int:
    """Most bytes that this process held. getrusage would count those of the process it was forked
    from, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (each for each in status if each.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def steps(routed: focus.FocusConfig, name: str, batch: int, context: int,
          all_weights: bool = False) -> None:  # fmt: skip
    """Two steps of AdamW on the routers, or all parameters, under the log gate, in float32: the
    optimiser's state is there from the second on."""
    model = AutoModelForCausalLM.from_config(shapes.config(name)).eval()
    focus.attach(model, routed)
    for router in focus.state.attached(model).routers.values():
        router.train()
    trained = focus.trainable_parameters(model)
    if all_weights:
        trained = list(model.requires_grad_().parameters())
    optimizer = torch.optim.AdamW(trained)
    ids = torch.randint(model.config.vocab_size, (batch, context))
    for _ in range(2):
        with focus.mode(model, "soft"):
            next_token_loss(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
