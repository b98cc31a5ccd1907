"""How far a run of ours is from the paper's setting: what keeps a verdict from a plain
"reproduced".
"""

from __future__ import annotations

from typing import Any

from analysis.paper import Claim, model_name, paper

# Claims about operators or about counting do not depend on model, text or training.
SCALE_FREE = frozenset({"identity"})


def _plain(text: Any) -> str:
    return "".join(c for c in str(text).lower() if c.isalnum())


def config(run: dict[str, Any]) -> dict[str, Any]:
    """The settings that a run recorded, {} where it recorded none."""
    return run.get("settings") or {}


def steps(run: dict[str, Any], cell: str | None = None) -> int | None:
    """Training steps of a run, a variant's own where it has them."""
    settings = config(run)
    own = settings.get("variants", {}).get(cell or "", {}).get("retrofit", {})
    return own.get("steps", settings.get("retrofit", {}).get("steps"))


def same_model(claim: Claim, run: dict[str, Any]) -> bool:
    """Whether the run used the model that the figure is about."""
    name, slug = config(run).get("model", {}).get("name"), claim.model
    entry = paper()["models"].get(slug or "", {})
    known = {_plain(slug), _plain(entry.get("hub")), _plain(entry.get("source", slug))}
    return name is not None and _plain(name) in known


def differences(claim: Claim, run: dict[str, Any], cell: str | None = None) -> list[str]:
    """What differs from the paper's setting, in words. A run without a record differs in
    everything.
    """
    settings = config(run)
    if not settings:
        return ["the run left no record of its settings"]
    found, setting = [], claim.setting
    if claim.model and not same_model(claim, run):
        used = settings.get("model", {}).get("name", "an unnamed model")
        found.append(f"{used} instead of {model_name(claim.model)}")
    text = settings.get("corpus", {}).get("source")
    if setting.get("text") and _plain(text) != _plain(setting["text"]):
        found.append(f"{text} instead of {setting['text']}")
    trained = steps(run, cell)
    if setting.get("steps") and (trained or 0) < setting["steps"]:
        found.append(f"{trained} training steps instead of {setting['steps']}")
    context = settings.get("protocol", {}).get("context")
    wanted = claim.keys.get("context", setting.get("context"))
    if wanted and context != wanted:
        found.append(f"{context} tokens instead of {wanted}")
    return found


def fewer_steps(found: list[str]) -> bool:
    """Whether one of these differences is that the run trained for fewer steps than the paper."""
    return any("training steps" in difference for difference in found)


def describe(run: dict[str, Any], fallback: str, cell: str | None = None) -> str:
    """The scale of a run in one line: scale, model, text, context, steps, seeds."""
    settings = config(run)
    if not settings:
        return fallback
    context, trained, seeds = _protocol(run, cell)
    text = settings.get("corpus", {}).get("source")
    parts = [settings.get("scale", fallback), settings.get("model", {}).get("name"), text]
    if context is not None:
        parts.append(f"T = {context}")
    if trained is not None:
        parts.append(f"{trained} steps")
    if seeds:
        parts.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    return "; ".join(str(part) for part in parts if part is not None)


def _protocol(run: dict[str, Any], cell: str | None) -> tuple[int | None, int | None, list[int]]:
    """Context, training steps and seeds: of a trial its own, else those of all stages."""
    settings = config(run)
    trial = settings.get("recipe", {}).get("trials", {}).get(cell or "")
    blocks = {"recipe": ("recipe", "protocol"), "copying": ("copying",), "leak": ("protocol",)}
    if run.get("stage") in blocks and trial:
        block = settings
        for name in blocks[run["stage"]]:
            block = block[name]
        # The leak is measured with the first seed's routers.
        seeds = list(trial["seeds"])[: 1 if run["stage"] == "leak" else None]
        return block["context"], trial["retrofit"]["steps"], seeds
    seeds = [] if settings.get("seed") is None else [settings["seed"]]
    return settings.get("protocol", {}).get("context"), steps(run, cell), seeds
