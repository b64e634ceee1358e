"""The verdict: right on a clear winner, a tie, one seed, failures; its intervals are those of the paired t-test."""

import pytest
from scipy.stats import ttest_rel

from bayesemble.apps.report.verdict import (
    WORST_ECE,
    Difference,
    difference,
    duration,
    number,
    standing,
    tied_with_best,
    verdict,
)
from comparisons import made

GOOD = [0.20, 0.22, 0.19, 0.21]
BAD = [0.30, 0.33, 0.28, 0.31]
LIKE_GOOD = [0.21, 0.22, 0.20, 0.20]


def words_of(found):
    return " ".join(found.sentences)


def test_a_clear_winner_is_named_with_its_margin():
    comparison = made({"bad": {"nll": BAD}, "good": {"nll": GOOD}, "worse": {"nll": [1.0, 1.1, 0.9, 1.0]}})
    found = verdict(comparison)
    assert (found.use, found.best, found.tied) == ("good", "good", ())
    interval = ttest_rel(BAD, GOOD).confidence_interval(0.95)
    assert found.sentences[0].startswith("Use good:")
    assert "NLL of 0.205" in found.sentences[0]
    assert "the next one, bad, by 0.1 nats" in found.sentences[1]
    assert f"{interval.low:.3g} to {interval.high:.3g}, paired over 4 seeds" in found.sentences[1]


def test_differences_are_those_of_the_paired_test():
    comparison = made({"one": {"nll": GOOD, "accuracy": GOOD}, "two": {"nll": BAD, "accuracy": BAD}})
    gap = difference(comparison, "one", "two", "nll")
    interval = ttest_rel(BAD, GOOD).confidence_interval(0.95)
    assert gap.mean - gap.half == pytest.approx(interval.low)
    assert gap.mean + gap.half == pytest.approx(interval.high)
    other = difference(comparison, "one", "two", "accuracy")  # where higher is better the sign turns round
    assert (other.mean, other.half) == pytest.approx((-gap.mean, gap.half))


def test_pairs_matter_more_than_means():
    """Both methods vary widely over seeds, but one is always a little better: that is clear only in pairs."""
    base = [0.2, 0.9, 0.5, 1.4]
    comparison = made({"one": {"nll": base}, "two": {"nll": [x + 0.05 + 0.001 * i for i, x in enumerate(base)]}})
    assert verdict(comparison).tied == ()
    assert verdict(comparison).use == "one"


def test_among_tied_methods_the_cheapest_is_used_and_that_is_said():
    comparison = made(
        {
            "dear": {"nll": GOOD, "train_seconds": [50.0] * 4},
            "cheap": {"nll": LIKE_GOOD, "train_seconds": [2.0] * 4},
            "bad": {"nll": BAD, "train_seconds": [1.0] * 4},
        }
    )
    found = verdict(comparison)
    assert (found.use, found.best, found.tied) == ("cheap", "dear", ("cheap",))
    assert "it is as good as dear, within 0.01 nats per row" in found.sentences[0]
    assert "cheapest such method to train (2.0 s per run)" in found.sentences[0]
    assert "The lowest NLL, 0.205 nats per row, is that of dear" in found.sentences[1]


def test_without_costs_the_best_of_a_tie_is_used():
    found = verdict(made({"one": {"nll": LIKE_GOOD}, "two": {"nll": GOOD}, "three": {"nll": GOOD}}))
    assert (found.use, set(found.tied)) == ("two", {"one", "three"})
    assert "cheapest" not in words_of(found)
    assert "though three and one cannot be told from it with 4 seeds" in found.sentences[0]


def test_one_seed_cannot_tell():
    found = verdict(made({"one": {"nll": [0.1]}, "two": {"nll": [0.9]}}))
    assert (found.use, found.best, found.tied) == ("one", "one", ())
    assert "0.8 below the next one, two" in found.sentences[0]
    assert "cannot tell luck from merit" in words_of(found)
    assert "clearly" not in words_of(found)


def test_two_seeds_tell_only_large_differences():
    found = verdict(made({"one": {"nll": [0.1, 0.2]}, "two": {"nll": [0.2, 0.4]}}))
    assert found.tied == ("two",)
    assert "--seeds 5" in words_of(found)


@pytest.mark.parametrize(("seeds", "few"), [(4, True), (5, False)])
def test_five_seeds_are_not_called_few(seeds, few):
    losses = [0.1 + seed / 10 for seed in range(seeds)]
    found = verdict(made({"one": {"nll": losses}, "two": {"nll": losses[::-1]}}))
    assert ("So few seeds" in words_of(found)) == few


def test_a_cheap_method_that_is_far_behind_is_not_preferred_because_of_few_seeds():
    costs = {"train_seconds": [1.0, 1.0]}, {"train_seconds": [90.0, 90.0]}
    found = verdict(made({"cheap": {"nll": [0.2, 0.4], **costs[0]}, "dear": {"nll": [0.1, 0.2], **costs[1]}}))
    assert (found.use, found.tied) == ("dear", ("cheap",))
    assert "Its NLL is 0.15 below that of cheap" in words_of(found)


@pytest.mark.parametrize(("behind", "use"), [(0.02, "dear"), (0.0199, "cheap")])
def test_a_hundredth_of_a_nat_is_too_far_behind_to_be_used_for_its_price(behind, use):
    """The mean difference over both seeds is half of what one of them is behind."""
    dear, cheap = {"nll": [0.0, 0.0], "train_seconds": [9.0] * 2}, {"nll": [0.0, behind], "train_seconds": [1.0] * 2}
    assert verdict(made({"cheap": cheap, "dear": dear})).use == use


def test_shares_of_a_joint_run_do_not_tell_which_method_is_cheap():
    many = {"nll": [0.0, 0.0], "train_seconds": [1.0] * 2, "gradient_evaluations": [5000.0] * 2}
    single = {"nll": [0.0, 0.01], "train_seconds": [9.0] * 2, "gradient_evaluations": [1000.0] * 2}
    assert verdict(made({"single": single, "many": many})).use == "many"
    found = verdict(made({"single": single, "many": many}, together={"many": 2}))
    assert found.use == "single"
    assert "the cheapest such method to train (1,000 gradients per run)" in words_of(found)


def test_failed_methods_are_named_with_their_reason():
    found = verdict(made({"one": {"nll": GOOD}, "two": {"nll": BAD}}, failed={"three": "out of memory."}))
    assert found.use == "one"
    assert found.sentences[-1] == "three failed: out of memory."
    alone = verdict(made({"one": {"nll": GOOD}}, failed={"three": "out of memory"}))
    assert (alone.use, alone.sentences[-1]) == ("one", "three failed: out of memory.")
    assert "nothing to compare it with" in alone.sentences[0]
    nothing = verdict(made({}, failed={"three": "out of memory"}))
    assert (nothing.use, nothing.best) == (None, None)
    assert nothing.sentences == (
        "No method finished, so there is nothing to recommend.",
        "three failed: out of memory.",
    )


def test_a_method_that_failed_with_some_seeds_is_not_recommended():
    """It may have failed exactly where the others had a hard time."""
    found = verdict(made({"lucky": {"nll": [0.01]}, "steady": {"nll": GOOD}}, failed={"lucky": "it diverged"}))
    assert (found.use, found.tied) == ("steady", ())
    assert "lucky, finished fewer seeds" in words_of(found)
    assert "lucky failed with 1 of 2 seeds: it diverged." in found.sentences


def test_what_is_no_number_is_never_best():
    broken = [float("nan"), 0.1, 0.1, 0.1]
    comparison = made({"broken": {"nll": broken, "train_seconds": [0.1] * 4}, "good": {"nll": GOOD}})
    assert standing(comparison, "nll") == ["good", "broken"]
    assert tied_with_best(comparison, "nll") == ()
    assert verdict(comparison).use == "good"


@pytest.mark.parametrize(("sure", "manner"), [(0.1, "too sure of itself"), (-0.1, "too cautious")])
def test_bad_calibration_of_the_winner_is_a_warning(sure, manner):
    bad = {"nll": GOOD, "ece": [0.1] * 4, "overconfidence": [sure] * 4}
    words = words_of(verdict(made({"one": bad, "two": {"nll": BAD, "ece": [0.2] * 4}})))
    assert "of one are 0.1 apart" in words
    assert manner in words
    for ece in (0.02, WORST_ECE):
        fine = bad | {"ece": [ece] * 4}
        assert "take care" not in words_of(verdict(made({"one": fine, "two": {"nll": BAD, "ece": [0.2] * 4}})))


@pytest.mark.parametrize(("inside", "manner"), [(0.7, "too narrow"), (0.99, "too wide"), (0.92, None)])
def test_intervals_that_hold_too_few_or_too_many_are_a_warning(inside, manner):
    words = words_of(verdict(made({"one": {"nll": GOOD, "coverage_90": [inside] * 4}, "two": {"nll": BAD}})))
    assert ("take care" in words) == (manner is not None)
    assert manner is None or (manner in words and f"{100 * inside:.0f} %" in words)


def test_another_that_is_clearly_better_on_foreign_data_is_named():
    best = {"nll": GOOD, "ood_auroc": [0.70, 0.72, 0.71, 0.70]}
    other = {"nll": BAD, "ood_auroc": [0.90, 0.93, 0.92, 0.90]}
    words = words_of(verdict(made({"one": best, "two": other, "three": {"nll": BAD, "ood_auroc": [0.8] * 4}})))
    assert "two is clearly better: its doubt tells it apart with an AUROC of 0.913 against 0.708" in words
    unclear = other | {"ood_auroc": [0.60, 0.99, 0.70, 0.80]}
    assert "foreign" not in words_of(verdict(made({"one": best, "two": unclear})))


def test_numbers_and_durations_read_well():
    assert [number(x) for x in (0.2051, 12.345, -0.00001, 0.0)] == ["0.205", "12.3", "0.0000", "0.0000"]
    assert [duration(x) for x in (0.55, 42.4, 200, 7200)] == ["0.6 s", "42 s", "3.3 min", "2.0 h"]
    assert [duration(x) for x in (9.9, 10, 89, 90, 5340, 5400)] == [
        "9.9 s",
        "10 s",
        "89 s",
        "1.5 min",
        "89.0 min",
        "1.5 h",
    ]


def test_an_interval_that_ends_at_zero_holds_it():
    assert not Difference(0.5, 0.5, 3).clear
    assert not Difference(-0.5, 0.5, 3).clear
    assert Difference(-0.5, 0.4, 3).clear
