"""Memory, operations and hours of an experiment that trains routers, all weights or both, for any
model; and of one that reads a model.

Memory of a process is that of its weights, gradients, optimiser and activations, and of what
``fully_shard`` gathers; what an allocator, a CUDA context and communication need comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

import focus
from experiments.costs import shapes, tracing
from experiments.costs.tracing import Traced
from experiments.methods.focus import FocusSettings
from experiments.regimes.tensors import layers
from experiments.settings import Centroids, Experiment, Settings, Training
from experiments.sources import models
from experiments.trained import before, in_parts

MOST = 1024  # devices that a search for what fits goes up to
DTYPES = {"auto": torch.bfloat16, **models.DTYPES}

Activations = Callable[[int], int]  # bytes that a step of so many windows makes


@dataclass(frozen=True)
class Hardware:
    """What an estimate is for: memory of a device in GiB, its peak in TFLOP/s (H100, dense
    bfloat16, by its data sheet), the share of that peak which a training reaches, its name, and
    where the share is from."""

    gibibytes: float = 80.0
    tflops: float = 989.0
    share: float = 0.3
    name: str = "H100"
    reached: str = "a guess; others by --tflops and --share"


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model with routers: its weights without them, its routers, its root (what stands
    outside of all layers) and its largest layer, each with what is in it; and whether its weights
    are trained, too."""

    weights: int
    routers: int
    root: int
    layer: int
    all_weights: bool = False

    @classmethod
    def of(cls, model: nn.Module, all_weights: bool = False) -> Sizes:
        """Of a model from :func:`experiments.costs.shapes.build`."""
        own, units = shapes.size(shapes.routers(model)), layers(model)
        whole = [shapes.size(unit.parameters()) for unit in units]
        total = shapes.size(model.parameters())
        return cls(total - own, own, total - sum(whole), max(whole), all_weights)

    def parts(self, strategy: str, devices: int) -> dict[str, float]:
        """Bytes of a training process beside its activations. Under fsdp2 two layers are whole at a
        time, one that runs and the next, and the root from its first use on; and so, until they are
        reduced, are the gradients of weights that are trained."""
        kept, gathered = 1.0, 0.0
        if strategy == "fsdp2":
            kept = 1 / devices
            gathered = (1 - kept) * (self.root + 2 * self.layer) * (1 + self.all_weights)
        trained = self.routers + self.all_weights * self.weights
        buckets = 2 if strategy == "ddp" else 1  # DDP reduces copies
        return {"weights": kept * (self.weights + self.routers), "gathered": gathered,
                "gradients": buckets * kept * trained,
                "optimiser": 2 * kept * trained}  # fmt: skip


def estimate(name: str, chosen: Settings, block: str, hardware: Hardware) -> dict[str, Any]:
    """What an experiment needs for a model: a flat row, bytes unless a name says otherwise.

    Args:
        name: a model of :func:`experiments.costs.shapes.names`.
        chosen: settings of the scale, whose ``regime`` of the experiment is taken.
        block: an experiment that trains routers or all weights, or a cell of it.

    Raises:
        ValueError: an unknown model or experiment, or one that trains something else.
    """
    cell = chosen.cell(block)
    how = cell.regime
    if not (isinstance(how, Centroids) or (isinstance(how, Training) and how.all_weights)):
        raise ValueError(f"experiments.{block}.regime: {how.name} trains neither routers nor all "
                         "weights")  # fmt: skip
    shape, dtype = shapes.config(name), DTYPES[cell.dtype]
    context = min(how.context, longest(shape, how.context))
    routed = routing(cell)
    model = shapes.build(shape, torch.float32 if how.all_weights else dtype, routed)
    counts, sizes = _counts(model, shape), Sizes.of(model, how.all_weights)
    step, activations = _step(model, how, context)
    read = tracing.inference(shapes.build(shape, dtype), 1, context)
    reading = _inference(Sizes.of(shapes.build(shape, dtype, routed)), read)
    strategy = "ddp" if how.strategy == "auto" and how.processes > 1 else how.strategy
    windows = max(1, how.batch_size // how.processes)
    parts = sizes.parts(strategy, how.processes) | {"activations": activations(windows)}
    return {
        "model": name, "scale": chosen.scale, "experiment": block, **counts,
        "strategy": strategy, "devices": how.processes, "precision": how.precision,
        "batch_size": how.batch_size, "context": context, "steps": how.steps,
        "checkpoint_activations": how.checkpoint_activations,
        **{f"train_{part}": round(value) for part, value in parts.items()},
        "train_total": round(sum(parts.values())),
        "train_host": _host(model, cell, chosen, strategy),
        **reading, **_course(step, how, hardware),
        "train_devices_needed": needed(sizes, activations, how, hardware),
        "infer_devices_needed": math.ceil(reading["infer_total"] / (hardware.gibibytes * 2**30)),
    }  # fmt: skip


def routing(cell: Experiment) -> focus.FocusConfig | None:
    """The routing of a cell's method, None where it has none."""
    return FocusSettings(**cell.method.fields).config if cell.method.name == "focus" else None


def longest(shape: Any, context: int) -> int:
    """Tokens that a model can read, or as many as are asked for, where nothing says."""
    return getattr(shape, "max_position_embeddings", None) or context


def _step(model: PreTrainedModel, how: Training, context: int) -> tuple[Traced, Activations]:
    """What a step of one window takes, and the bytes of any number of them."""
    traced = cache(partial(tracing.training, model, context=context, precision=how.precision,
                           checkpointed=how.checkpoint_activations))  # fmt: skip
    if how.all_weights:
        model.requires_grad_()
        # Not proportional: beside windows there are copies of weights in bfloat16.
        return traced(1), lambda windows: traced(windows).activations
    step = traced(1)  # everything is proportional to the windows: one says it all
    return step, lambda windows: windows * step.activations


def _counts(model: nn.Module, shape: Any) -> dict[str, Any]:
    """Parameters, of routers and of the model without them, and the paper's routers."""
    trained = shapes.count(shapes.routers(model))
    total = shapes.count(model.parameters()) - trained
    paper = shapes.count(shapes.routers(shapes.build(shape, routed=focus.FocusConfig.paper())))
    return {"parameters": total, "routers": trained, "routers_percent": 100 * trained / total,
            "adapter": 2 * trained,  # saved in bfloat16
            "paper_routers": paper, "paper_routers_percent": 100 * paper / total}  # fmt: skip


def _host(model: PreTrainedModel, cell: Experiment, chosen: Settings, strategy: str) -> int:
    """Bytes of a machine's own memory while weights are spread over its devices. A process draws
    its routers there, and reads its part of one weight at a time; where it cannot
    (:func:`experiments.trained.in_parts`), all weights, in float32 where LoRA is merged into them
    first, and twice where they are drawn in place of others."""
    how, routers = cell.regime, shapes.size(shapes.routers(model))
    if strategy != "fsdp2":
        return 0
    if in_parts(cell, chosen):
        largest = max(shapes.size([each]) for each in model.parameters())
        return round(how.devices * (largest / how.processes + routers))
    merges = any(each.regime.name == "lora" for each, _ in before(cell, cell.seeds[0], chosen))
    each = 4 if merges or how.all_weights else DTYPES[cell.dtype].itemsize
    weights = each * (shapes.count(model.parameters()) - shapes.count(shapes.routers(model)))
    return round(how.devices * ((1 + how.drawn) * weights + routers))


def _inference(sizes: Sizes, read: Traced) -> dict[str, int]:
    weights = sizes.weights + sizes.routers
    return {"infer_weights": weights, "infer_cache": read.cache,
            "infer_activations": read.activations,
            "infer_total": weights + read.cache + read.activations}  # fmt: skip


def _course(step: Traced, how: Training, hardware: Hardware) -> dict[str, Any]:
    """Operations of a step and of the run, and its hours on the hardware."""
    of_step = step.flops * how.batch_size * how.accumulate
    speed = how.processes * hardware.share * hardware.tflops * 1e12
    return {"step_flops": of_step, "run_flops": of_step * how.steps,
            "hours": of_step * how.steps / speed / 3600, "tflops": hardware.tflops,
            "share": hardware.share}  # fmt: skip


def needed(sizes: Sizes, activations: Activations, how: Training,
           hardware: Hardware) -> int | None:  # fmt: skip
    """The fewest devices, a power of two, on which the training fits: one whole, several by fsdp2;
    None where no number up to :data:`MOST` does."""
    devices = 1
    while devices <= MOST:
        parts = sizes.parts("fsdp2" if devices > 1 else "auto", devices)
        windows = math.ceil(how.batch_size / devices)
        left = hardware.gibibytes * 2**30 - sum(parts.values())
        if left >= 0 and activations(windows) <= left:
            return devices
        devices *= 2
    return None
