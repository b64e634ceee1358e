"""What a likelihood must say, and what those of the library share: shapes of targets, heads, finite numbers."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from bayesemble.core.errors import DataError
from bayesemble.core.types import Leaves
from bayesemble.predictive import Predictive


class Likelihood(ABC):
    """Reads outputs `(batch, ...)` as a distribution over targets `(batch, ...)`.

    One of your own is a frozen dataclass with `check_targets`, `log_prob` and `predictive`; the rest has defaults.
    """

    takes_logits: ClassVar[bool] = False
    """Whether a softmax is taken of the outputs, so that a network must not end in one."""
    takes_log_odds: ClassVar[bool] = False
    """Whether a sigmoid is taken of each output, so that a network must not end in one."""
    reads_as_is: ClassVar[bool] = False
    """Whether outputs are read on the scale of the targets, so that these should be about 1, as outputs begin."""

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
        """E_y[ -d2 log p(y|f) / df2 ] in the shape of the outputs, if it is diagonal and known; otherwise None.

        A likelihood without curvature refuses here, with a `SettingError`: no Gaussian can be made from it.
        """
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


def per_row(values: Tensor) -> Tensor:
    """Add up what `(batch, ...)` has for each row: `(batch,)`."""
    return values.flatten(1).sum(-1) if values.dim() > 1 else values


def drop_single_output(values: Tensor) -> Tensor:
    """`(member, row, 1)` becomes `(member, row)`, so that means and targets `(row,)` never broadcast to a square."""
    return values.squeeze(-1) if values.dim() > 2 and values.shape[-1] == 1 else values


def with_heads(output_shape: tuple[int, ...], heads: int, likelihood: Likelihood, what: str) -> tuple[int, ...]:
    """The shape of the targets of one row if each has so many heads, on the last axis; or a refusal."""
    if not output_shape or output_shape[-1] % heads:
        came = output_shape[-1] if output_shape else "one number"
        raise DataError(
            f"{type(likelihood).__name__} needs {what} per target, so a multiple of {heads} outputs; "
            f"the network gives {came} per row"
        )
    return (*output_shape[:-1], output_shape[-1] // heads)


def held(values: Tensor, low: float, high: float) -> Tensor:
    """Numbers within limits, such as logarithms whose exponentials stay finite; beyond, with the slope at the limit.

    A slope of 0, which clamping alone would have, would leave a network that strayed there for good.
    """
    return values + (values.clamp(low, high) - values).detach()


def shaped(targets: Tensor, shape: tuple[int, ...]) -> Tensor:
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


def as_counts(targets: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Targets as counts 0, 1, 2, ... in a shape, or what is wrong with them."""
    counts = shaped(targets, shape)
    wrong = (counts < 0) | (counts != counts.round()) if counts.is_floating_point() else counts < 0
    refuse_rows(wrong, counts, "a count 0, 1, 2, ...")
    return counts


def as_labels(
    targets: Tensor, shape: tuple[int, ...], num_classes: int, because: str, ignored: int | None = None
) -> Tensor:
    """Targets as labels 0..C-1 in a shape, or what is wrong with them; one may be a label that does not count."""
    labels = shaped(targets, shape)
    refuse_rows(labels != labels.round() if labels.is_floating_point() else None, labels, "a whole label")
    wrong = (labels < 0) | (labels >= num_classes)
    if ignored is not None:
        wrong &= labels != ignored
    refuse_rows(wrong, labels, f"a label in 0..{num_classes - 1}, as {because}")
    return labels.long()


def refuse_rows(wrong: Tensor | None, values: Tensor, needed: str) -> None:
    """Refuse targets of which some are wrong, by the first row that is."""
    if wrong is not None and wrong.any():
        row = int(wrong.flatten(1).any(1).nonzero()[0]) if wrong.dim() > 1 else int(wrong.nonzero()[0])
        raise DataError(f"every target must be {needed}; row {row} has {values[row].tolist()}")


def refuse_constant(targets: Tensor, needed: str) -> None:
    """Refuse targets that are all the same."""
    if (targets == targets.flatten()[0]).all():
        raise DataError(f"training needs at least {needed}; all {len(targets)} rows have {targets.flatten()[0].item()}")
