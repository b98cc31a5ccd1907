"""Which of lm-eval's tasks there are, and where their documents are.

A task here has the name that it has there, so that where a hub is the same run takes the hub's set.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.sources import catalogue

Rows = Iterable[dict[str, Any]]


class Local(NamedTuple):
    """Where a task's documents are.

    Attributes:
        config: of lm-eval's, below its folder of tasks.
        source: in sources.yaml, or a folder of $FOCUS_DATA.
        files: patterns in the source; the first that is there is taken.
        split: as lm-eval's config calls the documents that are scored.
        convert: makes documents, with the fields that the config names, of a file; None: they are
            an Arrow file that has them.
        changes: of the config, where the fields differ.
    """

    config: str
    source: str
    files: tuple[str, ...]
    split: str = "validation"
    convert: Callable[[Path], Rows] | None = None
    changes: dict[str, Any] = {}  # noqa: RUF012 - never changed


def _lambada(path: Path) -> Rows:
    for row in _lines(path):
        yield {"text": row["request"]["context"] + row["request"]["continuation"]}


def _gsm8k(path: Path) -> Rows:
    for row in _lines(path):
        yield {"question": row["doc"]["question"], "answer": row["doc"]["answer"]}


def _truthfulqa(path: Path) -> Rows:
    """Questions with the right choice first, as the task expects; of the BIG-bench task there are
    single answers alone."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for row in found["examples"] if isinstance(found, dict) else found:
        one = row.get("mc1_targets") or row["target_scores"]
        targets = {"mc1_targets": one, "mc2_targets": row.get("mc2_targets") or one}
        question = row.get("question") or row["input"]
        yield {"question": question, **{name: _choices(each) for name, each in targets.items()}}


def _choices(scores: dict[str, int]) -> dict[str, list[Any]]:
    order = sorted(scores, key=lambda text: -scores[text])
    return {"choices": order, "labels": [int(scores[text]) for text in order]}


def _lines(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _arrow(config: str, folder: str, **changes: Any) -> Local:
    return Local(config, "benchmarks", (f"hf_datasets/{folder}/validation/*.arrow",),
                 changes=changes)  # fmt: skip


REQUESTS = "oe_eval_tasks/{}/requests.jsonl.gz"
TRUTHFULQA = ("mc_task.json", "**/task_mc.json")
TASKS = {
    "hellaswag": _arrow("hellaswag/hellaswag.yaml", "hellaswag/none"),
    "piqa": _arrow("piqa/piqa.yaml", "piqa/plain_text"),
    "arc_easy": _arrow("arc/arc_easy.yaml", "ai2_arc/ARC-Easy"),
    "arc_challenge": _arrow("arc/arc_challenge.yaml", "ai2_arc/ARC-Challenge"),
    "boolq": _arrow("super_glue/boolq/default.yaml", "boolq/none", doc_to_target="{{answer|int}}"),
    "winogrande": _arrow("winogrande/default.yaml", "winogrande/winogrande_xl"),
    "openbookqa": _arrow("openbookqa/openbookqa.yaml", "openbookqa/main"),
    "sciq": _arrow("sciq/sciq.yaml", "sciq/none"),
    "lambada_openai": Local("lambada/lambada_openai.yaml", "benchmarks",
                            (REQUESTS.format("lambada/bpb_0shot"),), "test", _lambada),
    "gsm8k": Local("gsm8k/gsm8k.yaml", "benchmarks",
                   (REQUESTS.format("gsm8k/gold_bpb_5shot"),), "test", _gsm8k),
    "truthfulqa_mc1": Local("truthfulqa/truthfulqa_mc1.yaml", "truthfulqa", TRUTHFULQA,
                            convert=_truthfulqa),
    "truthfulqa_mc2": Local("truthfulqa/truthfulqa_mc2.yaml", "truthfulqa", TRUTHFULQA,
                            convert=_truthfulqa),
}  # fmt: skip


def sources(names: Iterable[str]) -> list[str]:
    """Sources that tasks take their documents from."""
    return sorted({TASKS[name].source for name in names})


def found(name: str) -> Path:
    """The file of a task's documents; ValueError where it was not fetched."""
    local = TASKS[name]
    root = (catalogue.ROOT / local.source).resolve()
    for pattern in local.files:
        if paths := sorted(root.glob(pattern)):
            return paths[0]
    raise ValueError(f"{root}: no {local.files[0]}; run `python -m experiments.stages.fetch "
                     f"{local.source}` first")  # fmt: skip
