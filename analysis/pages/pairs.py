"""Sentences of pairs that belong together, which refuse figures that say the opposite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

COPIES = "copies"  # the experiment whose passages are read twice


def sentences(row: Callable[..., pd.Series]) -> dict[str, Any]:
    """What a line of the findings can ask for; ``row`` as of :func:`findings.found`."""
    return {"left_out": lambda: left_out(row), "half_dearer": lambda: half_dearer(row),
            "with_words": lambda: with_words(row),
            "copying_pairs": lambda: copying_pairs(row),
            "linked": lambda link, cell=COPIES: row("affinity", cell=cell, link=link, layer="all",
                                                    ngram=0)}  # fmt: skip


def copying_pairs(row: Callable[..., pd.Series]) -> pd.Series:
    """The recipe's row without n-gram keys."""
    return row("induction", cell=COPIES, layer="all", ngram=0)


def left_out(row: Callable[..., pd.Series]) -> str:
    """That groups leave out most of the weight, though less than chance would."""
    own = copying_pairs(row)
    if own["weight_shared_high"] >= 50 or own["weight_more_low"] <= 0:
        raise ValueError("findings: groups leave out less than half of what copying needs, or no "
                         "less than chance would")  # fmt: skip
    kept, low, high = (own[f"weight_shared{end}"] for end in ("", "_low", "_high"))
    return (f"They leave out {100 - kept:.0f}% ({100 - high:.0f} to {100 - low:.0f}) of the weight "
            f"that full attention gives to what is to be copied; by chance it would be "
            f"{100 - own['weight_chance']:.0f}%")  # fmt: skip


def half_dearer(row: Callable[..., pd.Series]) -> str:
    """That tokens of which more is left out cost more."""
    own = copying_pairs(row)
    if own["dearer_low"] <= 0:
        raise ValueError("findings: tokens of which groups leave out more cost no more")
    return (
        f"The half of the copied tokens of which most is left out costs {own['dearer']:.1f} "
        f"nats ({own['dearer_low']:.1f} to {own['dearer_high']:.1f}) more than the other "
        "half"
    )


def with_words(row: Callable[..., pd.Series]) -> str:
    """That n-gram keys, which hold such pairs, take most of that difference away."""
    own = row("induction", cell=COPIES, layer="all", budget="0.125")
    if own["dearer"] > copying_pairs(row)["dearer"] / 2:
        raise ValueError("findings: n-gram keys leave the difference as it is")
    return (f"With n-gram keys, which hold {own['by_word']:.0f}% of the pairs, the difference is "
            f"{own['dearer']:.1f}")  # fmt: skip
