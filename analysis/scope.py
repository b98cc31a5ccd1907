"""How far a run of ours is from the paper's setting: what keeps a verdict from a plain
"reproduced".
"""

from __future__ import annotations

from typing import Any

from analysis.cells import WINDOW, Cell
from analysis.paper import Claim, model_name, paper
from analysis.results import Results, reading_of

NO_RATE = 1e-9  # a step at a lower one trains nothing: it fits what needs no training


def _plain(text: Any) -> str:
    return "".join(c for c in str(text).lower() if c.isalnum())


def same_model(claim: Claim, model: str) -> bool:
    """Whether this is the model that the figure is about."""
    slug = claim.model
    entry = paper()["models"].get(slug or "", {})
    known = {_plain(slug), _plain(entry.get("hub")), _plain(entry.get("source", slug))}
    return bool(model) and _plain(model) in known


def text_of(claim: Claim) -> str:
    """The text that the figure is of, empty where none is named."""
    return str(claim.keys.get("text") or claim.setting.get("text") or "")


def same(name: str, other: str) -> bool:
    """Whether two names are one, but for case and punctuation."""
    return _plain(name) == _plain(other)


def differences(claim: Claim, cell: Cell, row: Any) -> list[str]:
    """What differs from the paper's setting, in words; ``row``: of the central table."""
    found, setting = [], claim.setting
    if claim.model and not same_model(claim, cell.model):
        found.append(f"{cell.model or 'an unnamed model'} instead of {model_name(claim.model)}")
    if (text := text_of(claim)) and not same(row["texts"], text):
        found.append(f"{row['texts']} instead of {text}")
    if setting.get("steps") and (cell.steps or 0) < setting["steps"]:
        found.append(f"{cell.steps or 0} training steps instead of {setting['steps']}")
    wanted = claim.keys.get("context", setting.get("context"))
    if wanted and row["context"] != wanted:
        found.append(f"{row['context']} tokens instead of {wanted}")
    if (own := cell.window) != setting.get("window", WINDOW):
        found.append(f"a window of {own} instead of {setting.get('window', WINDOW)}")
    if cell.method.get("gate") != "eq2":
        found.append(f"gate {cell.method.get('gate')} instead of Eq. 2")
    if cell.method.get("routers") != "paper":
        found.append("cosine scores instead of dot products")
    return found


def fewer_steps(claim: Claim | None, results: Results, cell: str) -> bool:
    """Whether a cell, with its start, was trained for fewer steps than the paper's."""
    setting = claim.setting if claim else {}
    paper_steps = setting.get("steps", paper()["source"]["defaults"]["steps"])
    return trained(results, results.cells[cell]) < paper_steps


def trained(results: Results, cell: Cell) -> int:
    """Steps that its routers, or what else its method has, were trained for, in all."""
    steps, name = cell.steps or 0, cell.method.get("name")
    if cell.regime.get("learning_rate", 1.0) < NO_RATE:
        steps = 0
    start = results.cells.get(cell.start or "")
    if start is None or start.method.get("name") != name:
        return steps
    if cell.regime.get("name") == "lora" and start.regime.get("name") != "lora":
        return steps  # of LoRA: the routers stay as they are
    return steps + trained(results, start)


def steps(results: Results, cell: Cell) -> str:
    """Training steps and the tokens of each, in words; the paper does not say how many its have."""
    if not (number := trained(results, cell)):
        return ""
    while not cell.steps and cell.start in results.cells:
        cell = results.cells[cell.start]
    how = cell.regime
    tokens = how.get("context", 0) * how.get("batch_size", 1) * how.get("accumulate", 1)
    return f"{number:,} steps" + f" of {tokens:,} tokens" * (tokens > 0)


def describe(results: Results, cell: Cell | None, evidence: str, texts: str = "") -> str:
    """The scale of a row in one line: scale, model, texts (empty: all of the reading's), context,
    steps, seeds."""
    run = results.run_of(evidence)
    reading = reading_of(run)
    parts: list[Any] = [results.scale]
    if cell is not None:
        parts += [cell.model, texts or " and ".join(reading.get("texts", ()))]
        parts.append(f"T = {reading['context']}" if "context" in reading else "")
        parts.append(steps(results, cell))
    seeds = run.get("seeds") or []
    parts.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else "")
    return "; ".join(str(part) for part in parts if part)
