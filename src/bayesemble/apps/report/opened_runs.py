"""What the figures of a comparison show: the runs of one seed, opened again, and the rows their members differ on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from bayesemble.apps.compare.results import Comparison, Result
from bayesemble.apps.compare.source import open_run, predict_in_units, targets_of_test
from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import BayesembleError
from bayesemble.data import Split
from bayesemble.diagnostics.landscape.diversity import DiversityAccuracy
from bayesemble.diagnostics.plots.style import colour
from bayesemble.predictive import ClassPredictive, Predictive, RealPredictive
from bayesemble.training.ensemble import Ensemble

_INPUTS_SHOWN = 6


@dataclass(frozen=True, eq=False)
class Shown:
    """One method with one seed: what it predicts, in the original units of the target."""

    label: str
    number: int
    """Its place in the comparison, which its colour goes by."""
    ensemble: Ensemble
    split: Split
    targets: Tensor
    predictive: Predictive
    ood: Predictive | None

    @property
    def colour(self) -> str:
        """Its colour in all figures."""
        return colour(self.number)

    @property
    def several(self) -> bool:
        """Whether more than one network is averaged."""
        return self.predictive.num_members > 1

    @property
    def classes(self) -> ClassPredictive:
        """What it predicts, if that is classes."""
        assert isinstance(self.predictive, ClassPredictive)
        return self.predictive

    @property
    def numbers(self) -> RealPredictive:
        """What it predicts, if that is numbers."""
        assert isinstance(self.predictive, RealPredictive)
        return self.predictive


@dataclass(frozen=True, eq=False)
class Example:
    """A test row, and what the members say of it."""

    row: int
    """Its number among the test rows."""
    truth: str
    answers: str
    inputs: list[str]
    """The first few of them, standardised."""
    image: NumpyArray | None = None


def open_methods(folder: Path, comparison: Comparison) -> tuple[list[Shown], list[str]]:
    """Open the first seed of every method that has one, and say which runs could not be opened."""
    shown: list[Shown] = []
    missing: list[str] = []
    for number, label in enumerate(comparison.labels):
        for result in comparison.of(label)[:1]:
            try:
                shown.append(_open(folder, result, number))
            except (BayesembleError, OSError, ValueError, KeyError) as error:
                missing.append(f"The figures of {label}: its run {result.run} could not be opened: {error}")
    return shown, missing


def _open(folder: Path, result: Result, number: int) -> Shown:
    ensemble, split = open_run(folder / result.run)
    predictive = predict_in_units(ensemble, split.x_test, split)
    ood = None if split.x_ood is None else predict_in_units(ensemble, split.x_ood, split, keep_members=False)
    return Shown(result.label, number, ensemble, split, targets_of_test(split), predictive, ood)


def member_diversity(shown: Shown) -> DiversityAccuracy:
    """The networks of a prediction of classes by accuracy and by disagreement with the first of them."""
    choices = shown.classes.log_probs.argmax(-1)
    right = (choices == shown.targets).double().mean(1)
    apart = (choices != choices[0]).double().mean(1)
    return DiversityAccuracy(
        {"member": right[1:]}, {"member": apart[1:]}, float(right[0]), shown.classes.log_probs.shape[-1]
    )


def examples(shown: Shown, image_shape: list[int] | None, count: int = 6) -> tuple[list[Example], list[Example]]:
    """The test rows on which the members agree most, and those on which they disagree most.

    Disagreement is the epistemic uncertainty: mutual information of classes, variance between the means of numbers.
    """
    order = shown.predictive.uncertainty("epistemic").argsort(stable=True)
    count = min(count, len(order) // 2)
    ends = (order[:count], order.flip(0)[:count])
    agree, disagree = ([_example(shown, int(row), image_shape) for row in rows] for rows in ends)
    return agree, disagree


def _example(shown: Shown, row: int, image_shape: list[int] | None) -> Example:
    cells = np.asarray(shown.split.x_test[row])
    inputs = [f"{value:.2f}" for value in cells.ravel()[:_INPUTS_SHOWN]]
    image = None if image_shape is None else cells.reshape(image_shape)
    predictive, target = shown.predictive, shown.targets[row]
    if isinstance(predictive, ClassPredictive):
        votes = predictive.log_probs[:, row].argmax(-1).bincount()
        chosen = [int(label) for label in votes.argsort(descending=True, stable=True) if votes[label] > 0]
        answers = ", ".join(f"{label} ({int(votes[label])})" for label in chosen)
        return Example(row, str(int(target)), answers, inputs, image)
    means = shown.numbers.member_mean[:, row]
    digits = 2 if float(shown.targets.abs().max()) < 100 else 0
    mean, low, high = (f"{float(one):.{digits}f}" for one in (shown.numbers.mean[row], means.min(), means.max()))
    return Example(row, f"{float(target):.{digits}f}", f"{mean} ({low} to {high})", inputs, image)
