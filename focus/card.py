"""The README.md of a saved adapter: a model card made from its config, its base and its run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.utils import HFValidationError, validate_repo_id

from focus.config import FocusConfig

TEMPLATE = """---
{front}---
# Focus adapter for {base}

Routers of [Focus](https://arxiv.org/abs/2604.03260): learned groups that make the attention of a
frozen language model sparse. This repository holds the routers alone ({parameters:,} values). They
belong to the base model's weights as they were in training: what was merged into these before, such
as a LoRA, must be merged first, or loading refuses the model.

```python
import focus
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({source})
model = focus.load_adapter(model, "<this repository>")
```

## Config

{config}

## Base model

{facts}
{training}"""


def model_card(config: FocusConfig, base: Mapping[str, Any], parameters: int,
               run: Mapping[str, Any] | str | Path | None = None) -> str:  # fmt: skip
    """The card as Markdown with the hub's front matter.

    Args:
        config: the adapter's.
        base: facts of the base model, ``base_model_name_or_path`` among them.
        parameters: values that the adapter holds.
        run: facts of the training run, or the path of a JSON file (``run.json``) that must hold
            them.
    """
    name = base.get("base_model_name_or_path")
    front = ["library_name: focus-attention", "tags: [focus, sparse-attention]"]
    if name and is_hub_id(name):
        front.append(f"base_model: {name}")
    facts = {k: each for k, each in base.items() if k != "fingerprint" and each is not None}
    read = _read_run(run)
    training = f"\n## Training\n\n{_table(read)}\n" if read else ""
    return TEMPLATE.format(
        front="\n".join(front) + "\n", source=repr(name or "<the base model>"),
        base=name or f"a {base.get('model_type', 'model')} without a name", parameters=parameters,
        config=_table(config.to_dict()), facts=_table(facts), training=training,
    )  # fmt: skip


def is_hub_id(name: str) -> bool:
    """Whether a name can be that of a repository on the hub, and is no folder here."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not Path(name).exists()


def _read_run(run: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    if run is None or isinstance(run, Mapping):
        return run or {}
    try:
        found = json.loads(Path(run).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"card: {run} cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"card: {run} must hold a JSON object, got {type(found).__name__}")
    return found


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {value} |" for name, value in _flat(values)]
    return "\n".join(["| | |", "|---|---|", *rows])


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested facts by dotted names; cells must not break the table."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value).replace("|", "\\|").replace("\n", " ")
