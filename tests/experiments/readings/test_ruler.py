"""Long-context tasks are scored as a loop over the answers' tokens scores them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import focus
from experiments.readings import ruler
from experiments.readings.subject import Condition, parts
from experiments.ruler import tasks
from experiments.settings import Ruler
from experiments.sources.models import byte_tokenizer
from focus.density import PairCounts
from tests.experiments.readings.test_benchmarks import Known

READING = Ruler(tasks=("multivalue", "squad"), lengths=(700,), questions=2)


class Letters(Known):
    """A subject without files, whose tokens are bytes."""

    def __init__(self, masked: bool) -> None:
        super().__init__(masked)
        self.tokenizer = byte_tokenizer()

    @contextmanager
    def entered(self, how: Condition) -> Iterator[Any]:
        with super().entered(how):
            hard = how.name == "hard"
            yield lambda: PairCounts.total(focus.pair_counts(self.model).values() if hard else ())


def test_nats_and_answers_found_are_those_of_a_loop(material_of_letters: None) -> None:
    subject = Letters(masked=True)
    rows = [row for _, part in parts(ruler, subject, READING) for row in part()]
    assert [row["texts"] for row in rows] == ["multivalue"] * 2 + ["squad"] * 2
    for row in rows:
        prompt = tasks.prompt(row["texts"], int(row["document"]), 700, subject.tokenizer)
        with torch.no_grad(), subject.entered(Condition("hard")):
            logits = subject.model(torch.tensor([prompt.ids]), use_cache=False).logits[0].double()
        nats, found = 0.0, []
        for start, end in prompt.answers:
            right = [logits[place - 1].argmax() == prompt.ids[place] for place in range(start, end)]
            nats -= sum(float(logits[place - 1].log_softmax(-1)[prompt.ids[place]])
                        for place in range(start, end))  # fmt: skip
            found.append(all(right))
        assert abs(row["nll"] - nats) < 1e-3
        assert row["found"] == sum(found) / len(found)
        assert row["tokens"] == sum(end - start for start, end in prompt.answers)
        assert row["condition"] == "hard"
        assert 0 < row["distant_density"] < 1


def test_a_full_model_is_read_once_and_finds_what_it_repeats(material_of_letters: None) -> None:
    subject = Letters(masked=False)
    found = {name: part() for name, part in parts(ruler, subject, READING)}
    assert list(found) == ["multivalue.700.full.None", "squad.700.full.None"]
    prompt = tasks.prompt("squad", 0, 700, subject.tokenizer)
    with torch.no_grad():
        logits = subject.model(torch.tensor([prompt.ids])).logits[0]
    ((start, end),) = prompt.answers
    for place in range(start, end):
        prompt.ids[place] = int(logits[place - 1].argmax())
        with torch.no_grad():
            logits = subject.model(torch.tensor([prompt.ids])).logits[0]
    _, (right,) = ruler.scored(subject, prompt)
    assert right.all()
