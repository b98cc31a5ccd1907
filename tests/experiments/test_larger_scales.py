"""Scales that need a GPU and the hub: their models are pinned, and every experiment of theirs runs
offline on a tiny model of random weights of the same architecture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.models import TYPES, attention_of
from experiments import settings, sources, training
from experiments.readings import perplexity
from experiments.readings.subject import Subject, conditions, parts

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = ("types_paper", "adapted", "recipe", "lora4", "plays_adapted", "plays_recipe", "tuned",
          "finetuned", "finetuned_focus", "scratch", "scratch_focus")  # fmt: skip
ALIKE = {"gpt2": "tiny-gpt2", "mistral": "tiny-mistral", "qwen": "tiny-qwen2",
         "olmo": "tiny-olmo2", "gemma": "tiny-gemma2", "llama": "tiny-llama"}  # fmt: skip
SHORT = {"steps": 2, "context": 64, "batch_size": 1, "warmup_steps": 1, "devices": 1,
         "nodes": 1, "strategy": "auto", "precision": "32-true"}  # fmt: skip
LOADED = {scale: settings.load(ROOT / "params.yaml", scale, ROOT / "scales")
          for scale in ("gpu", "cluster")}  # fmt: skip
CELLS = [pytest.param(scale, cell, id=f"{scale}-{cell.name}")
         for scale, chosen in LOADED.items() for block in BLOCKS
         for number, cell in enumerate(chosen.cells(block).values())
         if block == "types_paper" or not number]  # fmt: skip


@pytest.mark.parametrize(("scale", "cell"), CELLS)
def test_two_steps_on_a_tiny_model_of_the_same_architecture(work: Any, scale: str,
                                                            cell: Any) -> None:  # fmt: skip
    (alike,) = {tiny for name, tiny in ALIKE.items() if name in cell.model}
    former = dict(cell.regime.FORMER)  # stands in records alone
    plain = {name: value for name, value in cell.regime.plain().items() if name not in former}
    regime = {**plain, **SHORT}
    block = {"base": "plain", "model": alike, "method": cell.method.plain(), "regime": regime,
             "budgets": [budget if isinstance(budget, float) else budget.model_dump()
                         for budget in cell.budgets]}  # fmt: skip
    chosen = work(dry=block)
    training.train("dry", 0, chosen)
    reading = settings.Perplexity(texts=("letters",), documents=2, context=64)
    subject = Subject(chosen.cell("dry"), 0, reading, chosen)
    rows = [row for _, made in parts(perplexity, subject, reading) for row in made()]
    asked = len(conditions(subject, reading))
    assert len(rows) == asked * reading.documents
    assert all(math.isfinite(row["nll"]) for row in rows)


def test_table_2_names_the_papers_models_pinned_and_one_of_every_type() -> None:
    models = [cell.model for chosen in LOADED.values()
              for cell in chosen.cells("types_paper").values()]  # fmt: skip
    assert {attention_of(model) for model in models} == set(TYPES)
    listed = sources.sources()
    assert all(listed[model].kind == "hub" for model in models)
