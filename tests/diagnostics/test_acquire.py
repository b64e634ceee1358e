import itertools
import math

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.diagnostics import acquire as module
from bayesemble.diagnostics.acquire import batch_of_largest_information
from helpers import quick_fit, table
from mixtures import random_classes


def joint_information(predictive, rows):
    """By the definition: all configurations of labels, one after the other."""
    weights, probs = predictive.weights.tolist(), predictive.member_probs.tolist()
    entropy = conditional = 0.0
    for labels in itertools.product(range(len(probs[0][0])), repeat=len(rows)):
        each = [math.prod(own[row][label] for row, label in zip(rows, labels, strict=True)) for own in probs]
        mixed = sum(weight * one for weight, one in zip(weights, each, strict=True))
        entropy -= mixed * math.log(mixed)
        conditional -= sum(weight * one * math.log(one) for weight, one in zip(weights, each, strict=True))
    return entropy - conditional


def greedy(predictive, num):
    chosen = []
    for _ in range(num):
        left = [row for row in range(predictive.num_rows) if row not in chosen]
        chosen.append(max(left, key=lambda row: joint_information(predictive, [*chosen, row])))
    return chosen


def test_batches_are_those_of_brute_force(generator):
    for _ in range(5):
        predictive = random_classes(generator, shape=(3, 6, 3))
        assert batch_of_largest_information(predictive, 3, generator).tolist() == greedy(predictive, 3)


def test_the_first_row_is_that_of_the_largest_mutual_information(generator):
    predictive = random_classes(generator, shape=(3, 40, 4))
    first = batch_of_largest_information(predictive, 1, generator).item()
    assert first == predictive.mutual_information.argmax().item()


def test_the_joint_entropy_is_exact_for_few_rows_and_near_for_many(generator, monkeypatch):
    predictive = random_classes(generator, shape=(3, 6, 3))
    rows = [0, 3, 4, 1, 2]
    information = joint_information(predictive, rows)
    left = float(predictive.expected_entropy[rows].sum())

    def by_configurations():
        known = module._Configurations.of_no_rows(predictive)
        for row in rows[:-1]:
            known = known.with_row(row, generator)
        return float(known.entropy_with_each()[rows[-1]]) - left

    assert by_configurations() == pytest.approx(information, abs=1e-12)
    monkeypatch.setattr(module, "_MOST_CONFIGURATIONS", 60)
    drawn = [by_configurations() for _ in range(200)]
    error = torch.tensor(drawn).std().item() / 200**0.5
    assert abs(sum(drawn) / 200 - information) < 4 * error
    assert error > 0


def test_rows_that_are_alike_are_not_all_taken():
    """Two members; rows 0, 1 and 2 would tell the same, row 3 a little less, but something of its own."""
    probs = torch.full((4, 4, 2), 0.5).double()
    probs[:2, :3, 0], probs[2:, :3, 0] = 0.98, 0.02
    probs[::2, 3, 0], probs[1::2, 3, 0] = 0.9, 0.1
    probs[..., 1] = 1 - probs[..., 0]
    predictive = be.Predictive.from_probs(probs)
    assert predictive.mutual_information.argsort(descending=True)[:2].max() < 3
    assert 3 in batch_of_largest_information(predictive, 2, torch.Generator()).tolist()


def test_many_rows_and_certain_members_stay_finite(generator, monkeypatch):
    monkeypatch.setattr(module, "_MOST_CONFIGURATIONS", 20)
    predictive = random_classes(generator, shape=(3, 600, 4))  # all labels together have a probability of 1e-200
    chosen = batch_of_largest_information(predictive, 600, generator)
    assert len(set(chosen.tolist())) == 600
    certain = be.Predictive.from_probs(torch.eye(3).double()[torch.randint(0, 3, (4, 8), generator=generator)])
    assert len(set(batch_of_largest_information(certain, 8, generator).tolist())) == 8


@pytest.fixture(scope="module")
def classifier():
    x, y = table()
    return quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical()), (x, y), be.DeepEnsemble(num_members=4))


@pytest.mark.parametrize("by", ["mutual_information", "entropy"])
def test_single_rows_are_the_most_uncertain_ones(classifier, by):
    pool = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    chosen = be.acquire(classifier, pool, by=by, num=5)
    values = classifier.predict(pool).uncertainty(by)
    assert torch.equal(values[chosen].sort(descending=True).values, values[chosen])
    assert values[chosen].min() >= values.sort().values[-5]


def test_numbers_are_chosen_by_the_variance_between_members(generator):
    x = torch.randn(30, 2, generator=generator)
    ensemble = quick_fit(be.Task(lambda: nn.Linear(2, 1), be.Gaussian()), (x, x[:, 0]))
    chosen = be.acquire(ensemble, 5 * x, by="variance", num=3)
    assert chosen[0] == ensemble.predict(5 * x).epistemic.argmax()
    with pytest.raises(SettingError, match="by='entropy' is not for predictions of numbers; use variance, or random"):
        be.acquire(ensemble, x, by="entropy", num=3)


def test_random_rows_differ_by_seed(classifier):
    pool = torch.zeros(100, 4)
    one, again, other = (be.acquire(classifier, pool, by="random", num=10, seed=seed).tolist() for seed in (0, 0, 1))
    assert one == again != other
    assert len(set(one)) == 10


def test_a_batch_through_the_front_door(classifier):
    pool = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    chosen = be.acquire(classifier, pool, by="batchbald", num=6)
    expected = batch_of_largest_information(classifier.predict(pool), 6, torch.Generator())
    assert chosen.tolist() == expected.tolist()  # 64 configurations: nothing is drawn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"by": "doubt", "num": 1},
            "by is one of mutual_information, entropy, variance, batchbald, random, got 'doubt'",
        ),
        ({"by": "variance", "num": 1}, "not for predictions of classes; use mutual_information, entropy or batchbald"),
        ({"num": 0}, "num is a whole number from 1, got 0"),
        ({"num": 31}, "31 rows were asked for, the pool has 30"),
    ],
)
def test_what_cannot_be_honoured_is_refused(classifier, options, message):
    with pytest.raises(SettingError, match=message):
        be.acquire(classifier, torch.zeros(30, 4), **options)


def test_a_single_network_has_nothing_to_disagree_about(classifier):
    with pytest.raises(SettingError, match="goes by what members disagree about, and there is nothing"):
        be.acquire(classifier.keep([0]), torch.randn(5, 4, generator=torch.Generator()), num=2)
    assert len(be.acquire(classifier.keep([0]), torch.ones(5, 4), by="entropy", num=2)) == 2
