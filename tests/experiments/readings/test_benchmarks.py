"""Answers by lm-eval are those of the model itself, under a mask and without."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import focus
from experiments import registry
from experiments.benchmarks import tasks
from experiments.methods.base import built
from experiments.readings import benchmarks
from experiments.readings.subject import Condition, parts
from experiments.settings import Benchmarks
from experiments.settings.schema import parse
from experiments.stages import read
from tests.experiments.conftest import PIQA, TRUTH
from tests.models import tiny

READING = Benchmarks(tasks=("piqa",), questions=5, window=8, sinks=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what lm-eval asks pip and the compiler after every task, for seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda found: None)


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of single characters."""
    known = {chr(code): code for code in range(32, 127)} | {"\n": 1, "<end>": 0}
    one = Tokenizer(models.WordLevel(known, unk_token="<end>"))
    one.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=one, eos_token="<end>")


class Known:
    """A subject without files."""

    def __init__(self, masked: bool, balance: str = "causal") -> None:
        self.model = tiny("tiny-llama").eval()
        if masked:
            config = focus.FocusConfig(num_groups=4, window=8, sinks=2, ngram=0, balance=balance)
            focus.attach(self.model, config, seed=0)
        self.masked, self.tokenizer = masked, letters()
        name = "focus" if masked else "full"
        self.cell = SimpleNamespace(method=SimpleNamespace(name=name), aim=lambda budget: budget)
        self.method: Any = SimpleNamespace(
            settings=SimpleNamespace(dense_last=0), describe=lambda budget: {"balance": balance}
        )
        self.budgets = (None,)

    def entered(self, how: Condition) -> Any:
        return focus.mode(self.model, how.name) if self.masked else nullcontext()

    def row(self, how: Condition, **more: Any) -> dict[str, Any]:
        return {"condition": how.name, **more}


def answers(subject: Known, reading: Benchmarks = READING) -> list[dict[str, Any]]:
    return [row for _, part in parts(benchmarks, subject, reading) for row in part()]


def by_hand(subject: Known, number: int, masked: bool) -> tuple[float, float]:
    """Whether the right solution is the likelier one, and its log-likelihood."""
    row, found = PIQA[number], []
    for answer in (row["sol1"], row["sol2"]):
        prompt = f"Question: {row['goal']}\nAnswer:"
        ids = torch.tensor([letters()(f"{prompt} {answer}")["input_ids"]])
        with subject.entered(Condition("hard" if masked else "full")), torch.no_grad():
            # Without the last token, which Sinkhorn would weigh.
            logits = subject.model(ids[:, :-1], use_cache=False).logits.log_softmax(-1)
        own = ids[0, len(prompt) :]
        found.append(float(logits[0, len(prompt) - 1 :].gather(-1, own[:, None]).sum()))
    return float(max(range(2), key=lambda n: found[n]) == row["label"]), found[row["label"]]


@pytest.mark.parametrize("balance", [None, "causal", "sinkhorn"])
def test_answers_are_the_models_own(questions: Path, balance: str | None,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(benchmarks, "LEAST", 4)
    masked = balance is not None
    subject = Known(masked, balance or "causal")
    rows = answers(subject)
    assert [row["document"] for row in rows] == ["0", "1", "3", "4", "6"]
    assert {row["condition"] for row in rows} == {"hard" if masked else "full"}
    for row in rows:
        right, nats = by_hand(subject, int(row["document"]), masked)
        assert row["correct"] == right
        assert row["right_nats"] == pytest.approx(nats, abs=1e-3)
        assert 0 < row["exposure"] < 1


def test_a_record_of_questions_tells_that_it_opened_test_data() -> None:
    nothing: Any = None  # of settings is asked: no texts are read
    found = read.opened(READING, nothing)
    assert found == {"side": "test", "final": True, "documents": 5, "texts": {}}


def test_a_batch_changes_nothing(questions: Path) -> None:
    one = answers(Known(True))
    eight = answers(Known(True), READING.model_copy(update={"batch_size": 8}))
    for first, second in zip(one, eight, strict=True):
        assert first["right_nats"] == pytest.approx(second["right_nats"], abs=1e-3)
        assert first["correct"] == second["correct"]


def test_full_mode_is_the_pretrained_model_to_the_last_digit(questions: Path) -> None:
    subject = Known(True)
    subject.cell.method.name = "full"
    assert answers(subject) == answers(Known(False))


def test_prompts_longer_than_the_context_are_refused(questions: Path) -> None:
    subject = Known(False)
    subject.model.config.max_position_embeddings = 24
    with pytest.raises(ValueError, match=r"a prompt has \d+ tokens, the model's context 24"):
        answers(subject)


class Numbered(Known):
    """The same under SparQ with a number of keys."""

    def __init__(self, keys: int) -> None:
        super().__init__(masked=False)
        self.cell.method.name = "sparq_keys"
        fields = {"window": 8, "sinks": 0, "keys": keys}
        self.method = built(registry.find("method", "sparq_keys"), fields, seed=0)
        self.method.install(self.model)

    def entered(self, how: Condition) -> Any:
        return self.method.applied(self.model, how.budget)


def test_a_method_with_a_number_of_keys_tells_how_many_it_kept(questions: Path) -> None:
    rows = answers(Numbered(20))
    lengths = [len(f"Question: {PIQA[int(row['document'])]['goal']}\nAnswer: {answer}") - 1
               for row in rows for answer in
               (PIQA[int(row["document"])][name] for name in ("sol1", "sol2"))]  # fmt: skip
    kept = [min(place + 1, 20) for length in lengths for place in range(length)]
    assert {round(row["keys"], 6) for row in rows} == {round(sum(kept) / len(kept), 6)}


def test_of_several_right_answers_the_share_of_the_likelihood_counts(questions: Path) -> None:
    """TruthfulQA's MC2, by lm-eval's own rule."""
    (questions / "truthfulqa/mc_task.json").write_text(json.dumps(TRUTH * 2))
    first, _ = answers(Known(False), READING.model_copy(update={"tasks": ("truthfulqa_mc2",)}))
    subject, nats = Known(False), {}
    with tempfile.TemporaryDirectory() as folder:
        task = tasks.load("truthfulqa_mc2", 0, Path(folder))
        prompt = task.fewshot_context(task.eval_docs[0], 0)
    start = len(letters()(prompt)["input_ids"])
    for answer in ("yes", "it is", "no"):
        ids = torch.tensor([letters()(f"{prompt} {answer}")["input_ids"]])
        with torch.no_grad():
            logits = subject.model(ids, use_cache=False).logits.log_softmax(-1)
        own = ids[0, start:]
        nats[answer] = float(logits[0, start - 1 : -1].gather(-1, own[:, None]).sum())
    every = torch.tensor(list(nats.values())).exp()
    assert first["correct"] == pytest.approx(float(every[:2].sum() / every.sum()), abs=1e-4)
    assert first["right_nats"] == pytest.approx(nats["yes"], abs=1e-3)


SUMS = Benchmarks(tasks=("gsm8k",), questions=3, shots=(2,), window=8, sinks=2)


@pytest.mark.parametrize("masked", [False, True])
def test_sums_are_answered_by_what_the_model_writes(
    questions: Path,
    masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmarks.Checked, "max_gen_toks", 12)
    subject = Known(masked)
    rows = answers(subject, SUMS)
    assert [row["document"] for row in rows] == ["0", "2", "4"]  # each once
    assert {row["correct"] for row in rows} == {0.0}  # of random weights
    written = []

    def generated(self: Any, requests: Any, **_: Any) -> list[str]:
        written.extend(each.args[0] for each in requests)
        return ["so 3 #### 3"] * len(requests)

    monkeypatch.setattr(benchmarks.HFLM, "generate_until", generated)
    assert [row["correct"] for row in answers(subject, SUMS)] == [0.0, 1.0, 0.0]  # 2 + 1
    assert all(prompt.count("####") == 2 for prompt in written)


def test_an_answer_that_the_context_has_no_room_for_is_refused(questions: Path) -> None:
    subject = Known(False)
    subject.model.config.max_position_embeddings = 300
    with pytest.raises(ValueError, match=r"a prompt and its answer may have \d+ tokens"):
        answers(subject, SUMS)


@pytest.mark.parametrize(("tokens", "share"), [(0, 0), (10, 0), (11, 2 / 132), (100, 0.81)])
def test_exposure_is_the_share_of_distant_pairs(tokens: int, share: float) -> None:
    assert benchmarks.exposure(tokens, 8, 2) == pytest.approx(share, abs=0.001)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^readings\.x\.shot: unknown field"):
        parse(Benchmarks, {"tasks": ["piqa"], "shot": [1]}, "readings.x")
