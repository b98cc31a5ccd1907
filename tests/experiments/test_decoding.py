"""The stages decode and generation at their smallest, and GSM8K's questions and answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

import focus
from experiments import gsm8k, models, settings, stepping
from experiments.decode_settings import DecodeRouting, DecodeSettings, GenerationSettings
from experiments.gsm8k import Question
from experiments.record import Run
from experiments.stages import decode as decode_stage
from experiments.stages import generation as generation_stage
from focus import FocusConfig
from tests.models import token_ids

ROUTINGS = (DecodeRouting(4), DecodeRouting(4, 2, "multi_probe", "key_head", 3))


def test_a_step_of_every_method(tmp_path: Path, params: dict) -> None:
    params["decode"] = {
        "contexts": [40, 700], "repetitions": 5, "megabytes": 1, "window": 16,
        "dtypes": ["float32", "bfloat16"],
        "routings": [
            {"groups": 4},
            {"groups": 4, "top_k": 2, "probe": "multi_probe", "extra_keys": 2},
        ],
    }  # fmt: skip
    chosen = settings.parse(params)
    with Run("decode", None, chosen, root=tmp_path) as run:
        decode_stage.decode(run, chosen)
    table = pd.read_csv(tmp_path / "decode" / "table.csv")
    assert len(table) == 2 * 2 * 5
    ours = table[table["method"] == "ours"]
    assert (ours["error"] < ours["dtype"].map({"float32": 1e-5, "bfloat16": 3e-2})).all()
    assert (table["low_s"] <= table["median_s"]).all()
    assert sorted(ours["extra_keys"].unique()) == [0, 2]
    full = table[(table["method"] == "full") & (table["context"] == 700)]
    assert len(full) == 2
    assert (full["speedup"] == 1).all()
    # Steps of warming up and of the measurement make the cache longer.
    assert full["bytes_read"].min() >= 2 * 3 * 700 * 64 * 2


def test_what_ours_reads_is_counted() -> None:
    plan = DecodeSettings((3000,), ROUTINGS, window=64, megabytes=1)
    layers = stepping.Layers(plan, 3000, torch.float32, torch.device("cpu"), seed=0)
    for routing, share in zip(ROUTINGS, (1 / 4, 1 / 2), strict=True):
        read = stepping.ours(layers, routing).step(0)
        keys = read / (2 * 3 * 64 * 4)
        assert share * 2500 < keys < share * 3100 + 64 + 32 + 128 + 4


def test_settings_that_are_nonsense() -> None:
    for wrong in ({"contexts": ()}, {"contexts": (1,)}, {"routings": ROUTINGS + ROUTINGS[:1]},
                  {"heads": 7}, {"repetitions": 1}, {"window": 0}):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong)).replace("heads", "key_heads")):
            DecodeSettings(**{"contexts": (512,), "routings": ROUTINGS, **wrong})
    with pytest.raises(ValueError, match="top_k: 5 is above"):
        DecodeRouting(4, 5)
    with pytest.raises(ValueError, match="variants"):
        GenerationSettings((), ())


def test_generation_must_name_variants_of_the_file(params: dict) -> None:
    params["generation"]["variants"] = ["nobody"]
    with pytest.raises(ValueError, match=r"generation\.variants: 'nobody'"):
        settings.parse(params)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" She has 3 + 4 = 7. So the answer is 7.\n\nQuestion: There are 12 ducks.", "7"),
        ("It is $1,250.50 a day", "1250.50"),
        ("minus -3", "-3"),
        ("So the answer is 18.", "18"),
        ("I do not know", None),
    ],
)
def test_the_answer_of_a_chain_of_thought(text: str, number: str | None) -> None:
    assert gsm8k.answer(text) == number


def test_questions_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / gsm8k.FILE
    path.parent.mkdir(parents=True)
    rows = [
        {"doc_id": i, "request": {"context": f"Question {i}"}, "doc": {"short_answer": str(i)}}
        for i in range(3)
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert gsm8k.load(2, tmp_path) == [
        Question(0, "Question 0", "0"),
        Question(1, "Question 1", "1"),
    ]
    with pytest.raises(ValueError, match=r"generation\.questions: 4"):
        gsm8k.load(4, tmp_path)
    with pytest.raises(ValueError, match="fetch benchmarks"):
        gsm8k.load(4, tmp_path / "elsewhere")


def test_generation_compares_the_two_modes() -> None:
    model, tokenizer = models.load("tiny-llama")
    questions = [Question(0, "Two and two? " * 9, "4"), Question(1, "How many ducks?", "7")]
    # K = 1 is full attention: the modes must agree everywhere, batch and padding included.
    focus.attach(model, FocusConfig(num_groups=1, window=4), seed=0)
    for row in generation_stage.compare(model, tokenizer, questions, 12):
        assert row["agreement_forced"] == row["agreement_free"] == 1.0
        assert (row["same_until"], row["cache_differs_hard"]) == (12, 0)
    focus.detach(model)
    focus.attach(model, FocusConfig(num_groups=4, window=4, sinks=0), seed=0)
    rows = list(generation_stage.compare(model, tokenizer, questions, 12))
    assert all(row["cache_differs_hard"] == row["cache_differs_full"] == 0 for row in rows)
    assert min(row["agreement_free"] for row in rows) < 1


def test_the_cache_chooses_what_the_whole_sequence_would() -> None:
    model, _ = models.load("tiny-llama")
    focus.attach(model, FocusConfig(num_groups=4, window=8, sinks=2), seed=0)
    row = generation_stage.go_on(model, token_ids(1, 90), 24)
    assert (row["prompt_tokens"], row["tokens"]) == (90, 24)
    assert row["cache_differs_full"] == row["cache_differs_hard"] == 0
