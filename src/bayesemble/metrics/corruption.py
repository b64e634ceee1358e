"""Robustness: how much is lost when images are corrupted.

Errors are shares in [0, 1], given as `{corruption: one error for each severity}`. Corruption errors are per cent of a
baseline's, as they are published: 100 is as robust as the baseline, lower is better.

Reference: Hendrycks & Dietterich (2019), "Benchmarking neural network robustness to common corruptions and
perturbations".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesemble.core import seeds
from bayesemble.core.errors import DataError
from bayesemble.core.settings import require
from bayesemble.metrics.calibration import expected_calibration_error
from bayesemble.metrics.scores import accuracy, nll
from bayesemble.predictive import ClassPredictive

Images = npt.NDArray[Any]
Errors = Mapping[str, Sequence[float]]
Corruption = Callable[[Images, int, np.random.Generator], Images]
"""`(images, severity, generator) -> images`, such as those of `bayesemble.data.corruptions.CORRUPTIONS`."""

ROUNDING = 1e-9  # sums of errors closer to 0 than this are 0


@dataclass(frozen=True)
class CorruptionTable:
    """Scores by corruption, one for each severity."""

    severities: tuple[int, ...]
    accuracy: dict[str, list[float]]
    nll: dict[str, list[float]]
    ece: dict[str, list[float]]

    @property
    def errors(self) -> dict[str, list[float]]:
        """Shares of wrong choices: what the corruption errors are made from."""
        return {name: [1 - value for value in values] for name, values in self.accuracy.items()}


def corruption_table(
    predict: Callable[[Images], ClassPredictive],
    images: Images,
    targets: Any,
    corruptions: Mapping[str, Corruption],
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    seed: int = 0,
    batch_size: int = 1000,
) -> CorruptionTable:
    """Corrupt images in every way and at every severity, predict them, and score the predictions.

    The same seed gives every model the same corrupted images. Accuracy: higher is better; NLL and ECE: lower is.

    Args:
        predict: Images as the corruptions give them -> predictions; scaling belongs in here, after the corruption.
        images: Clean images, rows first.
        targets: The right labels.
        corruptions: Functions by name.
        severities: Which severities to try.
        seed: Each corruption and severity has a generator of its own, derived from it by name.
        batch_size: Images corrupted and predicted at a time.
    """
    require(len(corruptions) > 0 and len(severities) > 0, "at least one corruption and one severity are needed")
    require(batch_size >= 1, f"batch_size is at least one image, got {batch_size}")
    if not len(images):
        raise DataError("there are no images to corrupt; at least one is needed")
    table = CorruptionTable(tuple(severities), {}, {}, {})
    batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]

    def predict_corrupted(name: str, severity: int) -> ClassPredictive:
        generator = np.random.default_rng(seeds.child(seed, "corruption", name, severity))
        return ClassPredictive.concat([predict(corruptions[name](batch, severity, generator)) for batch in batches])

    for name in corruptions:
        predictions = [predict_corrupted(name, severity) for severity in severities]
        table.accuracy[name] = [accuracy(prediction, targets) for prediction in predictions]
        table.nll[name] = [nll(prediction, targets) for prediction in predictions]
        table.ece[name] = [expected_calibration_error(prediction, targets) for prediction in predictions]
    return table


def published_corruption_table(
    predict: Callable[[Images], ClassPredictive],
    parts: Iterable[tuple[str, int, Any, Any]],
    batch_size: int = 1000,
) -> CorruptionTable:
    """Score predictions of images that were corrupted by others, such as CIFAR-10-C and ImageNet-C.

    Args:
        predict: Images as the parts have them -> predictions.
        parts: Corruption, severity, images and targets of each, as `bayesemble.data.image_sets` reads them: all
            severities of a corruption in a row, and the same of each.
        batch_size: Images read and predicted at a time.
    """
    require(batch_size >= 1, f"batch_size is at least one image, got {batch_size}")
    seen: dict[str, list[int]] = {}
    table = CorruptionTable((), {}, {}, {})
    for name, severity, images, targets in parts:
        if not len(images) or len(images) != len(targets):
            raise DataError(f"{name}, severity {severity}, has {len(images)} images and {len(targets)} targets")
        starts = range(0, len(images), batch_size)
        found = ClassPredictive.concat([predict(images[start : start + batch_size]) for start in starts])
        seen.setdefault(name, []).append(severity)
        for score, values in ((accuracy, table.accuracy), (nll, table.nll), (expected_calibration_error, table.ece)):
            values.setdefault(name, []).append(score(found, targets))
    require(len(seen) > 0, "at least one corruption and one severity are needed")
    severities = next(iter(seen.values()))
    for name, own in seen.items():
        if own != severities:
            raise DataError(f"{name} has the severities {own}, {next(iter(seen))} has {severities}; all need the same")
    return replace(table, severities=tuple(severities))


def corruption_error(errors: Errors, baseline_errors: Errors) -> dict[str, float]:
    """Error of each corruption as per cent of a baseline's error (CE). Lower is better, 100 is the baseline.

    Dividing makes easy and hard corruptions count alike. A baseline that is almost never wrong makes it explode.

    CE_c = 100 * sum_s E_sc / sum_s E_sc^baseline
    """
    _check_alike(errors, baseline_errors)
    return {c: _per_cent(sum(errors[c]), sum(baseline_errors[c]), c, "makes no error") for c in errors}


def relative_corruption_error(
    errors: Errors, clean_error: float, baseline_errors: Errors, baseline_clean_error: float
) -> dict[str, float]:
    """What each corruption adds to the clean error, as per cent of what it adds to a baseline's. Lower is better.

    It looks at the loss alone: a model that is bad on clean images and hardly worse on corrupted ones does well.
    Each model is compared with its own clean error. A baseline that hardly loses anything makes it explode, and one
    that loses nothing leaves it undefined.

    100 * sum_s (E_sc - E_clean) / sum_s (E_sc^baseline - E_clean^baseline)
    """
    _check_alike(errors, baseline_errors)
    clean, baseline_clean = _checked_error(clean_error), _checked_error(baseline_clean_error)
    own = {c: sum(error - clean for error in values) for c, values in errors.items()}
    base = {c: sum(error - baseline_clean for error in values) for c, values in baseline_errors.items()}
    return {c: _per_cent(own[c], base[c], c, "is no worse than on clean images") for c in errors}


def mean_corruption_error(errors: Errors, baseline_errors: Errors) -> float:
    """Mean of `corruption_error` over corruptions, in per cent (mCE). Lower is better; the baseline itself has 100.

    It depends on the baseline and on the set of corruptions: compare only numbers that share both.

    mCE = mean_c 100 * sum_s E_sc / sum_s E_sc^baseline
    """
    return fmean(corruption_error(errors, baseline_errors).values())


def relative_mean_corruption_error(
    errors: Errors, clean_error: float, baseline_errors: Errors, baseline_clean_error: float
) -> float:
    """Mean of `relative_corruption_error` over corruptions, in per cent. Lower is better; the baseline itself has 100.

    The denominator has the baseline's own clean error, as first defined; some papers mix in the model's.

    mean_c 100 * sum_s (E_sc - E_clean) / sum_s (E_sc^baseline - E_clean^baseline)
    """
    return fmean(relative_corruption_error(errors, clean_error, baseline_errors, baseline_clean_error).values())


def _check_alike(errors: Errors, baseline_errors: Errors) -> None:
    """Refuse tables that are empty, differ in corruptions or severities, or hold what is no share."""
    if not errors or set(errors) != set(baseline_errors):
        listed, expected = (", ".join(sorted(table)) or "none" for table in (errors, baseline_errors))
        raise DataError(f"errors and baseline errors must be of the same corruptions, got {listed} and {expected}")
    for name, values in errors.items():
        counts = len(values), len(baseline_errors[name])
        if counts[0] != counts[1] or not counts[0]:
            raise DataError(f"{name} has errors for {counts[0]} severities, its baseline for {counts[1]}")
        for value in (*values, *baseline_errors[name]):
            _checked_error(value)


def _checked_error(error: float) -> float:
    if not 0 <= error <= 1:
        raise DataError(f"errors are shares of wrong rows from 0 to 1, got {error}; divide per cent by 100")
    return float(error)


def _per_cent(part: float, whole: float, corruption: str, reason: str) -> float:
    if whole <= ROUNDING:
        raise DataError(
            f"under {corruption} the baseline {reason}, so nothing can be measured against it; "
            "leave this corruption out, or take more test rows, higher severities or a weaker baseline"
        )
    return 100 * part / whole
