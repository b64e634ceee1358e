import numpy as np
import pytest
import scipy.stats

from bayesemble.apps.serve.watch.two_samples import (
    distance,
    larger_p_value,
    ordered_p_value,
    p_value,
    unordered_p_value,
)
from bayesemble.apps.tables.profile import Histogram


def test_with_an_edge_at_every_value_it_is_the_test_of_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=120).astype(np.float32), rng.normal(0.3, 1, size=90).astype(np.float32)
    both = Histogram(np.unique(np.concatenate([first, second])), np.ones(212, np.int64))
    there, here = both.count(first), both.count(second)
    exact = scipy.stats.ks_2samp(first, second, method="asymp")
    assert distance(there, here) == pytest.approx(exact.statistic, abs=1e-12)
    # scipy rounds the effective number of rows for the exact law of one sample
    assert ordered_p_value(there, here) == pytest.approx(exact.pvalue, rel=0.15)


def test_edges_alone_can_only_make_it_more_careful():
    rng = np.random.default_rng(1)
    for _ in range(50):
        first, second = rng.normal(size=300).astype(np.float32), rng.normal(size=80).astype(np.float32)
        histogram = Histogram.of(first, most_edges=20)
        assert (
            distance(histogram.counts, histogram.count(second)) <= scipy.stats.ks_2samp(first, second).statistic + 1e-12
        )


@pytest.mark.parametrize("kind", ["normal", "few values", "categories", "rare categories"])
def test_p_values_hold_without_a_change(kind):
    rng, small = np.random.default_rng(2), 0
    for _ in range(600):
        if kind == "normal":
            first, second = rng.normal(size=200), rng.normal(size=60)
            histogram = Histogram.of(first, 30)
        elif kind == "few values":
            first, second = rng.integers(3, size=200).astype(float), rng.integers(3, size=60).astype(float)
            histogram = Histogram.of(first, 30)
        else:
            shares = [0.5, 0.3, 0.2] if kind == "categories" else [0.9, *[0.01] * 10]
            first, second = rng.choice(len(shares), 200, p=shares), rng.choice(len(shares), 60, p=shares)
            histogram = Histogram.of_codes(first, len(shares))
        small += p_value(histogram, histogram.count(second)) <= 0.05
    assert small <= scipy.stats.binom.ppf(0.999, 600, 0.05)


def test_missing_cells_are_a_value_below_all():
    values = np.random.default_rng(3).normal(size=500)
    histogram = Histogram.of(values)
    half = np.where(np.arange(100) % 2, np.nan, values[:100])
    assert p_value(histogram, histogram.count(values[:100])) > 0.5
    assert p_value(histogram, histogram.count(half)) < 1e-9


def test_fisher_is_that_of_scipy():
    for a, n, b, m in ((3, 10, 5, 40), (0, 10, 5, 40), (10, 10, 0, 40)):
        expected = scipy.stats.fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
        assert larger_p_value(a, n, b, m) == pytest.approx(expected, rel=1e-9)


def test_a_category_that_was_never_there_is_noticed():
    reference = np.array([0, 500, 500])
    assert unordered_p_value(reference, np.array([0, 52, 48])) > 0.1
    assert unordered_p_value(reference, np.array([10, 45, 45])) < 1e-6
