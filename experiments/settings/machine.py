"""What of a regime cannot be done on this machine, or by Lightning at all."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from experiments.settings.experiment import Experiment, Training

HALF = "16-mixed needs a GPU and no fsdp2; take bf16-mixed"
Reasons = Iterator[tuple[str, str]]  # a field, and why it cannot be kept


def refuse(cell: Experiment, started: bool = True) -> None:
    """Refuses what cannot be done; see :func:`reasons`.

    Raises:
        ValueError: the message starts with the field's name.
    """
    for field, why in reasons(cell, started):
        raise ValueError(f"experiments.{cell.block}.{field}: {why}")


def reasons(cell: Experiment, started: bool = True) -> Reasons:
    """Fields of a cell that trains, and why they cannot be kept.

    Args:
        started: this process is to train, alone or as torchrun started it. Else it is asked
            beforehand, and of a training on several machines this may be another one.
    """
    how = cell.regime
    assert isinstance(how, Training)  # noqa: S101 - the caller's to know
    if started or how.nodes == 1:
        yield from _of_machine(how)
    if started:
        yield from _of_processes(how)
    yield from _of_regime(how)
    yield from _of_method(cell, how)


def _of_machine(how: Training) -> Reasons:
    cards = torch.cuda.device_count()
    if cards and how.devices > cards:
        yield "regime.devices", f"{how.devices} asked for, {cards} there"
    if how.processes > 1 and not cards and not torch.distributed.is_gloo_available():
        yield "regime.devices", "without a GPU several processes need gloo"
    if how.precision == "16-mixed" and not cards:
        yield "regime.precision", HALF


def _of_processes(how: Training) -> Reasons:
    started = int(os.environ.get("WORLD_SIZE", how.devices))  # torchrun's; Lightning starts its own
    if how.processes > 1 and started != how.processes:
        field = "nodes" if how.nodes > 1 else "devices"
        yield f"regime.{field}", (f"nodes = {how.nodes} with devices = {how.devices} are "
                                  f"{how.processes} processes, not {started}; scales/slurm.sbatch "
                                  "starts them on each node by torchrun")  # fmt: skip


def _of_regime(how: Training) -> Reasons:
    if how.batch_size % how.processes:
        shared = f"cannot be shared by devices = {how.devices}"
        many = f" on nodes = {how.nodes}" if how.nodes > 1 else ""
        yield "regime.batch_size", f"{how.batch_size} windows {shared}{many}"
    if how.precision == "16-mixed" and how.strategy == "fsdp2":
        yield "regime.precision", HALF
    if how.validate_every > how.steps:
        yield "regime.validate_every", f"{how.validate_every} is above steps = {how.steps}"


def _of_method(cell: Experiment, how: Training) -> Reasons:
    # Modules must be the same before, in and after a step, where other code runs the model again.
    shared = cell.method.fields.get("shared_layers", 1) > 1
    shuffled = getattr(how, "shuffled", False)
    if cell.method.name not in ("full", "focus") or shuffled or shared:
        only = "is for methods full and focus alone, without shuffled gates or shared layers"
        if how.strategy == "fsdp2":
            yield "regime.strategy", f"fsdp2 {only}"
        if how.checkpoint_activations:
            yield "regime.checkpoint_activations", only
    if how.strategy == "fsdp2" and cell.method.fields.get("allocated"):
        yield "method.allocated", ("groups are shared out of a whole model; train by fsdp2, "
                                   "and share them out in what starts from that")  # fmt: skip
    if how.name == "scratch" and cell.start is not None:
        yield "start", "regime scratch starts from random weights"
