"""Training in a folder of its own."""

from tests.experiments.training import one_thread, work

__all__ = ["one_thread", "work"]
