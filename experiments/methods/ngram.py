"""Keys found word for word, beside the window and the sinks: what needs no router at all."""

from __future__ import annotations

from typing import Any

from experiments.methods.base import check_none
from experiments.methods.window import Window
from experiments.settings.experiment import Budget


class Ngram(Window):
    """The window as it stands and the further keys, a few a query, whatever the text's length."""

    name = "ngram"

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """There is no budget: how many keys there are, the text says."""
        check_none(cls.name, budget, path)
