"""Tests of whether counts come from the same distribution as those of a reference: p-values that hold for any of them.

Both samples are counted in the bins of one histogram. Under the hypothesis that both are drawn from one distribution,
each p-value is at most a with a probability of at most a, whatever that distribution is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bayesemble.apps.tables.profile import Counts, Histogram


def distance(reference: Counts, counts: Counts) -> float:
    """The largest difference of the shares up to a bin: Kolmogorov's and Smirnov's D, at the edges of the bins."""
    return float(np.abs(np.cumsum(reference) / reference.sum() - np.cumsum(counts) / counts.sum()).max())


def ordered_p_value(reference: Counts, counts: Counts) -> float:
    """P(a distance as large or larger), of ordered bins.

    p = K( sqrt(m n / (m + n)) D ),  with  K(x) = 2 sum_k (-1)^(k-1) exp(-2 k^2 x^2)

    The distance is looked for at the edges alone, so it is at most that of the values, and the p-value at least theirs.

    Reference: Smirnov (1939).
    """
    from scipy.special import kolmogorov

    m, n = int(reference.sum()), int(counts.sum())
    return float(kolmogorov(math.sqrt(m * n / (m + n)) * distance(reference, counts)))


def larger_p_value(successes: Any, rows: int, reference_successes: Any, reference_rows: int) -> Any:
    """P(as many or more successes among the new rows, given how many both samples have together): Fisher's exact test.

    Shape: of the successes.
    """
    from scipy.stats import hypergeom

    together = np.asarray(successes) + np.asarray(reference_successes)
    return hypergeom.sf(np.asarray(successes) - 1, rows + reference_rows, together, rows)


def unordered_p_value(reference: Counts, counts: Counts) -> float:
    """P(the most surprising change of the share of a category), by Fisher's exact test for each, corrected for all."""
    m, n = int(reference.sum()), int(counts.sum())
    seen = (reference + counts) > 0
    there, here = reference[seen], counts[seen]
    more, fewer = larger_p_value(here, n, there, m), larger_p_value(there, m, here, n)
    smallest = float(np.minimum(more, fewer).min())
    return min(1.0, 2 * int(seen.sum()) * smallest)


def p_value(histogram: Histogram, counts: Counts) -> float:
    """The test that suits the histogram."""
    test = unordered_p_value if histogram.edges is None else ordered_p_value
    return test(histogram.counts, counts)
