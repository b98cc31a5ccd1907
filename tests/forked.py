"""Code in a new process that need not import torch and transformers anew: it is forked from one
that has them, and nothing of `focus`."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

SLOW = ["torch", "transformers.modeling_utils", "transformers.cache_utils", "peft"]


def run(
    code: str,
    folder: Path,
    warn: Literal["always", "error"] = "always",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str, str]:
    """Exit status, and what was printed and warned of.

    Args:
        folder: for the files that hold these.
        warn: what becomes of a UserWarning.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SLOW)
    out, err = folder / "stdout", folder / "stderr"
    process = context.Process(target=_within, args=(code, out, err, warn, dict(environment)))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, out.read_text(), err.read_text()


def _within(
    code: str, out: Path, err: Path, warn: Literal["always", "error"], environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    tempfile.tempdir = None  # found before, by another environment
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    warnings.simplefilter(warn, UserWarning)
    assert "focus" not in sys.modules
    exec(compile(code, "<new process>", "exec"), {"__name__": "__main__"})
    atexit._run_exitfuncs()  # which multiprocessing leaves out
    sys.stdout.flush()
