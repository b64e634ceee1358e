"""The plane of accuracy and disagreement: its two limits by formula and simulation, its points against a loop."""

import pytest
import torch
from torch import nn

import bayesemble as be
from bayesemble.core import seeds
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.diversity import (
    PLANE_SCALES,
    diversity_accuracy,
    independent_limit,
    perturbed_limit,
)
from bayesemble.diagnostics.landscape.neighbourhoods import sample_subspace
from helpers import quick_fit, small_mlp, table


def three_classes():
    x, _ = table(60)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def wide_mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_both_limits_are_one_at_chance_and_known_elsewhere():
    for classes in (2, 3, 10):
        for reference in (0.6, 0.9):
            chance = 1 / classes
            assert float(independent_limit(chance, reference, classes)) / (1 - chance) == pytest.approx(1)
            assert float(perturbed_limit(chance, reference, classes)) / (1 - chance) == pytest.approx(1)
    assert float(independent_limit(0.71, 0.71, 10)) / 0.29 == pytest.approx(1.678, abs=5e-4)
    assert float(perturbed_limit(0.71, 0.71, 10)) == 0
    assert float(independent_limit(0.9, 0.9, 10)) / 0.1 == pytest.approx(1.889, abs=5e-4)


def guesses(accuracy, truth, classes, generator):
    """Answers that are right with the given probability, else one of the wrong classes."""
    wrong = (truth + torch.randint(1, classes, truth.shape, generator=generator)) % classes
    return torch.where(torch.rand(truth.shape, generator=generator) < accuracy, truth, wrong)


def test_simulated_independent_errors_disagree_as_the_upper_limit_says(generator):
    rows, classes = 100_000, 5
    truth = torch.randint(classes, (rows,), generator=generator)
    reference = guesses(0.8, truth, classes, generator)
    for accuracy in (0.3, 0.7):
        apart = float((guesses(accuracy, truth, classes, generator) != reference).double().mean())
        expected = float(independent_limit(accuracy, 0.8, classes))
        assert abs(apart - expected) < 4 * (expected * (1 - expected) / rows) ** 0.5


def test_simulated_flips_disagree_as_the_lower_limit_says(generator):
    rows, classes, reference = 100_000, 5, 0.8
    truth = torch.randint(classes, (rows,), generator=generator)
    answers = guesses(reference, truth, classes, generator)
    for share in (0.1, 0.5):
        flipped = guesses(1 - share, answers, classes, generator)
        accuracy, apart = (flipped == truth).double(), (flipped != answers).double()
        # d - d(a) is linear in the mean of a, so its standard error is that of one number per row
        slope = 1 / (reference - (1 - reference) / (classes - 1))
        per_row = apart + slope * accuracy
        off = float(apart.mean() - perturbed_limit(accuracy.mean(), reference, classes))
        assert abs(off) < 4 * float(per_row.std()) / rows**0.5


def test_the_plane_against_a_loop_over_samples():
    x, y = three_classes()
    ensemble = quick_fit(be.Task(wide_mlp, be.Categorical()), (x, y), epochs=4, record="epoch")
    found = diversity_accuracy(ensemble, (x, y), reference=1, num=4, last=3, scales={"random": 5.0}, seed=2)
    probs = ensemble.predict(x).member_probs
    answers = probs[1].argmax(-1)
    assert found.num_classes == 3
    assert found.reference_accuracy == pytest.approx(float((answers == y).double().mean()))
    assert list(found.accuracy) == ["member", "random", "dropout", "diagonal", "pca"] == list(found.disagreement)
    choices = {"member": probs[[0, 2]].argmax(-1)}
    for kind in ("random", "dropout", "diagonal", "pca"):
        largest = 5.0 if kind == "random" else PLANE_SCALES[kind]
        shares = torch.rand(4, generator=seeds.generator(2, "scale", kind), dtype=torch.float64)
        scale = largest * shares if kind in ("diagonal", "pca") else largest
        made = sample_subspace(ensemble, 1, kind, 4, last=3, scale=scale, seed=2)
        choices[kind] = measure.as_ensemble(ensemble, made).predict(x).member_probs.argmax(-1)
    for kind, chosen in choices.items():
        assert torch.allclose(found.accuracy[kind], (chosen == y).double().mean(1))
        assert torch.allclose(found.disagreement[kind], (chosen != answers).double().mean(1))


def test_one_member_has_no_others_and_needs_no_recording_for_some_kinds():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=1))
    found = diversity_accuracy(ensemble, table(40, seed=1), kinds=("random", "dropout"), num=2)
    assert list(found.accuracy) == ["random", "dropout"]
    with pytest.raises(be.SettingError, match="record='epoch'"):
        diversity_accuracy(ensemble, table(40, seed=1), num=2)


def test_the_plane_is_of_classes_and_known_kinds():
    x, _ = table()
    numbers = quick_fit(be.Task(small_mlp, be.Gaussian(noise=0.5)), (x, x[:, :2]))
    with pytest.raises(be.SettingError, match="this task predicts numbers"):
        diversity_accuracy(numbers, (x, x[:, :2]), kinds=())
    with pytest.raises(be.SettingError, match="kinds are some of random, dropout, diagonal, pca, not swag"):
        diversity_accuracy(numbers, (x, x[:, :2]), kinds=("swag",))
