"""Rows with weights are the same rows repeated: all methods, full batches, the same seed, in double precision."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.types import WeightedTargets
from helpers import largest_difference, quick_fit

WEIGHTS = torch.tensor([1.0, 3.0, 0.0, 2.0, 1.0, 2.0, 1.0, 4.0, 1.0, 1.0, 2.0, 1.0], dtype=torch.float64)
X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2).sin()
Y = (X[:, 0] * X[:, 1] > 0.1).long()
REPEATED = X.repeat_interleave(WEIGHTS.long(), 0), Y.repeat_interleave(WEIGHTS.long())
METHODS = {
    "deep": be.DeepEnsemble(num_members=2, learning_rate=0.05),
    "adversarial": be.DeepEnsemble(num_members=2, learning_rate=0.05, adversarial=0.1),
    "repulsive": be.Repulsive(num_members=3, learning_rate=0.05),
    "svgd": be.Stein(num_members=3, learning_rate=0.05),
    "swag": be.SWAG(learning_rate=0.05, rank=2, draws=4, start=0.2, snapshots=4),
    "snapshot": be.Snapshot(learning_rate=0.05, snapshots=2),
    "subspace": be.Subspace(learning_rate=0.05, rank=3, dim=1, draws=3, start=0.2, snapshots=4, warmup=1),
    "subspace_vi": be.Subspace(
        learning_rate=0.05, rank=3, dim=1, draws=3, start=0.2, snapshots=4, inference="vi", vi_epochs=3
    ),
    "laplace": be.Laplace(learning_rate=0.05, draws=4),
    "laplace_diag": be.Laplace(learning_rate=0.05, draws=4, structure="diag", select="all", predict="samples"),
    "mean_field": be.MeanField(learning_rate=0.05, draws=4, noise="plain"),
    "ecmp": be.ECMP(learning_rate=0.05, draws=4, components=2),
    "csgmcmc": be.CyclicalSGMCMC(num_members=2, cycles=2, samples_per_cycle=1),
    "hmc": be.HMC(num_members=2, max_leapfrog=6, step_size=0.05),
}


def network():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()


TASK = be.Task(network, be.Categorical(), be.NormalPrior())
OPTIONS = {"epochs": 12, "batch_size": None}


def all_of(ensemble):
    slots = {f"{slot}/{name}": leaf for slot, leaves in ensemble.state.slots.items() for name, leaf in leaves.items()}
    found = ensemble.state.members.params | slots | {"probs": ensemble.predict(X).probs}
    return {name: leaf.double().reshape(-1) for name, leaf in found.items() if leaf.numel()}


def difference(one, other):
    one, other = all_of(one), all_of(other)
    assert one.keys() == other.keys()
    return largest_difference(one, other)


@pytest.mark.filterwarnings("ignore:SWAG took", "ignore:.*diverged")
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", METHODS)
def test_weighted_rows_are_repeated_rows(name, executor):
    options = OPTIONS | {"executor": executor, "validation": (X, Y, WEIGHTS)}
    weighted = quick_fit(TASK, (X, Y, WEIGHTS), METHODS[name], **options)
    repeated = quick_fit(TASK, REPEATED, METHODS[name], **options | {"validation": REPEATED})
    assert weighted.task.num_data == 19
    assert difference(weighted, repeated) < 1e-9
    for row, other in zip(weighted.history, repeated.history, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-9)
        assert row["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-9)


@pytest.mark.parametrize("name", ["deep", "repulsive"])
def test_recorded_steps_have_the_weights_too(name):
    options = {"epochs": 60, "batch_size": 4}
    eager, traced = (
        quick_fit(TASK, (X, Y, WEIGHTS), METHODS[name], executor=be.Vmap(steps=steps), **options)
        for steps in ("eager", "traced")
    )
    assert difference(eager, traced) == 0


def test_all_weights_alike_count_as_so_many_rows():
    """w = 2 everywhere is twice the data: the prior counts half, whatever the batches."""
    doubled = be.Task(network, be.Categorical(), be.NormalPrior(), num_data=24)
    weighted = quick_fit(TASK, (X, Y, torch.full((12,), 2.0)), METHODS["deep"], epochs=3, batch_size=5)
    plain = quick_fit(doubled, (X, Y), METHODS["deep"], epochs=3, batch_size=5)
    assert difference(weighted, plain) < 1e-9


def test_weights_that_are_no_whole_numbers_scale_the_log_joint():
    """Half of all weights is the posterior at twice the temperature of the data: N is their sum."""
    bound = quick_fit(TASK, (X, Y, WEIGHTS / 4), METHODS["deep"], **OPTIONS).task
    assert bound.num_data == 19 / 4
    outputs = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = bound.data_factor * bound.log_likelihood(outputs, WeightedTargets(Y, WEIGHTS / 4), {})
    expected = -(WEIGHTS / 4 * nn.functional.cross_entropy(outputs, Y, reduction="none")).sum()
    torch.testing.assert_close(found, expected)


# --- scores ---


@pytest.mark.parametrize("batch_size", [None, 5])
def test_weighted_scores_are_those_of_repeated_rows(batch_size):
    fitted = quick_fit(TASK, (X, Y), METHODS["deep"], **OPTIONS)
    expected = fitted.evaluate(REPEATED)
    found = fitted.evaluate((X, Y, WEIGHTS), batch_size=batch_size)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert found != pytest.approx(fitted.evaluate((X, Y)), rel=1e-3)
    rows = TensorDataset(X, Y, WEIGHTS)
    assert fitted.evaluate(rows, batch_size=batch_size, weights=True) == found
    loader = DataLoader(rows, batch_size=6)
    assert be.evaluate(fitted, loader, weights=True) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_doubt_about_foreign_rows_has_no_weights():
    fitted, foreign = quick_fit(TASK, (X, Y), METHODS["deep"], **OPTIONS), 5 * X
    counting = WEIGHTS > 0
    plain = fitted.evaluate((X[counting], Y[counting]), foreign)
    weighted = fitted.evaluate((X, Y, WEIGHTS), foreign)
    assert {name: weighted[name] for name in ("ood_auroc", "ood_auroc_epistemic")} == {
        name: plain[name] for name in ("ood_auroc", "ood_auroc_epistemic")
    }


def test_rows_without_a_label_that_counts_weigh_nothing_in_validation():
    task = be.Task(network, be.Categorical(ignore_index=-1), be.NormalPrior())
    labels = Y.clone()
    labels[1] = -1  # of weight 3
    kept = torch.arange(12) != 1
    options = OPTIONS | {"epochs": 1}
    found, expected = (
        quick_fit(task, (X, Y), METHODS["deep"], validation=held_out, **options).history[0]["validation_loss"]
        for held_out in ((X, labels, WEIGHTS), (X[kept], Y[kept], WEIGHTS[kept]))
    )
    assert found == pytest.approx(expected, rel=1e-12)


# --- where the weights come from ---


def test_loaders_and_data_sets_give_weights_where_that_is_said():
    data = TensorDataset(X, Y, WEIGHTS)
    arrays = quick_fit(TASK, (X, Y, WEIGHTS), METHODS["deep"], **OPTIONS)
    whole = quick_fit(TASK, data, METHODS["deep"], weights=True, **OPTIONS)
    assert difference(arrays, whole) == 0
    known = be.Task(network, be.Categorical(), be.NormalPrior(), num_data=19)
    loader = DataLoader(data, batch_size=12)
    loaded = quick_fit(known, loader, METHODS["deep"], weights=True, **OPTIONS)
    assert difference(arrays, loaded) < 1e-9
    with pytest.raises(DataError, match=r"needs their sum: give it as Task\(num_data="):
        quick_fit(TASK, loader, METHODS["deep"], weights=True, **OPTIONS)
    with pytest.raises(DataError, match="3 items; if the third are weights of rows, fit takes them by"):
        quick_fit(known, loader, METHODS["deep"], **OPTIONS)
    with pytest.raises(DataError, match=r"must yield triples .* it yielded 2 items"):
        quick_fit(known, DataLoader(TensorDataset(X, Y)), METHODS["deep"], weights=True, **OPTIONS)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (WEIGHTS[:3], r"12 rows need as many weights, got them in the shape \(3,\)"),
        (torch.ones(12, 2), r"12 rows need as many weights, got them in the shape \(12, 2\)"),
        (-WEIGHTS, "weights are numbers from 0, that of row 0 is -1.0"),
        (WEIGHTS * 0, "all weights are 0"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        quick_fit(TASK, (X, Y, weights), METHODS["deep"], **OPTIONS)


def test_what_has_no_weights_says_so():
    fitted = quick_fit(TASK, (X, Y, WEIGHTS), METHODS["deep"], **OPTIONS)
    with pytest.raises(DataError, match="every row counts alike here; leave the weights out"):
        be.landscape.sharpness(fitted, (X, Y, WEIGHTS))
    with pytest.raises(SettingError, match="structure='kron' has no weights of rows"):
        quick_fit(TASK, (X, Y, WEIGHTS), be.Laplace(structure="kron"), **OPTIONS)
    numbers = be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(0.5), be.NormalPrior())
    with pytest.raises(SettingError, match="which rows with weights do not have"):
        quick_fit(numbers, (X, Y.double(), WEIGHTS), be.DeepEnsemble(anchored=True), **OPTIONS)


def test_a_run_with_other_weights_is_not_resumed(tmp_path):
    quick_fit(TASK, (X, Y, WEIGHTS), METHODS["deep"], checkpoint=tmp_path, **OPTIONS)
    with pytest.raises(be.CheckpointError):
        quick_fit(TASK, (X, Y, WEIGHTS + 1), METHODS["deep"], checkpoint=tmp_path, resume=True, **OPTIONS)


def test_fits_side_by_side_have_their_weights():
    method, options = be.DeepEnsemble(num_members=2), {"epochs": 4, "batch_size": 6, "executor": "vmap"}
    data = [TensorDataset(X, Y, weights) for weights in (WEIGHTS + 1, WEIGHTS + 0.5)]
    together = be.fit_side_by_side(TASK, method, data, weights=True, progress=False, **options)
    for own, fitted in zip(data, together, strict=True):
        assert difference(fitted, quick_fit(TASK, own.tensors, method, **options)) == 0
