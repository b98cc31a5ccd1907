"""Passages as one HTML page that needs no network: tokens coloured by group, layers side by side,
and what each token can attend to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.view.passage import Passage

TEMPLATE = Path(__file__).with_name("page.html")


def page(passages: Sequence[Passage]) -> str:
    """The page.

    Raises:
        ValueError: there is no passage.
    """
    if not passages:
        raise ValueError("passages: there is none to show; give a text")
    told = json.dumps([asdict(each) for each in passages], ensure_ascii=False, allow_nan=False,
                      separators=(",", ":"))  # fmt: skip
    data = told.replace("<", "\\u003c")  # a text may hold </script>
    return TEMPLATE.read_text(encoding="utf-8").replace("/*passages*/[]", data)
