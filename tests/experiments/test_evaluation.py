import math
from pathlib import Path

import pytest
import torch

from experiments.evaluation import (
    DocumentScore,
    Partial,
    mean_interval,
    perplexity,
    perplexity_interval,
    relative_change,
    score_documents,
    token_nll,
)
from experiments.settings import BootstrapSettings
from tests.models import tiny, token_ids

BOOTSTRAP = BootstrapSettings(samples=2000, confidence=0.95)


def scores(factor: float = 1.0) -> list[DocumentScore]:
    return [DocumentScore(f"book {i}", factor * (90 + 5 * i), 30) for i in range(8)]


def test_token_nll_is_the_models_own_loss() -> None:
    model, ids = tiny("tiny-llama"), token_ids(1, 40)
    with torch.no_grad():
        out = model(ids, labels=ids, use_cache=False)
    losses = token_nll(out.logits, ids, score_from=1)
    assert losses.shape == (39,)
    assert torch.isclose(losses.mean(), out.loss)
    assert torch.equal(token_nll(out.logits, ids, score_from=10), losses[9:])


def test_documents_are_scored_window_by_window() -> None:
    model = tiny("tiny-llama")
    documents = [("a", token_ids(2, 40)), ("b", token_ids(1, 40, seed=1))]
    seen: list[int] = []
    found = score_documents(model, documents, 1, lambda: seen.append(1))
    assert [s.tokens for s in found] == [78, 39]
    assert len(seen) == 3
    single = score_documents(model, [("a", documents[0][1][:1])], 1)[0]
    assert single.nll < found[0].nll


def test_perplexity_weighs_tokens() -> None:
    one, two = DocumentScore("a", 10.0, 10), DocumentScore("b", 60.0, 20)
    assert perplexity([one, two]) == pytest.approx(math.exp(70 / 30))


def test_paired_change_of_a_constant_factor_has_no_spread() -> None:
    better = [DocumentScore(s.title, s.nll - 0.01 * s.tokens, s.tokens) for s in scores()]
    change = relative_change(better, scores(), BOOTSTRAP, seed=0)
    assert change.value == pytest.approx(math.expm1(-0.01))
    assert change.low == pytest.approx(change.high)
    interval = perplexity_interval(scores(), BOOTSTRAP, seed=0)
    assert interval.low < interval.value < interval.high


def test_intervals_are_repeatable_and_widen_with_confidence() -> None:
    one, two = (perplexity_interval(scores(), BOOTSTRAP, seed=0) for _ in range(2))
    assert one == two
    narrow = perplexity_interval(scores(), BootstrapSettings(2000, 0.5), seed=0)
    assert one.low < narrow.low < narrow.high < one.high


def test_a_pair_on_other_documents_is_refused() -> None:
    with pytest.raises(ValueError, match="same documents"):
        relative_change(scores()[1:], scores(), BOOTSTRAP, seed=0)


def test_mean_interval_covers_the_mean() -> None:
    found = mean_interval([0.0, 0.1, 0.2, 0.3], BOOTSTRAP, seed=1)
    assert found.value == pytest.approx(0.15)
    assert found.low < found.value < found.high


def test_partial_results_survive_and_are_dropped_when_their_cause_changes(tmp_path: Path) -> None:
    path, runs = tmp_path / "part.json", []

    def compute() -> dict:
        runs.append(1)
        return {"x": len(runs)}

    assert Partial(path, "one").get("k1", compute) == {"x": 1}
    again = Partial(path, "one")
    assert again.get("k1", compute) == {"x": 1}
    assert Partial(path, "two").get("k1", compute) == {"x": 2}
    again.done()
    assert not path.exists()
