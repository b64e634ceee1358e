"""Distillation: one network, or a few, that say what an ensemble says, and are as unsure as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.arrays import as_inputs
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require, whole
from bayesemble.methods import Method
from bayesemble.methods.deep_ensemble import DeepEnsemble
from bayesemble.predictive import ClassPredictive, DirichletPredictive, Predictive, RealPredictive
from bayesemble.task.likelihoods import Likelihood
from bayesemble.task.likelihoods.distilled import DistilledClasses, DistilledNumbers
from bayesemble.task.networks import ModelSource
from bayesemble.task.task import Task
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.fit import fit
from bayesemble.training.incoming.loaded_rows import is_loaded

_SMOOTHING = 1e-4
_STEPS = 30_000
_RATE = 3e-3
_ROWS = 200_000  # that mixed rows make of a table unless told otherwise
_NOISE = 0.3  # of the standard deviation of each input, at most
_LEAST = 1e-6  # share of the total variance that each part has at least: logarithms are taken of it


def distil(
    teacher: Ensemble | Predictive,
    student: ModelSource,
    data: Any,
    *,
    epochs: int | None = None,
    batch_size: int = 128,
    method: Method | None = None,
    mixed: int | None = None,
    smoothing: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Ensemble:
    """Train a student that keeps the mean and both kinds of doubt of a teacher, at the cost of one network.

    For classes the student's outputs are read as a Dirichlet distribution over probabilities (`DistilledClasses`), for
    numbers as a mean, an aleatoric and an epistemic variance (`DistilledNumbers`). What comes back is an ensemble like
    others: it predicts, is scored, calibrated and saved. No targets are needed, and further rows without any help: a
    student learns where the teacher doubts only from rows on which it doubts, which are few among those of training.

    Args:
        teacher: An ensemble, calibrated or not, or the prediction of the rows by anything else.
        student: A network, or a factory of networks, with as many outputs as classes, or three for each number.
        data: Inputs as arrays or tensors, rows first. Of `(x, y)`, where the ensemble takes one array, y is left aside.
        epochs: Passes over the rows; None makes 30,000 steps of them, for the doubt is learned later than the mean.
        batch_size: Rows per step.
        method: How students are trained; None is `DeepEnsemble(num_members=1, learning_rate=3e-3, schedule="cosine")`.
            Several members are several students, whose average keeps somewhat more.
        mixed: So many copies of the rows are added in which each row has some of its columns from another one and is
            blurred by noise, for the teacher to speak of too; for inputs that are one array of real numbers. None
            makes 200,000 rows of a table `(row, column)` whose teacher is an ensemble, and adds none to other inputs.
        smoothing: Share of the teacher's probabilities that is spread evenly over the classes, so that logarithms of
            very small ones do not outweigh all else; None is 0.0001. Numbers have none.
        seed: All randomness derives from it.
        options: Of `fit`, such as `progress`, `executor`, `checkpoint`.

    Reference: Malinin, Mlodozeniec & Gales (2020), "Ensemble distribution distillation".
    """
    require(smoothing is None or 0 <= smoothing < 1, f"smoothing is a share, 0 <= smoothing < 1, got {smoothing}")
    if mixed is not None:
        mixed = whole(mixed, f"mixed is a whole number of copies from 0, got {mixed!r}", least=0)
    inputs = _inputs(teacher, data)
    if isinstance(teacher, Predictive):
        require(not mixed, "mixed rows have to be shown to the teacher, which is an ensemble then, not its prediction")
        parts: Iterator[Predictive] = iter([teacher])
    else:
        mixed = _usual_copies(inputs) if mixed is None else mixed
        inputs = _with_mixed(inputs, mixed, seed) if mixed else inputs
        parts = teacher.predict_iter(inputs)
    likelihood, targets = _lessons(parts, smoothing)
    if epochs is None:
        epochs = max(1, round(_STEPS * batch_size / len(targets)))
    found = method or DeepEnsemble(num_members=1, learning_rate=_RATE, schedule="cosine")
    task = Task(student, likelihood, None)
    return fit(task, found, (inputs, targets), epochs=epochs, batch_size=batch_size, seed=seed, **options)


def _inputs(teacher: Ensemble | Predictive, data: Any) -> Any:
    if is_loaded(data):
        raise DataError("distil takes inputs in memory, arrays or tensors; gather those of the loader first")
    takes_one = isinstance(teacher, Ensemble) and isinstance(teacher.task.example, Tensor)
    inputs = data[0] if takes_one and isinstance(data, tuple) else data
    return as_inputs(inputs, teacher.task.dtype if isinstance(teacher, Ensemble) else torch.get_default_dtype())


def _usual_copies(inputs: Any) -> int:
    """As many as make `_ROWS` rows of a table of real numbers, and none of anything else."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.dim() != 2:
        return 0
    return max(0, _ROWS // len(inputs) - 1)


def _with_mixed(inputs: Any, copies: int, seed: int) -> Tensor:
    """The rows, and copies in which each entry is, with a probability of the row's own, that of another row.

    Noise with a standard deviation of s `_NOISE` times that of the column is added, s uniform on [0, 1] for each row.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise SettingError("mixed rows are for inputs that are one array of real numbers; leave mixed out")
    generator = seeds.generator(seed, "mixed")
    scale, shape = _NOISE * inputs.std(0, correction=0), (len(inputs), *[1] * (inputs.dim() - 1))
    found = [inputs]
    for _ in range(copies):
        other = inputs[torch.randperm(len(inputs), generator=generator)]
        share, size = (torch.rand(shape, generator=generator, dtype=inputs.dtype) for _ in range(2))
        own = torch.rand(inputs.shape, generator=generator, dtype=inputs.dtype) < share
        noise = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)
        found.append(torch.where(own, inputs, other) + size * scale * noise)
    return torch.cat(found)


def _lessons(parts: Iterator[Predictive], smoothing: float | None) -> tuple[Likelihood, Tensor]:
    """The likelihood that suits what a teacher predicts, and what it says of all rows."""
    found: list[Tensor] = []
    likelihood: Likelihood = DistilledClasses()
    for part in parts:
        if isinstance(part, ClassPredictive):
            several = isinstance(part, DirichletPredictive) or int((part.weights > 0).sum()) > 1
            require(several, "a teacher of one member has no doubt of its own to keep; train on its probabilities")
            found.append(part.expected_log_probs(_SMOOTHING if smoothing is None else smoothing))
        elif isinstance(part, RealPredictive):
            require(smoothing is None, "smoothing is for probabilities of classes, and the teacher predicts numbers")
            likelihood = DistilledNumbers()
            found.append(_moments(part))
        else:
            raise SettingError(f"predictions of the kind {type(part).__name__} cannot be distilled")
    return likelihood, torch.cat(found).to(torch.get_default_dtype())


def _moments(predictive: RealPredictive) -> Tensor:
    """Means, aleatoric and epistemic variances, side by side on the last axis."""
    total = predictive.variance.double()
    least = (_LEAST * total).clamp_min(torch.finfo(torch.float32).tiny)
    variances = [torch.maximum(part.double(), least) for part in (predictive.aleatoric, predictive.epistemic)]
    parts = [predictive.mean.double(), *variances]
    return torch.stack(parts, -1) if total.dim() == 1 else torch.cat(parts, -1)
