import math

import pytest
import torch

from bayesemble.core.errors import SettingError
from bayesemble.execute.optimizers.rates import check_patterns, factors_of, log_uniform, of_part, parts

NAMES = ["body.weight", "body.bias", "head.weight"]


def test_one_rate_is_one_part():
    assert parts(NAMES, 0.1) == [(NAMES, None, 0.1)]


def test_members_and_factors_of_leaves_multiply():
    factors = {"body.weight": 2.0, "body.bias": 2.0, "head.weight": 10.0}
    assert parts(NAMES, [1.0, 3.0], factors) == [
        (NAMES[:2], 0, 2.0),
        (NAMES[:2], 1, 6.0),
        (NAMES[2:], 0, 10.0),
        (NAMES[2:], 1, 30.0),
    ]


def test_what_a_part_has_is_a_view_of_the_whole():
    leaves, unbound = {name: torch.zeros(2, 3) for name in NAMES}, {}
    for part in parts(NAMES, [1.0, 3.0]):
        for view in of_part(leaves, part, unbound):
            view.add_(part.rate)
    assert all(torch.equal(leaf, torch.tensor([[1.0], [3.0]]).expand(2, 3)) for leaf in leaves.values())


def test_the_first_pattern_counts_also_for_what_a_method_keeps_of_a_leaf():
    own = [*NAMES, "components.head.weight", "method.log_std.body.bias", "likelihood.log_noise"]
    found = factors_of(own, {"head.*": 0.1, "*.bias": 0.2, "*": 0.3}, NAMES)
    assert found == dict(zip(own, [0.3, 0.2, 0.1, 0.1, 0.2, 0.3], strict=True))


def test_of_leaves_whose_names_end_alike_the_longest_is_meant():
    assert factors_of(["components.1.0.w"], {"0.w": 1.0, "1.0.w": 2.0}, ["0.w", "1.0.w"]) == {"components.1.0.w": 2.0}


def test_leaves_without_a_pattern_and_patterns_without_a_leaf_are_refused():
    with pytest.raises(SettingError, match=r"no pattern for the leaf 'body\.weight'"):
        check_patterns({"head.*": 0.1}, NAMES)
    with pytest.raises(SettingError, match=r"a pattern 'haed\.\*' that no leaf matches; leaves are body\.bias"):
        check_patterns({"haed.*": 0.1, "*": 0.1}, NAMES)


def test_drawn_rates_are_log_uniform_and_do_not_depend_on_how_many_there_are():
    drawn = log_uniform(1e-4, 1e-2, 4000, 0)
    assert min(drawn) >= 1e-4
    assert max(drawn) <= 1e-2
    shares = sorted((math.log(rate) - math.log(1e-4)) / math.log(100) for rate in drawn)
    distance = max(abs(share - (i + 0.5) / 4000) for i, share in enumerate(shares))
    assert distance < 1.63 / math.sqrt(4000), "Kolmogorov and Smirnov at 1 %"
    assert log_uniform(1e-4, 1e-2, 5, 0) == pytest.approx(drawn[:5])
    assert log_uniform(1e-4, 1e-2, 5, 1) != log_uniform(1e-4, 1e-2, 5, 0)
