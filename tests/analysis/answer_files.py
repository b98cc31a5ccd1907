"""Result files of questions: benchmarks, long-context tasks, chat, and LoRA beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.analysis.result_files import (
    FULL,
    LORA,
    PAPER,
    PAPER_MASK,
    RECIPE,
    ROUTERS,
    losses,
    write_pretrained,
    write_read,
)


def write_answers(
    root: Path, *, changed: int = 0, exposure: float = 0.0, task: str = "hellaswag",
    block: str = "answers_paper", method: Any = None, shots: int = 0,
    full: str = "answers_pretrained", right: float = 1.0, steps: int = 0,
    questions: int = 10, tokens: int = 90, gained: int = 0,
) -> None:  # fmt: skip
    """Some questions, all answered by the pretrained model (or none, where ``right`` is 0), and
    some of them not under another one's mask, the paper's; ``gained``: answers that are right
    under the mask alone."""
    reading, keys = "many_shot" if shots else "benchmarks", (method or {}).get("keys")
    masked = block
    for block, condition in ((full, "full"), (masked, "hard")):
        wrong = changed if condition == "hard" else gained
        rows = [
            {"seed": 0, "condition": condition, "budget": "k2" if condition == "hard"
             else "own", "document": str(n), "sha": f"{n:012x}", "shots": shots, "correct": right,
             "correct_norm": right * (n >= wrong), "right_nats": -3.0 - 0.5 * (condition == "hard"),
             "tokens": tokens, "exposure": exposure, "keys": keys if condition == "hard" else None}
            for n in range(questions)
        ]  # fmt: skip
        hard = {"method": method or PAPER, "against": [full]}
        hard |= {"regime": ROUTERS | {"steps": steps}} if steps else {}
        write_read(root, block, rows, reading=reading, texts=task, kind="benchmarks",
                   **(hard if condition == "hard" else {}))  # fmt: skip


def write_ruler(root: Path, lost: float, *, found: float | None = None, method: Any = RECIPE,
                lengths: Sequence[int] = (1024, 2048), block: str = "ruler_recipe",
                against: Sequence[str] = ("ruler_adapted",),
                kept: float = 0.1, spared: str = "") -> None:  # fmt: skip
    """Two tasks of four questions: a mask that finds a share of each answer (None: every second
    answer; of the task ``spared`` all), the right ones ``lost`` nats per token dearer than under
    full attention, which is written with the recipe."""
    for name in (block, "ruler_adapted") if block == "ruler_recipe" else (block,):
        hard = name == block
        rows = [
            {"seed": 0, "condition": "hard" if hard else "full",
             "budget": "0.125" if hard else "own", "texts": task,
             "document": str(n), "sha": f"{task}{n}", "length": length, "tokens": 10,
             "nll": 10 * (1 + n + lost * hard),
             "found": (n % 2 if found is None else found) if hard and task != spared else 1.0,
             "distant_density": kept if hard else 1.0}
            for task in ("single", "squad") for length in lengths for n in range(4)
        ]  # fmt: skip
        known = {"method": method, "against": against} if hard else {}
        write_read(root, name, rows, reading="ruler", kind="ruler",
                   start="recipe" if hard else "adapted", **known)  # fmt: skip


def write_lora(root: Path, change: float, *, rate: float = 0.0005, block: str = "lora4",
               cell: str | None = None, wrong: int = 0, steps: int = 24, questions: int = 100,
               reading: str = "benchmarks") -> None:  # fmt: skip
    """LoRA on plays: its loss on validation and test documents; answers, ``wrong`` of which the
    model before alone has right (below zero: LoRA alone)."""
    regime = LORA | {"learning_rate": rate, "rank": 4, "steps": steps}
    known = {"cell": cell, "method": FULL, "regime": regime,
             "against": ["pretrained", "answers_pretrained"]}  # fmt: skip
    write_pretrained(root)
    write_read(root, block, losses("full", change=change), **known)
    write_read(root, block, losses("full", change=change), reading="search", final=False, **known)
    write_scores(root, block, max(0, wrong), questions, reading=reading, **known)
    write_scores(root, "answers_pretrained", max(0, -wrong), questions, reading=reading)


def write_scores(root: Path, block: str, missed: int, questions: int, **known: Any) -> None:
    """Questions of a benchmark, of which the first ``missed`` are answered wrong."""
    rows = [
        {"seed": 0, "condition": "full", "budget": "own", "document": str(n),
         "sha": f"{n:012x}", "shots": 0, "correct": float(n >= missed), "correct_norm": None,
         "right_nats": -3.0, "tokens": 90, "exposure": 0.0}
        for n in range(questions)
    ]  # fmt: skip
    write_read(root, block, rows, texts="hellaswag", kind="benchmarks", **known)


def write_chat(root: Path, lora: float, mask: float, costs: bool = True, *, steps: int = 24,
               blocks: tuple[str, str] = ("lora4", "answers_paper")) -> None:  # fmt: skip
    """Four questions, bare and after a text: nats per token of LoRA, and of a mask, which bare ones
    are out of reach of; ``costs``: and what the mask costs on plays."""
    trained = {"regime": LORA | {"learning_rate": 0.002, "rank": 4, "steps": steps}}
    plays = {"reading": "plays", "texts": "plays", "against": ["plays_pretrained"]}
    answers = plays | {"reading": "chat", "kind": "chat"}
    for reading, final in (("plays", True), ("search", False)):
        rows, how = losses("full", change=-0.1), plays | {"reading": reading, "final": final}
        write_read(root, blocks[0], rows, **how, **trained)
    name = "k2.symmetric.sinkhorn"
    if costs:
        write_pretrained(root, block="plays_pretrained", **plays | {"against": []})
        write_read(root, "paper", losses("hard", name, 0.1, **PAPER_MASK), method=PAPER, **plays)
    write_read(root, blocks[0], asked(lora, lora), **answers, **trained)
    hard = asked(0.0, mask, condition="hard", budget=name, distant_density=0.8)
    write_read(root, blocks[1], hard, method=PAPER, start="paper", **answers)


def asked(bare: float, after: float, **where: Any) -> list[dict[str, Any]]:
    """Rows of four questions, at both lengths."""
    known = {"seed": 0, "condition": "full", "budget": "own", "texts": "plays", "tokens": 32,
             "agreed": 90.0, "distant_density": 1.0, **where}  # fmt: skip
    return [{**known, "document": str(n), "before": before, "divergence": (1 + 0.1 * n) * nats}
            for before, nats in ((0, bare), (1024, after)) for n in range(4)]  # fmt: skip
