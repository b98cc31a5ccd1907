"""Stage training_step: a whole training step of the model, forward and backward, on a long text.

The stage training times the attention alone. Here the frozen model takes the loss of its next
tokens and its gradient: with full attention, and through each gate with fresh routers on every
layer, taking turns on the same text. The optimiser's step, over the routers alone, is left out.

All methods do the same beside the attention. The gradient goes back to the embedded text in each,
so that full attention too, which has nothing to train, is differentiated in every layer, as it must
be for anything that is trained in the first. Every layer keeps its input alone and runs again in
the backward pass (gradient checkpointing), and so does every stretch of PIECE logits.

`python -m experiments.stages.training_step` writes results/training_step/table.csv and
metrics.json.

Shapes: T tokens, E model dimension.
"""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

import focus
from experiments import models, settings, timing
from experiments.data import load_split
from experiments.kernel_settings import TrainingStepSettings
from experiments.record import Run
from experiments.settings import Settings
from focus.density import PairCounts

FULL = "full"
WARM_UP = 512  # tokens of each method's untimed step before those of a length
PIECE = 1024  # positions whose logits are held at a time: of 49,152 words in float32, 192 MiB


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("training_step", None, chosen) as run:
        training_step(run, chosen)


def training_step(run: Run, chosen: Settings) -> None:
    """Times every length of ``training_step``.

    Raises:
        ValueError: the training books are shorter than a length, or no gate is timed at one.
    """
    plan, rows = chosen.training_step, []
    run.dtype = plan.dtype
    text = torch.cat([document.tokens for document in load_split("train")])
    if len(text) < max(plan.lengths):
        raise ValueError(
            f"training_step.lengths: the training books have only {len(text)} tokens in all"
        )
    model = prepared(chosen.model.name, plan, chosen.seed)
    for length in plan.lengths:
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"training_step: {length} tokens", flush=True)
        rows += compare(model, text[:length].unsqueeze(0).to(model.device), plan)
    run.table(pd.DataFrame(rows), "table.csv")
    for row in rows:
        if row["method"] != FULL:
            name = f"{row['method']}.{row['length']}"
            ends = (row["speedup_low"], row["speedup_high"]) if row["repetitions"] > 1 else ()
            run.metric(f"{name}.speedup", row["speedup"], *ends, n=row["repetitions"])
            run.metric(f"{name}.density", row["density"])
    run.note("seed", chosen.seed)


def prepared(name: str, plan: TrainingStepSettings, seed: int) -> PreTrainedModel:
    """A model with fresh routers as the recipe has them, ready for checkpointed steps."""
    model, _ = models.load(name, plan.dtype)
    config = focus.FocusConfig.recipe(num_groups=plan.groups, top_k=plan.top_k,
                                      window=plan.window, sinks=plan.sinks,
                                      gate=plan.gates[0])  # fmt: skip
    return checkpointed(focus.attach(model, config, seed=seed))


def checkpointed(model: PreTrainedModel) -> PreTrainedModel:
    """The attached model, whose layers run again in the backward pass and whose routers train.

    All else stays in evaluation mode: dropout has no place in a frozen model, and would put the
    gates on their definitions, which hold every pair.
    """
    model.eval()
    model.activation_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer | focus.Router):
            module.training = True
    return model


def compare(
    model: PreTrainedModel, ids: Tensor, plan: TrainingStepSettings
) -> list[dict[str, Any]]:
    """Seconds of every method's steps over the same tokens (1, T), in turns; ratios turn by turn.

    ``peak_mb`` is the most memory in the first turn, weights and all: what an earlier step has left
    with the allocator would hide in what is above it.
    """
    names = methods(plan, ids.shape[1], model.device)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, float | None] = {}
    for name in names:
        step(model, ids[:, :WARM_UP], name)
    for number in range(plan.repetitions):
        for name in names[:: -1 if number % 2 else 1]:  # who goes first goes last in the next turn
            peak = timing.Peak(model.device) if number == 0 else None
            seconds[name].append(timed(model, ids, name))
            if peak is not None:
                peaks[name] = peak.most()
    return [
        {"device": model.device.type, "length": ids.shape[1], "method": name, "K": plan.groups,
         "k": plan.top_k, "window": plan.window, "sinks": plan.sinks, "dtype": plan.dtype,
         **timing.compared(seconds[FULL], own),
         "density": density(model, ids) if sparse(name, model.device) else 1.0,
         "peak_mb": peaks[name], "repetitions": plan.repetitions}
        for name, own in seconds.items()
    ]  # fmt: skip


def methods(plan: TrainingStepSettings, tokens: int, device: torch.device) -> list[str]:
    """Full attention, and the gates whose cost a text of so many tokens allows."""
    gates = [g for g in plan.gates if tokens <= plan.quadratic_until or sparse(g, device)]
    if not gates:
        raise ValueError(
            f"training_step.lengths: no gate of training_step.gates is timed at {tokens} tokens; "
            f"every one forms every pair on {device.type}, see training_step.quadratic_until"
        )
    return [FULL, *gates]


def sparse(name: str, device: torch.device) -> bool:
    """Whether a gate forms the pairs of its groups alone: elsewhere than on CPU every gate is its
    definition."""
    return name == "sparse_log" and device.type == "cpu"


def timed(model: PreTrainedModel, ids: Tensor, name: str) -> float:
    """Seconds of one step."""
    timing.wait(model.device)
    start = time.perf_counter()
    step(model, ids, name)
    timing.wait(model.device)
    return time.perf_counter() - start


def step(model: PreTrainedModel, ids: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one window; the routers' gradients are left on them.

    Args:
        model: attached, see :func:`checkpointed`.
        ids: (1, T) token ids.
        name: ``full``, or a training gate.

    Returns:
        The loss in nats a token, a float32 scalar, and its gradient at the embedded text
        (1, T, E).
    """
    model.zero_grad(set_to_none=True)
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    how = {"name": "full"} if name == FULL else {"name": "soft", "gate": name}
    # The backward pass stays within the mode, since layers run again in it.
    with focus.mode(model, **how):
        loss = loss_in_pieces(model, embedded, ids)
        loss.backward()
    if embedded.grad is None:
        raise RuntimeError("no gradient reached the embedded text")
    return loss.detach(), embedded.grad


def loss_in_pieces(model: PreTrainedModel, embedded: Tensor, ids: Tensor,
                   piece: int = PIECE) -> Tensor:  # fmt: skip
    """Mean negative log-likelihood, nats a token, of tokens 1.. of ids (1, T), embedded
    (1, T, E); logits of ``piece`` positions at a time. A float32 scalar."""
    hidden = model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
    wanted = ids[:, 1:]
    pieces = zip(hidden[:, :-1].split(piece, 1), wanted.split(piece, 1), strict=True)
    losses = [checkpoint(_summed, model, *each, use_reentrant=False) for each in pieces]
    return torch.stack(losses).sum() / wanted.numel()


def _summed(model: PreTrainedModel, hidden: Tensor, wanted: Tensor) -> Tensor:
    logits = model.get_output_embeddings()(hidden)
    cap = getattr(model.config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum")


@torch.no_grad()
def density(model: PreTrainedModel, ids: Tensor) -> float:
    """Share of the causal pairs that ``sparse_log`` forms over ids (1, T): those of the hard mask
    by the same assignments."""
    with focus.mode(model, "hard", ngram=0):
        model.base_model(ids, use_cache=False)
    return PairCounts.total(focus.pair_counts(model).values()).density


if __name__ == "__main__":
    main()
