"""What command lines of stages share: how they say what is wrong, and how a measurement runs."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from experiments.record import Run
    from experiments.settings import Settings

Arguments = ParamSpec("Arguments")


def reported(stage: str) -> Callable[[Callable[Arguments, None]], Callable[Arguments, int]]:
    """Makes a function the command line of a stage, which returns the exit status: 1, and a line
    that starts with the stage's name (or the file's that is wrong), where the function raises
    ValueError; else 0."""

    def command(main: Callable[Arguments, None]) -> Callable[Arguments, int]:
        @wraps(main)
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
            # Of transformers, for each model that peft looks at.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            try:
                main(*args, **kwargs)
            except ValueError as error:
                print(f"{stage}: {str(error).removeprefix(f'{stage}: ')}", file=sys.stderr)
                return 1
            return 0

        return run

    return command


def measure(name: str, measurement: Callable[[Run, Settings], None]) -> int:
    """Runs a measurement that trains nothing, and records it in results/<scale>/<name>/.

    Returns:
        The exit status, as of :func:`reported`.
    """
    about = measurement.__doc__  # --help, and a mistyped option, must not start it
    argparse.ArgumentParser(prog=name, description=about).parse_args()
    import torch  # these take seconds, and train.py must be quick where it has nothing to do

    from experiments import plans, record, settings

    @reported(name)
    def main() -> None:
        chosen = settings.load()
        torch.set_num_threads(chosen.threads)
        own, dtype = plans.measurement(name, chosen), getattr(getattr(chosen, name), "dtype", None)
        with record.Run(record.results(chosen) / name, own, [chosen.seed], dtype) as run:
            measurement(run, chosen)

    return main()
