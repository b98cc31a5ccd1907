"""Result files of small models, of the ladder, and of full fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import ladder
from tests.analysis.group_files import JOINT
from tests.analysis.result_files import NOTHING, PAPER, PAPER_MASK, ROUTERS, losses, write_read

SCRATCH = {"name": "scratch", "steps": 24}


def write_types(root: Path, soft: float, hard: float, *, models: Sequence[str],
                regime: Any = ROUTERS, texts: str = "articles", window: float | None = None,
                wobble: float = 1e-4, **where: Any) -> None:  # fmt: skip
    """Models under full attention, and changes of the paper's setup, and of a window, on them."""
    for model in models:
        how = {"model": model, "reading": "small", "texts": texts, **where}
        write_read(root, "types", losses("full"), cell=f"types-model{model}", regime=SCRATCH, **how)
        rows = [*losses("soft", change=soft),
                *losses("hard", "k2", hard, **PAPER_MASK | {"top_k": 2})]  # fmt: skip
        write_read(root, "types_paper", rows, cell=f"types_paper-model{model}", method=PAPER,
                   regime=regime, against=["types"], **how)  # fmt: skip
        if window is not None:
            write_read(
                root,
                "types_window",
                losses("hard", change=window, wobble=wobble),
                against=["types"],
                cell=f"types_window-model{model}",
                method={"name": "window"},
                **how,
            )


def write_ladder(root: Path, costs: Sequence[float], ahead: float | None = None, *,
                 wobble: float = 3e-4, window: float = 0.5) -> None:  # fmt: skip
    """The paper's setup on models of four sizes: what one group of four costs each, with a quarter
    of the distant pairs, two groups a tenth of that; and what it costs the next rung."""
    models = dict(zip(ladder.RUNGS, costs, strict=False))
    next_rung = {name: cost for name in ladder.NEXT if (cost := ahead) is not None}
    for place, own in (("ladder", models), ("next_rung", next_rung)):
        for model, cost in own.items():
            how = {"model": model, "reading": "ladder", "texts": "articles", "context": 512}
            names = {part: f"{place}{part}" for part in ("", "_paper", "_window")}
            cells = {part: f"{name}-model{model}" for part, name in names.items()}
            regime = SCRATCH if place == "ladder" else NOTHING
            write_read(root, names[""], losses("full"), cell=cells[""], regime=regime, **how)
            known = {**PAPER_MASK, "wobble": wobble, "window": 8}
            rows = [
                row for k, change, kept in ((1, cost, 0.25), (2, cost / 10, 0.85))
                for row in losses("hard", f"k{k}.symmetric.sinkhorn", change,
                                  **known | {"top_k": k, "distant_density": kept})
            ]  # fmt: skip
            write_read(root, names["_paper"], rows, cell=cells["_paper"], method=PAPER,
                       regime=ROUTERS, against=[names[""]], **how)  # fmt: skip
            near = losses("hard", change=window, window=8, distant_density=0.0)
            write_read(root, names["_window"], near, cell=cells["_window"], against=[names[""]],
                       method={"name": "window"}, **how)  # fmt: skip


def write_tuned(root: Path, change: float, *, texts: str = "plays", full: float = -0.1,
                names: tuple[str, str, str] = ("before", "finetuned", "finetuned_focus"),
                steps: int = 24, mask: float = 0.0, **where: Any) -> None:  # fmt: skip
    """A model before, after all its weights were trained, and that with Focus, whose change is
    against the second; ``mask``: the hard mask's against the gate."""
    before, plain, routed = names
    how = {"reading": "domains", "texts": texts, **where}
    whole = {"name": "full", "steps": steps}
    write_read(root, before, losses("full"), **how)
    write_read(root, plain, losses("full", change=full), regime=whole, against=[before],
               cell=f"{plain}-texts{texts}", **how)  # fmt: skip
    after = (1 + full) * (1 + change) - 1
    masked = losses("hard", "k2.symmetric.sinkhorn", (1 + after) * (1 + mask) - 1, **PAPER_MASK)
    rows = [*losses("soft", change=after), *masked]
    write_read(root, routed, rows, method=PAPER, against=[plain],
               regime={**JOINT, "steps": steps}, cell=f"{routed}-texts{texts}", **how)  # fmt: skip
