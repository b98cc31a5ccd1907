"""Two gloo processes that train blocks of the present folder's params.yaml together, and how a test
waits for what they write."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from experiments import settings, training
from experiments.regimes.base import Regime
from experiments.regimes.fitting import fit


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(there: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something is there, while the process runs."""
    deadline = time.monotonic() + 120
    while not there():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def train_in_two(names: Sequence[str], kill_at: int = 0,
                 begin: Callable[[int], None] = int) -> None:  # fmt: skip
    """Trains the blocks, one after the other.

    Args:
        kill_at: a step at whose end both processes are gone (0: none).
        begin: called first in each process, with its number.
    """
    mp.spawn(_rank, (free_port(), tuple(names), kill_at, begin), nprocs=2)


def _rank(number: int, port: int, names: tuple[str, ...], kill_at: int,
          begin: Callable[[int], None]) -> None:  # fmt: skip
    os.environ |= {"LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    begin(number)

    def killed(regime: Regime, *rest: Any) -> int | None:
        regime.after_step.append(lambda _, step: os._exit(1) if step == kill_at else None)
        return fit(regime, *rest)

    training.fit = killed
    for name in names:
        training.train(name, 0, settings.load())
