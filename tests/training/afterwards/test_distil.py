import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import DirichletPredictive, Predictive
from bayesemble.training.afterwards import distil as distilling
from helpers import quick_fit

X = torch.linspace(-3, 3, 300).unsqueeze(1)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


def classes_of(x: Tensor) -> Predictive:
    """Members whose borders between the classes vary, the more so towards the right."""
    shifts, values = torch.linspace(-0.5, 0.5, 8)[:, None], x[:, 0]
    logits = torch.stack([2 * (values + shifts * (2 + values)), shifts - 2 * values, 0 * (shifts + values)], -1)
    return Predictive.from_probs(logits.softmax(-1))


def numbers_of(x: Tensor) -> Predictive:
    """Members that part to the right, with noise that grows to the left."""
    slopes = torch.linspace(-1, 1, 8)[:, None]
    means = x[:, 0].sin() + 0.3 * slopes * (x[:, 0] + 3.3)
    return Predictive.from_normal(means, (0.2 + 0.1 * (x[:, 0] - 3).abs()).expand(8, -1))


@pytest.fixture(scope="module", params=[(classes_of, 3), (numbers_of, 3)], ids=["classes", "numbers"])
def taught(request: pytest.FixtureRequest) -> tuple[Predictive, be.Ensemble]:
    of, outputs = request.param
    method = be.DeepEnsemble(num_members=1, learning_rate=0.01, schedule="cosine")
    student = be.distil(
        of(X),
        lambda: network(1, outputs),
        X,
        epochs=150,
        batch_size=100,
        method=method,
        progress=False,
        executor="loop",
    )
    return of(X[::7] + 0.005), student


def test_mean_and_both_kinds_of_doubt_are_kept(taught):
    teacher, student = taught
    predictive = student.predict(X[::7] + 0.005)
    for kind in ("epistemic", "aleatoric", "total"):
        assert spearmanr(teacher.uncertainty(kind), predictive.uncertainty(kind))[0] > 0.95, kind
    torch.testing.assert_close(predictive.epistemic.mean(), teacher.epistemic.mean(), rtol=0.2, atol=0)
    away = (teacher.probs if teacher.kind == "classes" else teacher.mean) - (
        predictive.probs if teacher.kind == "classes" else predictive.mean
    )
    assert away.abs().mean() < 0.1  # the scale is that of the teacher's doubt, 0.2 to 1


def test_a_student_is_an_ensemble_like_others(taught, tmp_path):
    teacher, student = taught
    predictive = student.predict(X)
    total = predictive.entropy if teacher.kind == "classes" else predictive.variance
    torch.testing.assert_close(predictive.aleatoric + predictive.epistemic, total)
    y = teacher.sample(1, torch.Generator().manual_seed(0))[0]
    rows = X[::7] + 0.005
    assert student.evaluate((rows, y))["nll"] == pytest.approx(be.metrics.nll(student.predict(rows), y), rel=1e-5)
    student.save(tmp_path / "student")
    again = be.load(tmp_path / "student", lambda: network(1, 3)).predict(X)
    assert torch.equal(again.epistemic, predictive.epistemic)
    reduced = student.predict(X, keep_members=False)
    torch.testing.assert_close(reduced.epistemic, predictive.epistemic)
    calibrated = student.calibrate((rows, y))
    again = calibrated.predict(X)
    total = again.entropy if teacher.kind == "classes" else again.variance
    torch.testing.assert_close(again.aleatoric + again.epistemic, total)


def test_an_ensemble_teaches_with_mixed_rows_and_leaves_targets_aside():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    teacher = quick_fit(be.Task(lambda: network(2, 2), be.Categorical()), (x, y))
    options = {"epochs": 2, "mixed": 2, "progress": False, "executor": "loop"}
    one, other = (be.distil(teacher, lambda: network(2, 2), data, **options) for data in (x, (x, y)))
    assert one.task.num_rows == 120
    assert torch.equal(one.predict(x).probs, other.predict(x).probs)
    several = be.distil(
        teacher, lambda: network(2, 2), x, epochs=1, mixed=0, method=be.DeepEnsemble(num_members=3), progress=False
    )
    found = several.predict(x)
    assert isinstance(found, DirichletPredictive)
    assert found.num_members == 3


def test_a_student_may_teach(taught):
    _, student = taught
    again = be.distil(student, lambda: network(1, 3), X, epochs=1, mixed=0, progress=False, executor="loop")
    assert again.predict(X).num_members == 1


@pytest.mark.parametrize(
    ("teacher", "data", "options", "words"),
    [
        (classes_of(X).member(0), X, {}, "no doubt of its own"),
        (classes_of(X), X, {"mixed": 3}, "shown to the teacher"),
        (classes_of(X), X, {"smoothing": 1.0}, "smoothing is a share"),
        (numbers_of(X), X, {"smoothing": 0.1}, "predicts numbers"),
        (classes_of(X).reduce(), X, {}, "no doubt of its own"),
        (classes_of(X), X[:10], {}, "rows"),
        (classes_of(X), DataLoader(TensorDataset(X)), {}, "in memory"),
    ],
)
def test_what_cannot_be_taught_is_refused(teacher, data, options, words):
    with pytest.raises((SettingError, DataError), match=words):
        be.distil(teacher, lambda: network(1, 3), data, epochs=1, progress=False, **options)


def test_whole_numbers_are_not_mixed():
    x = torch.arange(20).unsqueeze(1)
    teacher = quick_fit(
        be.Task(lambda: nn.Sequential(nn.Embedding(20, 3), nn.Flatten()), be.Categorical()), (x, x[:, 0] % 3)
    )
    with pytest.raises(SettingError, match="real numbers"):
        be.distil(teacher, lambda: nn.Sequential(nn.Embedding(20, 3), nn.Flatten()), x, mixed=1, epochs=1)


def test_mixed_rows_take_columns_of_other_rows_and_noise_of_their_scale(monkeypatch):
    x = torch.stack([torch.full((500,), 7.0), torch.arange(500.0), -torch.arange(500.0)], 1)
    monkeypatch.setattr(distilling, "_NOISE", 0.0)
    mixed = distilling._with_mixed(x, 4, seed=0)
    assert torch.equal(mixed[:500], x)
    assert torch.equal(mixed[:, 0], torch.full((2500,), 7.0))
    assert torch.equal(mixed, mixed.round())  # each entry is one of its column, not an average
    copies = mixed[500:]
    own = x.repeat(4, 1)
    kept = (copies[:, 1:] == own[:, 1:]).double()
    # With s the share of the row, entries are kept with E s = 1/2, and both with E s^2 = 1/3.
    assert kept.mean() == pytest.approx(1 / 2, abs=0.03)
    assert kept.prod(1).mean() == pytest.approx(1 / 3, abs=0.04)
    monkeypatch.setattr(distilling, "_NOISE", 0.3)
    noise = (distilling._with_mixed(x, 4, seed=0)[500:] - copies) / x.std(0, correction=0)
    assert noise[:, 1:].square().mean() == pytest.approx(0.3**2 / 3, rel=0.1)  # E s^2 again
    assert torch.equal(distilling._with_mixed(x, 1, seed=0)[:, 0], torch.full((1000,), 7.0))


def test_tables_are_mixed_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(distilling, "_ROWS", 100)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    teacher = quick_fit(be.Task(lambda: network(2, 2), be.Categorical()), (x, (x[:, 0] > 0).long()))
    options = {"epochs": 1, "progress": False, "executor": "loop"}
    assert be.distil(teacher, lambda: network(2, 2), x, **options).task.num_rows == 90
    assert be.distil(teacher, lambda: network(2, 2), x, mixed=0, **options).task.num_rows == 30
    assert be.distil(teacher.predict(x), lambda: network(2, 2), x, **options).task.num_rows == 30
    whole = [torch.zeros(30, 2, dtype=torch.long), torch.zeros(30, 2, 2), (torch.zeros(30, 2), torch.zeros(30, 2))]
    assert [distilling._usual_copies(inputs) for inputs in whole] == [0, 0, 0]
