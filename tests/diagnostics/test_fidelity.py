import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.diagnostics import fidelity
from bayesemble.diagnostics.fidelity import wasserstein
from bayesemble.predictive import NormalPredictive, Predictive
from bayesemble.task.likelihoods import Poisson
from bayesemble.training.batches import PerMember
from helpers import quick_fit, small_mlp, table

PERFECT = {"std_ratio": 1, "epistemic_std_ratio": 1, "log_std_error": 0, "wasserstein": 0, "mean_error": 0}


def normals(generator, members=4, rows=6, spread=1.0, noise=0.3, shift=0.0) -> NormalPredictive:
    """A mixture of different normals with different weights."""
    shape = (members, rows)
    means = shift + spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    stds = noise * torch.randn(shape, generator=generator, dtype=torch.float64).div(2).exp()
    return Predictive.from_normal(means, stds, torch.rand(members, generator=generator) + 0.1)


def one_normal(mean: float, std: float) -> NormalPredictive:
    return Predictive.from_normal(torch.full((3,), mean, dtype=torch.float64), std)


def on_a_grid(ours: NormalPredictive, theirs: NormalPredictive, points: int = 50_001) -> Tensor:
    """The naive twin: |F - G| at many evenly spaced points, by the trapezoidal rule, row by row."""
    found = []
    for row in range(ours.num_rows):
        means, stds = (torch.cat([getattr(side, n)[:, row] for side in (ours, theirs)]) for n in ("means", "stds"))
        grid = torch.linspace(
            float((means - 9 * stds).min()), float((means + 9 * stds).max()), points, dtype=torch.float64
        )
        ours_below, theirs_below = (
            sum(w * torch.special.ndtr((grid - m) / s) for w, m, s in zip(side.weights, m_, s_, strict=True))
            for side, m_, s_ in ((one, one.means[:, row], one.stds[:, row]) for one in (ours, theirs))
        )
        found.append(torch.trapezoid((ours_below - theirs_below).abs(), grid))
    return torch.stack(found)


# --- classes ---


def test_classes_by_hand():
    ours = Predictive.from_probs([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
    theirs = Predictive.from_probs([[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.4, 0.6, 0.0]])
    scores = be.fidelity(ours, theirs, None)
    assert scores["agreement"] == 0.5
    assert scores["total_variation"] == pytest.approx((0.1 + 0.3 + 0 + 0.3) / 4)
    assert scores.keys() == {"agreement", "total_variation"}


def test_classes_are_compared_after_averaging_by_weight():
    members = [[[0.9, 0.1]], [[0.2, 0.8]]]
    ours = Predictive.from_probs(members, weights=[0.25, 0.75])
    assert be.fidelity(ours, Predictive.from_probs([[0.375, 0.625]]))["total_variation"] == pytest.approx(0, abs=1e-7)
    assert be.fidelity(ours, Predictive.from_probs(members))["agreement"] == 0


def test_reduced_predictions_of_classes_will_do(generator):
    logits = torch.randn(2, 5, 7, 3, generator=generator)
    ours, theirs = (Predictive.from_probs(one.softmax(-1)) for one in logits)
    assert be.fidelity(ours.reduce(), theirs) == pytest.approx(be.fidelity(ours, theirs))


def test_several_labels_per_row_are_averaged(generator):
    yes = torch.rand(2, 3, 5, 2, generator=generator)
    ours, theirs = (be.Bernoulli().predictive(one.logit(), {}, torch.full((3,), 1 / 3)) for one in yes)
    expected = (yes[0].mean(0) - yes[1].mean(0)).abs().mean()
    assert be.fidelity(ours, theirs)["total_variation"] == pytest.approx(float(expected), rel=1e-5)


# --- real numbers ---


@pytest.mark.parametrize("shift", [-2.5, 1e-3, 40.0])
def test_two_normals_that_are_shifted(shift):
    scores = be.fidelity(one_normal(0.3 + shift, 0.7), one_normal(0.3, 0.7))
    assert scores["wasserstein"] == pytest.approx(abs(shift), rel=1e-9)
    assert scores["mean_error"] == pytest.approx(abs(shift), rel=1e-9)
    assert scores["std_ratio"] == pytest.approx(1)


@pytest.mark.parametrize("stds", [(1.0, 2.0), (1e-6, 1.0), (3.0, 3.001)])
def test_two_normals_of_different_width(stds):
    scores = be.fidelity(one_normal(5.0, stds[0]), one_normal(5.0, stds[1]))
    assert scores["wasserstein"] == pytest.approx(abs(stds[0] - stds[1]) * math.sqrt(2 / math.pi), rel=1e-9)
    assert scores["std_ratio"] == pytest.approx(stds[0] / stds[1])
    assert scores["mean_error"] == 0


@pytest.mark.parametrize(
    ("members", "spread", "noise"),
    [((1, 5), 1, 0.01), ((5, 5), 1, 1), ((10, 40), 0.001, 1), ((40, 40), 1, 0.01), ((60, 400), 1, 0.1)],
)
def test_the_wasserstein_distance_of_mixtures_is_that_of_a_fine_grid(generator, members, spread, noise):
    ours = normals(generator, members[0], 2, spread, noise)
    theirs = normals(generator, members[1], 2, spread, noise, shift=0.1 * spread)
    assert wasserstein(ours, theirs).tolist() == pytest.approx(on_a_grid(ours, theirs).tolist(), rel=1e-5)


def test_the_wasserstein_distance_is_that_of_samples(generator):
    ours, theirs = normals(generator, 3, 2), normals(generator, 5, 2, shift=0.5)
    draws = [side.sample(400_000, generator).numpy() for side in (ours, theirs)]
    expected = [scipy.stats.wasserstein_distance(draws[0][:, row], draws[1][:, row]) for row in range(2)]
    assert be.fidelity(ours, theirs)["wasserstein"] == pytest.approx(np.mean(expected), rel=0.01)


def test_far_from_zero_no_digits_are_lost(generator):
    ours, theirs = normals(generator), normals(generator)
    moved = [replace(side, means=side.means + 1e8) for side in (ours, theirs)]
    assert wasserstein(*moved).tolist() == pytest.approx(wasserstein(ours, theirs).tolist(), rel=1e-6)


def test_rows_are_computed_a_part_at_a_time_without_a_seam(generator):
    ours, theirs = normals(generator, rows=500), normals(generator, rows=500)
    halves = [[replace(s, means=s.means[:, i::2], stds=s.stds[:, i::2]) for s in (ours, theirs)] for i in (0, 1)]
    even, odd = (wasserstein(*half) for half in halves)
    assert torch.stack([even, odd], dim=1).flatten().tolist() == pytest.approx(wasserstein(ours, theirs).tolist())


def test_as_many_rows_are_computed_at_once_as_cells_allow(generator, monkeypatch):
    """A row has 257 points around one member, 3 * 85 around three and 128 over the range, for four members each."""
    ours, theirs = normals(generator, 1, rows=7), normals(generator, 3, rows=7)
    whole, rows, integral = wasserstein(ours, theirs), [], fidelity._integral
    monkeypatch.setattr(
        fidelity,
        "_integral",
        lambda weights, means, *rest: rows.append(means.shape[1]) or integral(weights, means, *rest),
    )
    monkeypatch.setattr(fidelity, "CELLS_AT_ONCE", 3 * (257 + 3 * 85 + 128) * 4)
    assert wasserstein(ours, theirs).tolist() == pytest.approx(whole.tolist(), rel=1e-12)
    assert rows == [3, 3, 1]
    monkeypatch.setattr(fidelity, "CELLS_AT_ONCE", 1)
    assert len(wasserstein(ours, theirs)) == 7
    assert rows[3:] == [1] * 7


def test_every_score_of_real_numbers_is_its_formula(generator):
    ours, theirs = normals(generator, 4), normals(generator, 7, shift=0.4)
    scores = be.fidelity(ours, theirs)
    ratio = ours.epistemic.sqrt() / theirs.epistemic.sqrt()
    assert scores["std_ratio"] == pytest.approx(float((ours.std / theirs.std).log().mean().exp()))
    assert scores["epistemic_std_ratio"] == pytest.approx(float(ratio.log().mean().exp()))
    assert scores["log_std_error"] == pytest.approx(float(ratio.log().abs().mean()))
    assert scores["wasserstein"] == pytest.approx(float(wasserstein(ours, theirs).mean()))
    assert scores["mean_error"] == pytest.approx(float((ours.mean - theirs.mean).square().mean().sqrt()))


def test_a_prediction_is_perfect_by_itself_in_whatever_order_its_members_stand(generator):
    ours = normals(generator, 6)
    order = torch.randperm(6, generator=generator)
    shuffled = NormalPredictive(ours.weights[order], ours.means[order], ours.stds[order])
    assert be.fidelity(ours, ours) == pytest.approx(PERFECT, abs=1e-10)
    assert be.fidelity(shuffled, ours) == pytest.approx(PERFECT, abs=1e-10)
    theirs = normals(generator, 3)
    assert be.fidelity(shuffled, theirs) == pytest.approx(be.fidelity(ours, theirs), rel=1e-9)


def test_weights_count_as_repeated_members_would(generator):
    ours, theirs = normals(generator, 2), normals(generator, 5)
    places = torch.tensor([0, 1, 1, 1])
    weighted = ours.reweight([0.25, 0.75])
    repeated = Predictive.from_normal(ours.means[places], ours.stds[places])
    assert be.fidelity(weighted, theirs) == pytest.approx(be.fidelity(repeated, theirs), rel=1e-9)
    ignored = Predictive.from_normal(ours.means, ours.stds, weights=[1, 0])
    assert be.fidelity(ignored, theirs) == pytest.approx(be.fidelity(ours.member(0), theirs), rel=1e-9)


def test_rows_and_outputs_are_averaged(generator):
    ours, theirs = normals(generator, 3, 6), normals(generator, 4, 6)
    folded = [NormalPredictive(s.weights, s.means.reshape(-1, 3, 2), s.stds.reshape(-1, 3, 2)) for s in (ours, theirs)]
    assert wasserstein(*folded).shape == (3, 2)
    assert be.fidelity(*folded) == pytest.approx(be.fidelity(ours, theirs))
    cells = [
        float(
            wasserstein(*(replace(s, means=s.means[:, i : i + 1], stds=s.stds[:, i : i + 1]) for s in (ours, theirs)))
        )
        for i in range(6)
    ]
    assert be.fidelity(ours, theirs)["wasserstein"] == pytest.approx(np.mean(cells))


def test_members_without_spread_give_zero_or_infinity_and_never_nan(generator):
    several, single = normals(generator), one_normal(0.0, 1.0)
    rows = Predictive.from_normal(several.means[:, :3], several.stds[:, :3])
    none_here = be.fidelity(single, rows)
    assert (none_here["epistemic_std_ratio"], none_here["log_std_error"]) == (0, math.inf)
    none_there = be.fidelity(rows, single)
    assert (none_there["epistemic_std_ratio"], none_there["log_std_error"]) == (math.inf, math.inf)
    neither = be.fidelity(single, one_normal(1.0, 1.0))
    assert (neither["epistemic_std_ratio"], neither["log_std_error"]) == (1, 0)
    crossed = [
        Predictive.from_normal([[0.0, 0.0], [0.0, 1.0]], 1.0),
        Predictive.from_normal([[0.0, 0.0], [1.0, 0.0]], 1.0),
    ]
    assert be.fidelity(*crossed)["epistemic_std_ratio"] == 0
    assert not any(math.isnan(value) for value in be.fidelity(*crossed).values())


# --- what may be compared ---


@pytest.fixture(scope="module")
def fitted() -> be.Ensemble:
    return quick_fit(be.Task(small_mlp, be.Categorical()), table())


def test_ensembles_are_compared_by_what_they_predict(fitted):
    x = table(seed=1)[0]
    other = quick_fit(be.Task(small_mlp, be.Categorical()), table(), seed=1)
    ours, theirs = fitted.predict(x), other.predict(x)
    expected = be.fidelity(ours, theirs)
    assert 0 < expected["total_variation"] < 1
    assert be.fidelity(fitted, other, x) == be.fidelity(ours, other, x) == be.fidelity(fitted, theirs, x) == expected


def test_ensembles_of_real_numbers_are_perfect_by_themselves():
    x, y = table()
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise=0.1)), (x, y.float()))
    assert be.fidelity(ensemble, ensemble, x) == pytest.approx(PERFECT, abs=1e-10)


def test_what_cannot_be_compared_is_refused_in_a_sentence(fitted, generator):
    x = table()[0]
    real, classes = normals(generator), Predictive.from_probs([[0.5, 0.5]] * 6)
    counts = Poisson().predictive(real.means, {}, real.weights)
    broken = NormalPredictive(real.weights, real.means * math.nan, real.stds)
    refused = [
        ((fitted, fitted, None), "pass the inputs to compare on"),
        ((real, real, x), "pass inputs=None"),
        ((fitted, fitted, PerMember(x[None])), "must share the inputs"),
        ((fitted, 3, x), "an Ensemble or Predictive with another, got int"),
        ((real, classes, None), "with their like; got NormalPredictive and ClassPredictive"),
        ((counts, counts, None), "got PoissonPredictive and PoissonPredictive"),
        ((real, normals(generator, rows=5), None), r"means are \(6,\) for the ensemble and \(5,\) for the reference"),
        ((classes, Predictive.from_probs([[0.2, 0.3, 0.5]] * 6), None), r"are \(6, 2\) .* and \(6, 3\)"),
        ((fitted, classes, x), r"are \(48, 2\) for the ensemble and \(6, 2\)"),
        ((real.reduce(), real, None), "use keep_members=True"),
        ((real, broken, None), "means of the reference must be finite numbers; row 0 holds nan"),
    ]
    for arguments, message in refused:
        with pytest.raises(be.BayesembleError, match=message):
            be.fidelity(*arguments)
