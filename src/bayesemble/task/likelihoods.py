"""Likelihoods: how a network's outputs are read as a distribution over targets.

Each one knows the log probability of a batch under one member's outputs, checks targets before training, and
turns the outputs of all members into a `Predictive`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.settings import setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import ClassPredictive, NormalPredictive, PoissonPredictive, Predictive, StudentPredictive
from bayesemble.predictive.student_t import FEWEST_DEGREES, standard_log_density

_FEW_CLASSES, _MANY_NUMBERS = 32, 1 << 14


class Likelihood(ABC):
    """Reads outputs `(batch, ...)` as a distribution over targets `(batch, ...)`."""

    def leaves(self, output_shape: tuple[int, ...]) -> Leaves:
        """Parameters of the likelihood itself that are learned with the network, of one member."""
        return {}

    @abstractmethod
    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Bring targets to the shape and type that `log_prob` wants, or say what is wrong with them."""

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse targets from which nothing can be learned."""

    def shape_beside(self, targets: Tensor, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs of one row in a batch with these targets, where batches may differ in length."""
        return output_shape

    @property
    def leaves_out(self) -> bool:
        """Whether some targets may not count."""
        return False

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of each row's targets under one member: `(batch,)`."""

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor | None:
        """E_y[ -d2 log p(y|f) / df2 ] in the shape of the outputs, if it is diagonal and known; otherwise None."""
        return None

    @abstractmethod
    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Read the outputs `(member, row, ...)` of all members as a predictive distribution."""

    @property
    def reads_normals(self) -> bool:
        """Whether outputs that are normal, rather than known, have a predictive distribution in closed form."""
        return False

    def predictive_of_normals(self, means: Tensor, variances: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Read outputs that are normal, with means and variances `(member, row, ...)`, if that can be done."""
        raise NotImplementedError(f"{type(self).__name__} says that it reads normal outputs, but not how")

    def target_noise(self) -> float | None:
        """The known standard deviation of the observation noise, where there is one."""
        return None


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; outputs are logits `(batch, C)`, targets are labels 0..C-1.

    log p(y|f) = f_y - log sum_c exp f_c

    Outputs `(batch, L, C)` are read as L labels of each row, such as those of tokens, whose log probabilities are added
    up: the rows that the log joint counts are sequences. Targets that are `ignore_index` add nothing, neither to the
    log joint nor to a score: N * mean over rows is the sum over all labels that count.
    """

    ignore_index: int | None = setting(None, "a target that does not count, such as -100 at padding", kw_only=True)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def leaves_out(self) -> bool:
        """Whether there is a label that does not count."""
        return self.ignore_index is not None

    def shape_beside(self, targets: Tensor, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """As many labels of each row as the batch has, of sequences."""
        sequences = len(output_shape) > 1 and targets.dim() == len(output_shape)
        return (*targets.shape[1:], output_shape[-1]) if sequences else output_shape

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Labels of any number type, whole and in range."""
        if not output_shape or output_shape[-1] < 2:
            raise DataError(
                f"Categorical needs at least two logits per row, the network gives {output_shape or 'one number'}; "
                "use Bernoulli() for a single logit"
            )
        labels = _shaped(targets, output_shape[:-1])
        _refuse_rows(labels != labels.round() if labels.is_floating_point() else None, labels, "a whole label")
        wrong = (labels < 0) | (labels >= output_shape[-1])
        if self.ignore_index is not None:
            wrong &= labels != self.ignore_index
        _refuse_rows(wrong, labels, f"a label in 0..{output_shape[-1] - 1}, as the network has that many outputs")
        return labels.long()

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse a single class."""
        counted = targets if self.ignore_index is None else targets[targets != self.ignore_index]
        if not counted.numel():
            raise DataError(f"training needs labels that count, but all are ignore_index={self.ignore_index}")
        _refuse_constant(counted, "two classes")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log softmax at the labels."""
        if outputs.shape[:-1] != targets.shape:
            raise DataError(
                f"the network gives outputs {tuple(outputs.shape)}, which ask for targets {tuple(outputs.shape[:-1])}; "
                f"they are {tuple(targets.shape)}"
            )
        if self.ignore_index is None:
            return _per_row(F.log_softmax(outputs, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1))
        left_out = targets == self.ignore_index
        labels = targets.masked_fill(left_out, 0)
        chosen = F.log_softmax(outputs, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return _per_row(chosen.masked_fill(left_out, 0))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Class probabilities."""
        return ClassPredictive(weights, _log_softmax(outputs), self.ignore_index)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no; outputs are logits of yes `(batch,)`, `(batch, 1)` or one per label `(batch, labels)`.

    log p(y|f) = y log sigmoid(f) + (1 - y) log sigmoid(-f)
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Zeros and ones."""
        labels = _shaped(targets, output_shape)
        _refuse_rows((labels != 0) & (labels != 1), labels, "0 or 1")
        return labels

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse a single class."""
        _refuse_constant(targets, "two classes")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Minus the binary cross-entropy."""
        cross_entropy = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return _per_row(-cross_entropy)

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """p (1 - p), of the probability p of yes."""
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Probabilities of no and yes, on the last axis."""
        logits = _drop_single_output(outputs)
        return ClassPredictive(weights, torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1))


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A real number with the same noise everywhere; outputs are means `(batch,)` or `(batch, outputs)`.

    log p(y|f) = -(y - f)^2 / (2 s^2) - log s - log(2 pi) / 2
    """

    noise: float | str = setting(
        1.0, 'standard deviation of the noise, or "learned": one per member and output', choices=("learned",), above=0
    )

    def __post_init__(self) -> None:
        validate(self)

    def leaves(self, output_shape: tuple[int, ...]) -> Leaves:
        """The logarithm of the noise, starting from a standard deviation of 1."""
        return {"log_noise": torch.zeros(output_shape)} if self.noise == "learned" else {}

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers in the shape of the outputs."""
        return _shaped(targets, output_shape)

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of a normal."""
        return _per_row(_normal_log_prob(outputs, self._std(outputs, leaves), targets))

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """1 / s^2."""
        return self._std(outputs, leaves).pow(-2).expand(outputs.shape)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals."""
        stds = self._member_std(outputs, leaves)
        return NormalPredictive(weights, _drop_single_output(outputs), _drop_single_output(stds))

    @property
    def reads_normals(self) -> bool:
        """A normal around a normal mean is normal; a class derived from this one may read outputs otherwise."""
        return type(self).predictive is Gaussian.predictive

    def predictive_of_normals(self, means: Tensor, variances: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals with the variances v + s^2."""
        stds = (variances + self._member_std(means, leaves).square()).sqrt()
        parts = [_drop_single_output(part) for part in (means, stds, variances)]
        return NormalPredictive(weights, *parts[:2], mean_variance=parts[2])

    def target_noise(self) -> float | None:
        """The fixed noise; nothing is known beforehand of a learned one."""
        return None if isinstance(self.noise, str) else self.noise

    def _member_std(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """The noise of each member, in the shape of the outputs `(member, row, ...)`."""
        return self._std(outputs, {name: value.unsqueeze(1) for name, value in leaves.items()}).expand(outputs.shape)

    def _std(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        return leaves["log_noise"].exp() if self.noise == "learned" else outputs.new_tensor(self.noise)


@dataclass(frozen=True)
class Heteroscedastic(Likelihood):
    """A real number whose noise depends on the input; the outputs `(batch, 2 * targets)` are two heads.

    The first half are the means, the second half go through a softplus to give the variances (plus 1e-6).
    """

    stretch: float = setting(
        1.0, "factor on all standard deviations, such as a recalibration gives", above=0, kw_only=True
    )

    def __post_init__(self) -> None:
        validate(self)

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers, half as many as outputs."""
        if not output_shape or output_shape[-1] % 2:
            raise DataError(
                f"{type(self).__name__} needs a mean and a variance head per target, an even number of outputs; "
                f"the network gives {output_shape[-1] if output_shape else 'one number'} per row"
            )
        return _shaped(targets, (*output_shape[:-1], output_shape[-1] // 2))

    def _information(self, outputs: Tensor, about_mean: float, about_variance: float) -> Tensor:
        """a / v about a mean and b / (2 v^2) about its variance v, times (dv / df)^2 for the head.

        a and b are what the distribution tells of its mean and of its variance, as shares of what a normal tells.
        """
        raw = outputs.chunk(2, dim=-1)[1]
        variances = self._heads(outputs)[1].square()
        slopes = self.stretch**2 * torch.sigmoid(raw)
        return torch.cat([about_mean / variances, about_variance / 2 * (slopes / variances).square()], dim=-1)

    def _heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        means, raw = outputs.chunk(2, dim=-1)
        return means, self.stretch * (F.softplus(raw) + 1e-6).sqrt()


@dataclass(frozen=True)
class HeteroscedasticGaussian(Heteroscedastic):
    """A real number with normal noise that depends on the input; outputs are those of `Heteroscedastic`.

    Reference: Lakshminarayanan et al. (2017), section 2.2.
    """

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of a normal."""
        return _per_row(_normal_log_prob(*self._heads(outputs), targets))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals."""
        means, stds = self._heads(outputs)
        return NormalPredictive(weights, _drop_single_output(means), _drop_single_output(stds))

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """That of a normal."""
        return self._information(outputs, 1.0, 1.0)


@dataclass(frozen=True)
class HeteroscedasticStudent(Heteroscedastic):
    """A real number whose noise depends on the input and has heavy tails; outputs are those of `Heteroscedastic`.

    A Student t distribution with n degrees of freedom and variance v. A target far out costs its logarithm instead of
    its square, so it neither drags the fit nor ruins the score.

    log p(y|f) = -(n + 1) / 2 log(1 + (y - m)^2 / ((n - 2) v)) - log(v) / 2 + constant

    Reference: Lange, Little & Taylor (1989), "Robust statistical modeling using the t distribution".
    """

    degrees: int = setting(4, "degrees of freedom; the fewer, the heavier the tails", least=FEWEST_DEGREES)

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of a Student t distribution."""
        means, stds = self._heads(outputs)
        standard = (targets.to(means.dtype) - means) / stds
        return _per_row(standard_log_density(standard, self.degrees) - stds.log())

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of Student t distributions."""
        means, stds = self._heads(outputs)
        return StudentPredictive(weights, _drop_single_output(means), _drop_single_output(stds), self.degrees)

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """Less about the variance than a normal tells, more about the mean."""
        n = self.degrees
        return self._information(outputs, n * (n + 1) / ((n - 2) * (n + 3)), n / (n + 3))


@dataclass(frozen=True)
class Poisson(Likelihood):
    """A count; outputs are log rates.

    log p(y|f) = y f - exp(f) - log y!
    """

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Whole numbers from 0."""
        counts = _shaped(targets, output_shape)
        wrong = (counts < 0) | (counts != counts.round()) if counts.is_floating_point() else counts < 0
        _refuse_rows(wrong, counts, "a count 0, 1, 2, ...")
        return counts

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log probability of the counts."""
        counts = targets.to(outputs.dtype)
        return _per_row(counts * outputs - outputs.exp() - torch.lgamma(counts + 1))

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """The rate."""
        return outputs.exp()

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of Poisson distributions."""
        return PoissonPredictive(weights, _drop_single_output(outputs).exp())


def _normal_log_prob(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    return -((targets.to(mean.dtype) - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2


def _log_softmax(outputs: Tensor) -> Tensor:
    """Log probabilities over the last axis; of few classes and many rows, with the rows side by side for torch.

    That is some six times faster, and the same to a rounding.
    """
    if outputs.shape[-1] > _FEW_CLASSES or outputs.numel() < _MANY_NUMBERS:
        return F.log_softmax(outputs, dim=-1)
    return F.log_softmax(outputs.movedim(-1, 1), dim=1).movedim(1, -1).contiguous()


def _per_row(values: Tensor) -> Tensor:
    return values.flatten(1).sum(-1) if values.dim() > 1 else values


def _drop_single_output(values: Tensor) -> Tensor:
    """`(member, row, 1)` becomes `(member, row)`, so that means and targets `(row,)` never broadcast to a square."""
    return values.squeeze(-1) if values.dim() > 2 and values.shape[-1] == 1 else values


def _shaped(targets: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bring targets to the shape of the outputs: a last axis of one number, as in `(row, step, 1)`, may be missing."""
    rows, own = targets.shape[0], tuple(targets.shape[1:])
    if own == tuple(shape):
        return targets
    single = targets.numel() == rows and math.prod(shape) == 1
    if single or (*own, 1) == tuple(shape) or own == (*shape, 1):
        return targets.reshape(rows, *shape)
    raise DataError(
        f"targets of shape {tuple(targets.shape)} do not fit the network's outputs, which ask for {(rows, *shape)}"
    )


def _refuse_rows(wrong: Tensor | None, values: Tensor, needed: str) -> None:
    if wrong is not None and wrong.any():
        row = int(wrong.flatten(1).any(1).nonzero()[0]) if wrong.dim() > 1 else int(wrong.nonzero()[0])
        raise DataError(f"every target must be {needed}; row {row} has {values[row].tolist()}")


def _refuse_constant(targets: Tensor, needed: str) -> None:
    if (targets == targets.flatten()[0]).all():
        raise DataError(f"training needs at least {needed}; all {len(targets)} rows have {targets.flatten()[0].item()}")
