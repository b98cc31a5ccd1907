"""What was not run says truthfully how it would be: its command resolves to the row's own model,
text and length, at a scale that has them, and its hours are of these settings."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from analysis import claims, commands, hours, scope
from analysis.paper import Claim
from analysis.paper import claims as every
from analysis.rules import Verdict
from experiments import settings, sources
from experiments.costs.reading import QUESTION, windows
from experiments.settings import Reading

ROOT = Path(__file__).parents[2]
with (ROOT / "results/claims.csv").open(newline="", encoding="utf-8") as handle:
    MISSING = {row["id"] for row in csv.DictReader(handle) if row["verdict"] == Verdict.NOT_RUN}
NOT_RUN = [pytest.param(claim, id=claim.id) for claim in every() if claim.id in MISSING]
# The paper's name of a benchmark, where lm-eval has another, and those of GSM8K.
TASKS = {"lambada": "lambada_openai", "accuracy": "gsm8k", "problems": "gsm8k"}
NO_READING = ("tokens", "trained_params")  # columns that the settings of a training tell

OTHER = {"model": "mistral-7b", "text": "PG-19", "context": 1024, "cluster": True}


def reading(claim: Claim) -> Reading | None:
    """The reading that has a claim's figure: of its benchmark, or of its text and length; None
    where the cell has none."""
    own, found = commands.cell(claim), commands.place(claim)
    if own is None or found is None:
        return None
    for each in (commands.chosen(found[0]).readings[name] for name in own.readings):
        task = TASKS.get(claim.column, claim.column)
        if each.kind == "benchmarks" and task in each.tasks:
            return each
        context = claim.keys.get("context", claim.setting.get("context"))
        if (
            each.kind == claim.kind == "perplexity"
            and each.context == context
            and any(scope.same(name, scope.text_of(claim)) for name in each.texts)
        ):
            return each
    return None


def wrong(claim: Claim) -> list[str]:
    """What a row's command resolves to that is not the row's own; empty where all is."""
    if not claim.model:
        return [] if commands.command(claim) else ["no command"]
    found, own = commands.place(claim), commands.cell(claim)
    if found is None or own is None:
        return [f"no cell of {claim.model} in {claim.stage}"]
    said = []
    if sources.sources()[own.model].kind != "hub":
        said.append(f"{own.model} is not of the hub")
    if claim.column not in NO_READING and reading(claim) is None:
        said.append(f"{own.name} has no reading of {claim.column}, {scope.text_of(claim)}")
    ours = scope.same(own.texts, scope.text_of(claim))
    if own.trains and claim.kind == "perplexity" and not ours:
        said.append(f"{own.name} is of {own.texts}")
    fewest = claim.setting.get("steps", 0) if not claim.setting.get("cluster") else 0
    if own.trains and own.regime.steps < fewest:
        said.append(f"{own.name} trains for {own.regime.steps} steps")
    if hours.known(own, commands.chosen(found[0])) is None:
        said.append(f"no hours of {own.name}: run `python -m analysis.hours`")
    return said


@pytest.mark.parametrize("claim", NOT_RUN)
def test_a_command_resolves_to_the_rows_own_model_text_and_hours(claim: Claim) -> None:
    assert wrong(claim) == []
    if claim.model:
        why = commands.reason(claim)
        assert "by estimate" in why
        assert "hours of reading on " in why


def one(name: str) -> Claim:
    return next(claim for claim in every() if claim.id == name)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("table2.qwen2.5-7b.hellaswag", {"stage": "read@nowhere"}, "no cell of qwen2.5-7b"),
        ("table2.qwen2.5-7b.hellaswag", {"stage": "read@paper"}, "no cell of qwen2.5-7b"),
        ("table5.gpt2-xl-1.5b.ppl_full_attention_ft", {"stage": "read@finetuned"}, "no cell of"),
        ("table2.qwen2.5-7b.hellaswag", {"column": "boolq"}, "no reading of boolq"),
        ("long_context.t8192.ppl_full", {"stage": "read@types"}, "no reading of ppl_full"),
        ("from_scratch.mistral-7b.ppl_full_attention", {"setting": OTHER}, "is of openwebtext"),
    ],
)  # fmt: skip
def test_a_command_of_something_else_is_told(name: str, change: dict, said: str) -> None:
    assert said in " ".join(wrong(dataclasses.replace(one(name), **change)))


def test_hours_of_other_settings_are_left_out() -> None:
    claim = one("table2.qwen2.5-7b.hellaswag")
    chosen, own = commands.chosen("gpu"), commands.cell(claim)
    assert own is not None and hours.known(own, chosen) is not None  # noqa: PT018
    more = own.model_copy(update={"regime": own.regime.model_copy(update={"steps": 8000})})
    assert hours.known(more, chosen) is None
    assert "by estimate" not in " ".join(commands.took(more, chosen))


def test_two_billion_tokens_are_trained_on_from_scratch() -> None:
    own = commands.cell(one("from_scratch.mistral-7b.tokens"))
    assert own is not None
    how = own.regime
    assert how.steps * how.batch_size * how.context == pytest.approx(2e9, rel=0.001)
    assert how.name == "scratch"
    assert scope.same(own.texts, "OpenWebText")


def test_what_no_card_holds_is_told() -> None:
    (row,) = pd.read_csv(hours.TABLE).query("model == 'llama-2-70b'").to_dict("records")
    assert "of reading on 2 x H100 (129 GiB in all, one working at a time)" in commands.told(row)
    assert "training on" not in commands.told(row)


def test_a_row_without_a_cell_of_its_model_has_no_command() -> None:
    claim = dataclasses.replace(one("table2.qwen2.5-7b.hellaswag"), stage="read@paper")
    assert claims.command(claim) is None
    assert "an experiment of its own" in claims.reason(claim)


def test_passes_of_readings_are_counted() -> None:
    chosen = settings.load(ROOT / "params.yaml", "gpu", ROOT / "scales")
    full, routed = chosen.cell("types-modelgpt2"), chosen.cell("types_paper-modelgpt2")
    text, answers = chosen.readings["pg19"], chosen.readings["types_benchmarks"]
    assert windows(full, text) == {1024: 24 * 4}
    assert windows(routed, text) == {1024: 3 * 24 * 4}  # two masks, and the training gate
    assert windows(full, answers) == {QUESTION: 4 * 10000}
    with pytest.raises(ValueError, match=r"experiments\.types\.readings: .* kind chat"):
        windows(full, chosen.readings["chat"])
