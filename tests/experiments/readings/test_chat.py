"""Answers of the untrained model, and how far another one is from them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from experiments.chat import asking
from experiments.chat.questions import QUESTIONS
from experiments.readings import chat
from experiments.readings.subject import Subject, parts
from experiments.settings import Chat, Settings
from experiments.sources.models import byte_tokenizer

FORMAT = "{% for each in messages %}<{{ each['content'] }}>{% endfor %}"
READING = Chat(texts=("letters",), questions=3, before=(0, 40), context=64, answer=5, documents=2)


@pytest.fixture
def speaking(workspace: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A workspace whose tokenizers have a chat format."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = FORMAT
    monkeypatch.setattr(Subject, "tokenizer", tokenizer)
    asking.untrained.cache_clear()
    asking.answered.cache_clear()
    return workspace


def rows(settings: Settings, cell: str) -> list[dict]:
    subject = Subject(settings.cell(cell), 0, READING, settings)
    return [row for _, part in parts(chat, subject, READING) for row in part()]


def test_the_untrained_model_is_no_distance_from_itself(speaking: Settings) -> None:
    found = rows(speaking, "pretrained")
    assert [row["before"] for row in found] == [0] * 3 + [40] * 3
    assert all(row["divergence"] == 0 and row["agreed"] == 100 for row in found)
    assert found[3]["prompt"] - found[0]["prompt"] == 42  # the text and two line ends


def test_a_mask_is_some_way_off_where_it_reaches(speaking: Settings) -> None:
    found = [row for row in rows(speaking, "untrained") if row["before"] == 40]
    assert all(row["divergence"] > 0 and row["distant_density"] < 1 for row in found)


def test_divergence_is_that_of_a_loop() -> None:
    first, other = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    nats = [float((p * (p / q).log()).sum())
            for p, q in zip(first.softmax(-1), other.softmax(-1), strict=True)]  # fmt: skip
    found = chat.compared(first, other)
    assert found["divergence"] == pytest.approx(sum(nats) / 2, abs=1e-6)
    assert found["agreed"] == 50


def test_a_model_without_a_chat_format_is_refused() -> None:
    silent = SimpleNamespace(chat_template=None)
    with pytest.raises(ValueError, match="instruct models alone"):
        asking.prompt(silent, "Why?", torch.tensor([]))


def test_questions_are_told_apart() -> None:
    assert len(set(QUESTIONS)) == len(QUESTIONS) >= READING.questions


@pytest.mark.parametrize(
    ("wrong", "said"), [({"before": [99]}, "before"), ({"texts": ["letters", "more"]}, "texts")]
)
def test_what_cannot_be_asked_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Chat(**{**READING.model_dump(), **wrong})
