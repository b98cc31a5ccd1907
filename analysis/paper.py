"""The paper's figures and the audit's doubts as claims, read from `paper.yaml` and `audit.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Claim:
    """One figure of the paper, or one doubt of the audit, before anything was measured.

    `keys` are the cells that name the row (model, k, context ...), `setting` what the paper held
    fixed.
    """

    id: str
    source: str
    statement: str
    kind: str
    paper: float | int | str | None
    stage: str
    column: str
    keys: dict[str, Any] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str | None:
        """Slug of the model that the figure belongs to, None where none is named."""
        return self.keys.get("model") or self.setting.get("model") or None

    @property
    def figure(self) -> float:
        """The paper's figure as a number, 0 where it is none."""
        return magnitude(self.paper) or 0.0


@cache
def paper() -> dict[str, Any]:
    """The whole of `paper.yaml`, with what its tables leave out."""
    found = yaml.safe_load((HERE / "paper.yaml").read_text(encoding="utf-8"))
    for entry in found["tables"]:
        first, *_ = entry.setdefault("keys", entry["columns"][:1])
        entry.setdefault("row", f"{{{first}}}")
        entry["setting"] = found["source"]["defaults"] | entry.get("setting", {})
    return found


@cache
def audit() -> list[dict[str, str]]:
    """The doubts of `audit.yaml`."""
    return yaml.safe_load((HERE / "audit.yaml").read_text(encoding="utf-8"))


def model_name(slug: str) -> str:
    """How a model is called in sentences and legends."""
    return paper()["models"].get(slug, {}).get("name", slug)


def magnitude(value: Any) -> float | None:
    """A cell such as `148K`, `7.1M` or `2B` as a number, None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    factor = {"K": 1e3, "M": 1e6, "B": 1e9}.get(value[-1:])
    try:
        return float(value[:-1]) * factor if factor else float(value)
    except ValueError:
        return None


def printed(table_id: str, **named: Any) -> list[dict[str, Any]]:
    """Rows of one table of the paper, those that have these values.

    Raises:
        ValueError: there is no such table.
    """
    for entry in paper()["tables"]:
        if entry["id"] == table_id:
            rows = [dict(zip(entry["columns"], row, strict=True)) for row in entry["rows"]]
            return [row for row in rows if named.items() <= row.items()]
    raise ValueError(f"analysis/paper.yaml has no table {table_id!r}; name one of its `id`s")


def theirs(table_id: str, column: str, **named: Any) -> float:
    """A figure of the paper, of the row that has these values; a change that is not there is 0."""
    row, *_ = printed(table_id, **named)
    return magnitude(row[column]) or 0.0


def _row_claims(entry: dict[str, Any], row: dict[str, Any]) -> Iterator[Claim]:
    """The claims of one row: every cell that is neither null nor a part of the row's name."""
    measures, keys = paper()["measures"], {key: row[key] for key in entry["keys"]}
    named = {key: model_name(value) if key == "model" else value for key, value in keys.items()}
    stages = entry.get("stages", {})
    of_row = stages.get(row[entry["keys"][0]], entry["stage"])
    for column, value in row.items():
        if column in keys or value is None:
            continue
        says, unit = measures[column]["says"], measures[column].get("unit", "")
        yield Claim(
            id=f"{entry['id']}.{entry['row'].format(**keys)}.{column}", source=entry["source"],
            statement=f"{entry['label'].format(**named)}: {says} {value}{unit}",
            kind=measures[column]["kind"], paper=value, stage=stages.get(column, of_row),
            column=column, keys=keys, setting=entry["setting"],
        )  # fmt: skip


def claims() -> list[Claim]:
    """Every figure of the paper in its order, then statements of our own and the doubts."""
    rows = [claim for entry in paper()["tables"] for row in printed(entry["id"])
            for claim in _row_claims(entry, row)]  # fmt: skip
    doubts = [
        Claim(entry["id"], "ours" if entry["id"].startswith("ours.") else "Audit",
              entry["doubt"], "audit", None, entry["stage"], "doubt",
              setting={"hardware": entry["hardware"]} if "hardware" in entry else {})
        for entry in audit()
    ]  # fmt: skip
    return rows + doubts
