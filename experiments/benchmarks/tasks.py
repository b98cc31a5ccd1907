"""lm-eval's tasks over local files: its prompts, choices and metrics, our documents."""

from __future__ import annotations

import json
from pathlib import Path

import lm_eval
import yaml
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from experiments.benchmarks.files import TASKS, found

HERE = Path(lm_eval.__file__).parent / "tasks"


def load(name: str, shots: int, folder: Path) -> ConfigurableTask:
    """A task of lm-eval's over local documents.

    Args:
        shots: worked examples before each question, drawn from the other documents.
        folder: to write its config and documents into.

    Raises:
        ValueError: no such task, or its documents were not fetched.
    """
    if name not in TASKS:
        raise ValueError(f"tasks: {name!r} is unknown; there are {', '.join(TASKS)}")
    local, documents = TASKS[name], found(name)
    kind = "arrow"
    if local.convert is not None:
        kind, path = "json", folder / f"{name}.jsonl"
        lines = (json.dumps(row) for row in local.convert(documents))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        documents = path
    splits = {f"{split}_split": None for split in ("training", "validation", "test")}
    config = {
        "include": str(HERE / local.config), "task": name, "dataset_path": kind,
        "dataset_name": None, "dataset_kwargs": {"data_files": {local.split: str(documents)}},
        **splits, f"{local.split}_split": local.split, "fewshot_split": local.split,
        "num_fewshot": shots, **local.changes,
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    task: ConfigurableTask = manager.load([name])["tasks"][name]
    return task
