"""Readings that are longer than a model's context are refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import lengths
from experiments.settings import Chat, Perplexity, Reading, Ruler, Settings
from experiments.sources import catalogue, models
from experiments.sources.models import byte_tokenizer
from experiments.stages import read, train

MODEL = "tiny-llama"  # 4,096 positions
ASKED = 34  # tokens of the longest question below, a byte each, and of its answer


@pytest.fixture(autouse=True)
def speaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer that has a chat format, and three questions."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for each in messages %}<{{ each['content'] }}>{% endfor %}"
    monkeypatch.setattr(models, "load_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(lengths, "QUESTIONS", ("Why?", "How far is it to the sea?", "Who?"))


def chat(before: int) -> Chat:
    return Chat(texts=("plays",), before=(0, before), context=5000, answer=7, questions=3)


def perplexity(context: int) -> Perplexity:
    return Perplexity(texts=("plays",), context=context)


def ruler(length: int) -> Ruler:
    return Ruler(tasks=("single",), lengths=(128, length))


@pytest.mark.parametrize(("of", "field", "most"), [
    (perplexity, "context", 4096), (ruler, "lengths", 4096), (chat, "before", 4096 - ASKED),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_its_field_and_told_what_would(of, field, most) -> None:
    lengths.refuse("mine", of(most), MODEL)
    with pytest.raises(ValueError, match=rf"^readings\.mine\.{field}: .*tiny-llama has 4,096; "
                       rf"take at most {most:,}, or another model$"):  # fmt: skip
        lengths.refuse("mine", of(most + 1), MODEL)


def test_a_fetched_models_config_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    assert lengths.positions("mine") is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text('{"model_type": "gpt2", "n_positions": 512}')
    assert lengths.positions("mine") == 512


def test_nothing_runs_before(params: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the training, which takes hours, nor the reading."""
    from tests.experiments.training import workspace

    chosen: Settings = workspace(tmp_path, params)
    long: Reading = chosen.readings["search"].model_copy(update={"context": 5000})
    monkeypatch.setitem(chosen.readings, "search", long)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "nothing", lambda *a: False)
    monkeypatch.setattr("experiments.settings.load", lambda: chosen)
    monkeypatch.setattr("experiments.training.train", lambda *a, **k: pytest.fail("it trains"))
    assert train.main(["adapted", "--seed", "0"]) != 0
    with pytest.raises(ValueError, match=r"^readings\.search\.context: 5,000 tokens"):
        read.read("plain", chosen)
    assert not Path("results").exists()


def test_a_training_longer_than_the_models_context_is_refused(
    params: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Also of what an experiment starts from."""
    from tests.experiments.training import LORA, workspace

    own = {"adapted": {"base": "plain", "regime": {**LORA, "context": 5000}}}
    chosen = workspace(tmp_path, params, own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.settings.load", lambda: chosen)
    monkeypatch.setattr("experiments.training.train", lambda *a, **k: pytest.fail("it trains"))
    assert train.main(["recipe", "--seed", "0"]) != 0
    assert ("experiments.adapted.regime.context: 5,000 tokens, and the context of tiny-llama has "
            "4,096; take at most 4,096") in capsys.readouterr().err  # fmt: skip


def test_texts_within_the_window_are_told_of(params: dict, tmp_path: Path) -> None:
    """There every pair is kept, whatever is routed: the sixty-fifth token sees the first beyond 64,
    unless that is a sink."""
    from tests.experiments.training import CENTROIDS, ROUTED, workspace

    def told(window: int, sinks: int) -> list[str]:
        method = {**ROUTED, "window": window, "sinks": sinks}
        own = {"mine": {"base": "plain", "method": method, "regime": {**CENTROIDS, "context": 65}}}
        return lengths.short("mine", workspace(tmp_path, params, own))

    assert told(64, 0) == []
    for window, sinks in ((65, 0), (64, 1)):
        (line,) = told(window, sinks)
        assert line.startswith(f"mine: regime: no pair of 65 tokens is beyond a window of {window}")
    assert [line.split(": ")[1] for line in told(2000, 0)] == ["reading search", "regime"]
    assert lengths.short("adapted", workspace(tmp_path, params)) == []  # full attention
