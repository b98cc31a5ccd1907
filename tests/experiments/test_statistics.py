import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments import statistics


def table(generator, seeds, documents, by_seed, by_document, rest, mean=0.01):
    return (
        mean
        + by_seed * generator.standard_normal((seeds, 1))
        + by_document * generator.standard_normal((1, documents))
        + rest * generator.standard_normal((seeds, documents))
    )


@pytest.mark.parametrize(
    ("seeds", "documents", "by_seed", "by_document", "rest"),
    [(1, 8, 0.0, 0.02, 0.01), (3, 24, 0.01, 0.01, 0.01), (3, 8, 0.0, 0.02, 0.01),
     (3, 8, 0.02, 0.005, 0.01), (5, 24, 0.01, 0.02, 0.02)],
)  # fmt: skip
def test_coverage(seeds, documents, by_seed, by_document, rest):
    """About nineteen intervals of twenty hold the truth, whichever spread is the larger."""
    generator = np.random.default_rng(0)
    held = []
    for _ in range(1500):
        found = statistics.two_way(table(generator, seeds, documents, by_seed, by_document, rest))
        held.append(found.low <= 0.01 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.995


def test_seeds_widen():
    """An interval over documents alone is too narrow where seeds differ."""
    generator = np.random.default_rng(1)
    held, alone = [], []
    for _ in range(500):
        values = table(generator, 3, 24, 0.02, 0.005, 0.005)
        found = statistics.two_way(values)
        held.append(found.low <= 0.01 <= found.high)
        found = statistics.mean(values.mean(0))
        alone.append(found.low <= 0.01 <= found.high)
    assert np.mean(held) > 0.92
    assert np.mean(alone) < 0.5


def test_one_seed_is_the_t_interval():
    values = np.random.default_rng(2).standard_normal(9)
    found = statistics.mean(values, 0.9)
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert (found.documents, found.seeds) == (9, 1)


def rows(nats, seeds=(0,), documents=("a", "b", "c"), tokens=100):
    return pd.DataFrame([
        {"seed": seed, "document": name, "sha": name * 3, "nll": value * tokens, "tokens": tokens}
        for seed, line in zip(seeds, np.atleast_2d(nats), strict=True)
        for name, value in zip(documents, line, strict=True)
    ])  # fmt: skip


def test_paired_change():
    base = rows([3.0, 3.5, 2.5])
    found = statistics.paired_change(rows([3.01, 3.51, 2.51]), base)
    assert found.value == pytest.approx(np.expm1(0.01))
    assert found.high - found.low == pytest.approx(0, abs=1e-9)


def test_a_baseline_of_one_seed_stands_beside_each():
    base = rows([3.0, 3.5, 2.5])
    ours = rows([[3.0, 3.5, 2.5], [3.02, 3.52, 2.52]], seeds=(0, 1))
    found = statistics.paired_change(ours, base)
    assert found.value == pytest.approx(np.expm1(0.01))
    assert found.seeds == 2
    assert found.low < 0 < found.high


def test_equal_seeds_are_paired():
    nats = [[3.0, 3.5, 2.5], [4.0, 4.5, 3.5]]
    more = [[value + 0.01 for value in line] for line in nats]
    found = statistics.paired_change(rows(more, seeds=(0, 1)), rows(nats, seeds=(0, 1)))
    assert found.high - found.low == pytest.approx(0, abs=1e-9)


def test_other_tokens_are_refused():
    other = rows([3.0, 3.5, 2.5]).assign(sha="other")
    with pytest.raises(ValueError, match="same documents"):
        statistics.paired_change(rows([3.0, 3.5, 2.5]), other)
    twice = pd.concat([other, other])
    with pytest.raises(ValueError, match="more than one condition"):
        statistics.paired_change(twice, twice)


def test_ratio():
    generator = np.random.default_rng(3)
    held = []
    for _ in range(800):
        below = 2 + 0.3 * generator.standard_normal((1, 20))
        above = 0.8 * below + 0.1 * generator.standard_normal((1, 20))
        found = statistics.ratio(above, below)
        held.append(found.low <= 0.8 <= found.high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_median():
    found = statistics.median([1.0, 1.1, 0.9, 1.05, 1.0], 0.95, 500, 0)
    assert found.low <= 1.0 <= found.high
    assert found.value == 1.0
