"""The common likelihoods: classes, and real numbers with normal or heavy-tailed noise."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require, setting, validate
from bayesemble.core.types import Leaves
from bayesemble.predictive import ClassPredictive, NormalPredictive, Predictive, StudentPredictive
from bayesemble.predictive.classes import one_hot_labels
from bayesemble.predictive.student_t import FEWEST_DEGREES, standard_log_density
from bayesemble.task.likelihoods.base import (
    Likelihood,
    as_labels,
    drop_single_output,
    per_row,
    refuse_constant,
    refuse_rows,
    shaped,
    with_heads,
)

_ROUNDING = 1e-4
_FEW_CLASSES, _MANY_NUMBERS = 32, 1 << 14


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; outputs are logits `(batch, C)`, targets are labels 0..C-1, or probabilities of classes.

    log p(y|f) = f_y - log sum_c exp f_c

    Outputs `(batch, L, C)` are read as L labels of each row, such as those of tokens, whose log probabilities are added
    up: the rows that the log joint counts are sequences. Targets that are `ignore_index` add nothing, neither to the
    log joint nor to a score: N * mean over rows is the sum over all labels that count.

    Probabilities q `(batch, C)`, which are soft labels, smoothing by e and class weights v make it a pseudo-likelihood,
    with p_c the softmax of the outputs:

        log p(y|f) = sum_c v_c q'_c log p_c,     q'_c = (1 - e) q_c + e / C
        log joint  = sum_n log p(y_n|f_n) + log p(w)

    A row of class c counts as v_c rows beside the prior: the weights are not normalised, so that those of mean 1 over
    the rows leave the prior what it was. What is predicted then are the probabilities of classes that are as frequent
    as weighted, which is not how often they occur.

    Reference: Szegedy et al. (2016), "Rethinking the inception architecture", section 7, for the smoothing.
    """

    class_weights: tuple[float, ...] | None = setting(
        None, "what a row of each class counts for, C numbers", least=0, kw_only=True
    )
    label_smoothing: float = setting(
        0.0, "share of each label that is spread evenly over all classes", within="[0, 1)", kw_only=True
    )
    ignore_index: int | None = setting(None, "a target that does not count, such as -100 at padding", kw_only=True)
    takes_logits = True

    def __post_init__(self) -> None:
        if isinstance(self.class_weights, Iterable):
            plain = self.class_weights.tolist() if isinstance(self.class_weights, Tensor) else self.class_weights
            object.__setattr__(self, "class_weights", tuple(plain))
        validate(self)
        some = self.class_weights is None or any(self.class_weights)
        require(some, "class_weights are all 0: there would be nothing to learn from")

    @property
    def leaves_out(self) -> bool:
        """Whether there is a label that does not count."""
        return self.ignore_index is not None

    def shape_beside(self, targets: Tensor, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """As many labels of each row as the batch has, of sequences."""
        sequences = len(output_shape) > 1 and targets.dim() == len(output_shape)
        return (*targets.shape[1:], output_shape[-1]) if sequences else output_shape

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Labels of any number type, whole and in range; or probabilities, of which one-hot ones become labels."""
        if not output_shape or output_shape[-1] < 2:
            raise DataError(
                f"Categorical needs at least two logits per row, the network gives {output_shape or 'one number'}; "
                "use Bernoulli() for a single logit"
            )
        num_classes = output_shape[-1]
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise SettingError(
                f"class_weights are one for each class, {num_classes} as the network has that many outputs; "
                f"got {len(self.class_weights)}"
            )
        if tuple(targets.shape[1:]) == tuple(output_shape):
            return _as_shares(targets)
        self._refuse_classes_first(targets, output_shape)
        because = "the network has that many outputs"
        return as_labels(targets, output_shape[:-1], num_classes, because, self.ignore_index)

    def _refuse_classes_first(self, targets: Tensor, output_shape: tuple[int, ...]) -> None:
        """Say how to bring the classes of pixels, which torch's own losses have on axis 1, to the last axis."""
        own = tuple(targets.shape[1:])
        if len(output_shape) > 1 and own == tuple(output_shape[1:]) and own != tuple(output_shape[:-1]):
            raise DataError(
                f"targets {tuple(targets.shape)} beside outputs {(len(targets), *output_shape)}: the classes stand on "
                "axis 1 there, and are wanted on the last; give Task(..., output=lambda out: out.movedim(1, -1))"
            )

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse a single class."""
        if targets.is_floating_point():
            return
        counted = targets if self.ignore_index is None else targets[targets != self.ignore_index]
        if not counted.numel():
            raise DataError(f"training needs labels that count, but all are ignore_index={self.ignore_index}")
        refuse_constant(counted, "two classes")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log softmax at the labels, or its mean over the shares of the classes."""
        soft = targets.is_floating_point()
        needed = outputs.shape if soft else outputs.shape[:-1]
        if targets.shape != needed:
            raise DataError(
                f"the network gives outputs {tuple(outputs.shape)}, which ask for targets {tuple(needed)}; "
                f"they are {tuple(targets.shape)}"
            )
        left_out = None if soft or self.ignore_index is None else targets == self.ignore_index
        labels = targets if left_out is None else targets.masked_fill(left_out, 0)
        logs = F.log_softmax(outputs, dim=-1)
        if soft or self.class_weights or self.label_smoothing:
            found = (self._shares(labels, logs) * logs).sum(-1)
        else:
            found = logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return per_row(found if left_out is None else found.masked_fill(left_out, 0))

    def _shares(self, targets: Tensor, logs: Tensor) -> Tensor:
        """What the log probability of each class counts for."""
        num_classes = logs.shape[-1]
        if not targets.is_floating_point():
            targets = targets.unsqueeze(-1) == torch.arange(num_classes, device=targets.device)
        shares = (1 - self.label_smoothing) * targets.to(logs.dtype) + self.label_smoothing / num_classes
        return shares if self.class_weights is None else shares * shares.new_tensor(self.class_weights)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Class probabilities."""
        return ClassPredictive(weights, _log_softmax(outputs), self.ignore_index)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no; outputs are logits of yes `(batch,)`, `(batch, 1)` or one per label `(batch, labels)`.

    log p(y|f) = y log sigmoid(f) + (1 - y) log sigmoid(-f)
    """

    takes_log_odds = True

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Zeros and ones."""
        labels = shaped(targets, output_shape)
        refuse_rows((labels != 0) & (labels != 1), labels, "0 or 1")
        return labels

    def check_training_targets(self, targets: Tensor) -> None:
        """Refuse a single class."""
        refuse_constant(targets, "two classes")

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Minus the binary cross-entropy."""
        cross_entropy = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return per_row(-cross_entropy)

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """p (1 - p), of the probability p of yes."""
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """Probabilities of no and yes, on the last axis."""
        logits = drop_single_output(outputs)
        return ClassPredictive(weights, torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1))


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A real number with the same noise everywhere; outputs are means `(batch,)` or `(batch, outputs)`.

    log p(y|f) = -(y - f)^2 / (2 s^2) - log s - log(2 pi) / 2
    """

    reads_as_is = True

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
        return shaped(targets, output_shape)

    def log_prob(self, outputs: Tensor, targets: Tensor, leaves: Leaves) -> Tensor:
        """Log density of a normal."""
        return per_row(_normal_log_prob(outputs, self._std(outputs, leaves), targets))

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """1 / s^2."""
        return self._std(outputs, leaves).pow(-2).expand(outputs.shape)

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals."""
        stds = self._member_std(outputs, leaves)
        return NormalPredictive(weights, drop_single_output(outputs), drop_single_output(stds))

    @property
    def reads_normals(self) -> bool:
        """A normal around a normal mean is normal; a class derived from this one may read outputs otherwise."""
        return type(self).predictive is Gaussian.predictive

    def predictive_of_normals(self, means: Tensor, variances: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals with the variances v + s^2."""
        stds = (variances + self._member_std(means, leaves).square()).sqrt()
        parts = [drop_single_output(part) for part in (means, stds, variances)]
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

    reads_as_is = True

    stretch: float = setting(
        1.0, "factor on all standard deviations, such as a recalibration gives", above=0, kw_only=True
    )

    def __post_init__(self) -> None:
        validate(self)

    def check_targets(self, targets: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Real numbers, half as many as outputs."""
        return shaped(targets, with_heads(output_shape, 2, self, "a mean and a variance head"))

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
        return per_row(_normal_log_prob(*self._heads(outputs), targets))

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of normals."""
        means, stds = self._heads(outputs)
        return NormalPredictive(weights, drop_single_output(means), drop_single_output(stds))

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
        return per_row(standard_log_density(standard, self.degrees) - stds.log())

    def predictive(self, outputs: Tensor, leaves: Leaves, weights: Tensor) -> Predictive:
        """A mixture of Student t distributions."""
        means, stds = self._heads(outputs)
        return StudentPredictive(weights, drop_single_output(means), drop_single_output(stds), self.degrees)

    def information(self, outputs: Tensor, leaves: Leaves) -> Tensor:
        """Less about the variance than a normal tells, more about the mean."""
        n = self.degrees
        return self._information(outputs, n * (n + 1) / ((n - 2) * (n + 3)), n / (n + 3))


def _as_shares(targets: Tensor) -> Tensor:
    """Probabilities of classes, as labels if each row is sure of one."""
    shares = targets if targets.is_floating_point() else targets.to(torch.get_default_dtype())
    wrong = (shares < 0) | ((shares.sum(-1, keepdim=True) - 1).abs() > _ROUNDING)
    refuse_rows(wrong, targets, "a label, or probabilities of the classes that are not negative and sum to 1")
    certain = one_hot_labels(shares)
    return shares if certain is None else certain


def _normal_log_prob(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    return -((targets.to(mean.dtype) - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2


def _log_softmax(outputs: Tensor) -> Tensor:
    """Log probabilities over the last axis; of few classes and many rows, with the rows side by side for torch.

    That is some six times faster, and the same to a rounding.
    """
    if outputs.shape[-1] > _FEW_CLASSES or torch.compiler.is_exporting() or outputs.numel() < _MANY_NUMBERS:
        return F.log_softmax(outputs, dim=-1)
    return F.log_softmax(outputs.movedim(-1, 1), dim=1).movedim(1, -1).contiguous()
