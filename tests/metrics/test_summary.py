import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from bayesemble import metrics
from bayesemble.core.errors import DataError
from bayesemble.metrics import Summary, summarise
from bayesemble.predictive import ClassPredictive, Predictive
from bayesemble.task.likelihoods import Poisson
from mixtures import ROW_WEIGHTS, repeated

LABELS = [0, 1, 2, 0, 1, 2]
VALUES = [0.0, 1.0, -1.0, 0.5, 2.0, 3.0]


def random_classes(generator, members=3):
    return Predictive.from_probs(torch.randn(members, 6, 3, generator=generator).softmax(-1))


def random_normals(generator, members=3):
    return Predictive.from_normal(torch.randn(members, 6, generator=generator), 0.7)


def test_classes_are_scored_by_each_score_that_applies(generator):
    predictive = random_classes(generator)
    accuracy = metrics.accuracy(predictive, LABELS)
    assert summarise(predictive, LABELS) == pytest.approx(
        {
            "nll": metrics.nll(predictive, LABELS),
            "accuracy": accuracy,
            "ece": metrics.expected_calibration_error(predictive, LABELS),
            "brier": metrics.brier(predictive, LABELS),
            "overconfidence": predictive.probs.max(-1).values.mean().item() - accuracy,
        }
    )


def test_real_numbers_are_scored_by_each_score_that_applies(generator):
    predictive = random_normals(generator)
    assert summarise(predictive, VALUES) == {
        "nll": metrics.nll(predictive, VALUES),
        "rmse": metrics.rmse(predictive, VALUES),
        "coverage_90": metrics.coverage(predictive, VALUES, 0.9),
    }


def test_counts_are_scored_as_real_numbers_are(generator):
    predictive = Poisson().predictive(torch.randn(3, 6, generator=generator), {}, torch.full((3,), 1 / 3))
    assert summarise(predictive, LABELS).keys() == {"nll", "rmse", "coverage_90"}


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_foreign_data_adds_how_well_doubt_tells_it_apart(make, targets, generator):
    predictive, ood = make(generator), make(generator)
    scores = summarise(predictive, targets, ood)
    assert scores["ood_auroc"] == metrics.ood_auroc(predictive, ood)
    assert scores["ood_auroc_epistemic"] == metrics.ood_auroc(predictive, ood, "epistemic")
    rest = {name: score for name, score in scores.items() if not name.startswith("ood")}
    assert rest == summarise(predictive, targets)


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_one_member_has_finite_scores_and_no_epistemic_doubt_to_tell_by(make, targets, generator):
    one, ood = make(generator, members=1), make(generator, members=1)
    scores = summarise(one, targets, ood)
    assert all(isinstance(score, float) and math.isfinite(score) for score in scores.values())
    assert scores["ood_auroc_epistemic"] == 0.5


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_targets_of_another_length_are_refused(make, targets, generator):
    with pytest.raises(DataError, match=r"targets must have shape \(6,\) to fit the predictions, got \(5,\)"):
        summarise(make(generator), targets[:-1])


# --- part by part ---


def parts_of(predictive: Predictive, targets, sizes):
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        fields = {name: value[:, rows] for name, value in predictive._member_fields().items()}
        yield replace(predictive, **fields), targets[rows]
        start += size


@pytest.mark.parametrize("kind", ["classes", "normals"])
def test_scores_gathered_part_by_part_are_those_of_all_rows_at_once(kind, generator):
    if kind == "classes":
        probs = torch.rand(3, 1000, 5, generator=generator, dtype=torch.float64) ** 4
        predictive = Predictive.from_probs(probs / probs.sum(-1, keepdim=True), [0.5, 0.3, 0.2])
        targets = torch.randint(5, (1000,), generator=generator)
    else:
        mean = torch.randn(3, 1000, generator=generator, dtype=torch.float64)
        predictive, targets = Predictive.from_normal(mean, 0.7), torch.randn(1000, generator=generator).double()
    summary = Summary(ood=True)
    for part, own in parts_of(predictive, targets, (1, 333, 600, 66)):
        summary.update(part, own)
    for part, _ in parts_of(predictive, targets, (500, 500)):
        summary.update_ood(part)
    assert summary.num_rows == 1000
    assert summary.compute() == pytest.approx(summarise(predictive, targets, ood=predictive), rel=1e-12)


def test_two_million_rows_of_ten_classes_are_scored_in_bounded_memory():
    """100 parts of 20,000 rows: 80 MB of probabilities pass through, the process grows by less than half of that."""
    code = """
import resource, torch
from bayesemble.metrics import Summary
from bayesemble.predictive import Predictive
generator, summary = torch.Generator().manual_seed(0), Summary()
size = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start = size()
for _ in range(100):
    probs = torch.rand(20_000, 10, generator=generator) + 0.01
    labels = torch.randint(10, (20_000,), generator=generator)
    summary.update(Predictive.from_probs(probs / probs.sum(1, keepdim=True)), labels)
assert summary.num_rows == 2_000_000
scores = summary.compute()
assert abs(scores["accuracy"] - 0.1) < 0.001, scores  # 4.7 standard errors
assert size() - start < 40, size() - start
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_summary_of_nothing_and_unannounced_foreign_data_are_refused():
    with pytest.raises(DataError, match="nothing to score"):
        Summary().compute()
    with pytest.raises(DataError, match="was not announced"):
        Summary().update_ood(Predictive.from_probs([[0.5, 0.5]]))


@pytest.mark.parametrize(("make", "targets"), [(random_classes, LABELS), (random_normals, VALUES)])
def test_weighted_rows_in_parts_are_repeated_rows_at_once(make, targets, generator):
    predictive, targets = make(generator), torch.tensor(targets)
    summary = Summary()
    for rows in (torch.arange(2), torch.tensor([2]), torch.arange(3, 6)):  # the row in the middle weighs nothing
        summary.update(predictive.take_rows(rows), targets[rows], ROW_WEIGHTS[rows])
    expected = summarise(*repeated(predictive, targets))
    assert summary.compute() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert summarise(predictive, targets, weights=ROW_WEIGHTS) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert summary.num_rows == 6


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0, 0.5])], ids=["alike", "weighted"])
def test_of_rows_with_several_labels_the_nll_of_a_label_is_told_too(weights, generator):
    predictive = ClassPredictive(torch.tensor([0.3, 0.7]), torch.randn(2, 3, 4, 5, generator=generator).log_softmax(-1))
    labels = torch.randint(5, (3, 4), generator=generator)
    found = summarise(predictive, labels, weights=weights)
    own = torch.ones(3) if weights is None else weights
    each = predictive.log_probs.gather(-1, labels.expand(2, 3, 4)[..., None]).sum((-2, -1))  # (member, row)
    rows = -(each + torch.tensor([0.3, 0.7]).log()[:, None]).logsumexp(0)
    assert found["nll_per_label"] == pytest.approx(float((own * rows).sum() / own.sum() / 4), rel=1e-5)
    assert found["nll"] == pytest.approx(4 * found["nll_per_label"])
    assert "nll_per_label" not in summarise(
        random_classes(generator), torch.zeros(random_classes(generator).num_rows).long()
    )
