r"""How much members lose on corrupted images: fifteen common corruptions, one table.

    python benchmarks/corruptions.py --data digits
    python benchmarks/corruptions.py --data fashion-mnist --rows 10000 --test-rows 2000
    python benchmarks/corruptions.py --data cifar10 --rows 2000 --test-rows 500 --epochs 2 --members 3 \
        --severities 1,3,5

Every method is trained on clean images and tested on clean and corrupted ones, the same for all. mCE and relative mCE
are per cent of what `map`, the single network, loses: below 100 is more robust. Digits come with scikit-learn; the
other sets are read from a folder with `fashion-mnist/*-ubyte.gz` and `cifar10/*.npz`.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from images import LabelledImages, load_images
from rich.console import Console
from rich.table import Table
from torch import nn

import bayesemble as be
from bayesemble.apps.compare.request import parse_methods
from bayesemble.core import seeds
from bayesemble.core.errors import BayesembleError, DataError, SettingError
from bayesemble.data.catalogue import DATASETS, DIGIT_PIXEL_RANGE
from bayesemble.data.corruptions import CORRUPTIONS
from bayesemble.methods import Method
from bayesemble.metrics import accuracy, expected_calibration_error, nll
from bayesemble.metrics.corruption import (
    CorruptionTable,
    corruption_table,
    mean_corruption_error,
    relative_mean_corruption_error,
)
from bayesemble.models import mlp, resnet
from bayesemble.predictive import ClassPredictive

BASELINE = "map"
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Case:
    """A data set with the small network and the number of epochs that suit it."""

    load: Callable[[Path], tuple[LabelledImages, LabelledImages]]
    make: Callable[[], nn.Module]
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Scores:
    """What one method reached on clean and on corrupted images."""

    label: str
    clean_error: float
    clean_nll: float
    clean_ece: float
    table: CorruptionTable


def load_digits(folder: Path) -> tuple[LabelledImages, LabelledImages]:
    parts = DATASETS["digits"].load(np.random.default_rng(seeds.child(0, "data", "digits")))
    largest = DIGIT_PIXEL_RANGE[1]

    def images(rows: np.ndarray, labels: np.ndarray) -> LabelledImages:
        return LabelledImages((rows / largest).reshape(-1, 8, 8, 1).astype(np.float32), labels.astype(np.int64))

    return images(parts.x_train, parts.y_train), images(parts.x_test, parts.y_test)


CASES = {
    "digits": Case(load_digits, lambda: mlp(64, [64, 64], 10), epochs=20, batch_size=64),
    "fashion-mnist": Case(
        lambda folder: load_images(folder, "fashion-mnist"), lambda: mlp(784, [100, 100], 10), epochs=10, batch_size=128
    ),
    "cifar10": Case(lambda folder: load_images(folder, "cifar10"), lambda: resnet(8, 10), epochs=10, batch_size=64),
}


def preparation(train: LabelledImages) -> Callable[[np.ndarray], np.ndarray]:
    """Turn images into what networks take: standardised by the channels of the training rows, channels first."""
    shift, scale = train.images.mean(axis=(0, 1, 2)), train.images.std(axis=(0, 1, 2))

    def prepare(images: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(((images - shift) / scale).transpose(0, 3, 1, 2), dtype=np.float32)

    return prepare


def evaluate(
    label: str,
    method: Method,
    case: Case,
    train: LabelledImages,
    test: LabelledImages,
    epochs: int,
    levels: list[int],
) -> Scores:
    """Train one method and score it on clean and corrupted test images."""
    prepare = preparation(train)
    ensemble = be.fit(
        be.Task(case.make, be.Categorical(), be.NormalPrior(1.0)),
        method,
        (prepare(train.images), train.labels),
        epochs=epochs,
        batch_size=case.batch_size,
        progress=False,
    )

    def predict(images: np.ndarray) -> ClassPredictive:
        return ensemble.predict(prepare(images), keep_members=False)

    clean = predict(test.images)
    return Scores(
        label,
        1 - accuracy(clean, test.labels),
        nll(clean, test.labels),
        expected_calibration_error(clean, test.labels),
        corruption_table(predict, test.images, test.labels, CORRUPTIONS, levels),
    )


def show(results: list[Scores]) -> Table:
    """One row for each corruption, then what they come to."""
    baseline = next(scores for scores in results if scores.label == BASELINE)
    table = Table("error, %")
    for scores in results:
        table.add_column(scores.label, justify="right")
    for name in CORRUPTIONS:
        table.add_row(name, *[f"{100 * fmean(scores.table.errors[name]):.1f}" for scores in results])
    table.add_section()
    table.add_row("clean", *[f"{100 * scores.clean_error:.1f}" for scores in results])
    table.add_row("mCE", *[f"{_mean_error(scores, baseline):.1f}" for scores in results])
    table.add_row("relative mCE", *[f"{_relative_error(scores, baseline):.1f}" for scores in results])
    table.add_section()
    table.add_row("NLL, clean", *[f"{scores.clean_nll:.3f}" for scores in results])
    table.add_row("NLL, corrupted", *[f"{_mean(scores.table.nll):.3f}" for scores in results])
    table.add_row("ECE, clean", *[f"{scores.clean_ece:.3f}" for scores in results])
    table.add_row("ECE, corrupted", *[f"{_mean(scores.table.ece):.3f}" for scores in results])
    return table


def _mean(values: dict[str, list[float]]) -> float:
    return fmean(fmean(row) for row in values.values())


def _mean_error(scores: Scores, baseline: Scores) -> float:
    return mean_corruption_error(scores.table.errors, baseline.table.errors)


def _relative_error(scores: Scores, baseline: Scores) -> float:
    """Relative mCE over the corruptions that cost the baseline anything; NaN if none does."""
    names = harmful(baseline)
    own, base = ({name: one.table.errors[name] for name in names} for one in (scores, baseline))
    if not names:
        return float("nan")
    return relative_mean_corruption_error(own, scores.clean_error, base, baseline.clean_error)


def harmful(baseline: Scores) -> list[str]:
    """The corruptions under which the baseline errs more than on clean images."""
    return [name for name, errors in baseline.table.errors.items() if fmean(errors) > baseline.clean_error + 1e-9]


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 was needed, got {text!r}")
    return int(text)


def severities(text: str) -> list[int]:
    if not set(text.split(",")) <= set("12345"):
        raise argparse.ArgumentTypeError(f"severities are numbers from 1 to 5 with commas between, got {text!r}")
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=CASES, default="digits")
    parser.add_argument("--folder", type=Path, help="where the data is; else BAYESEMBLE_DATA, else ../shared/data")
    parser.add_argument("--members", type=count, default=5, help="members of each ensemble")
    parser.add_argument("--epochs", type=count, help="passes over the training rows; else what suits the data")
    parser.add_argument("--rows", type=count, help="training rows; else all")
    parser.add_argument("--test-rows", type=count, help="test rows; else all")
    parser.add_argument("--methods", default="map,deep_ensemble", help="by commas; map, the baseline, must be there")
    parser.add_argument("--severities", type=severities, default=[1, 2, 3, 4, 5], help="by commas, from 1 to 5")
    return parser.parse_args()


def load(name: str, folder: Path | None) -> tuple[LabelledImages, LabelledImages]:
    place = folder or Path(os.environ.get("BAYESEMBLE_DATA") or DEFAULT_FOLDER)
    if name != "digits" and not (place / name).is_dir():
        raise DataError(
            f"there is no folder {place / name} with the images of {name}; name the folder above it with --folder or "
            "the variable BAYESEMBLE_DATA, or take --data digits, which needs none"
        )
    return CASES[name].load(place)


def run(wish: argparse.Namespace, console: Console) -> None:
    methods = parse_methods(wish.methods, wish.members)
    if BASELINE not in methods:
        raise SettingError(f"errors are measured against {BASELINE}; add it to --methods, got {wish.methods}")
    train, test = load(wish.data, wish.folder)
    train, test = train.first(wish.rows), test.first(wish.test_rows)
    case, results = CASES[wish.data], []
    epochs = wish.epochs or case.epochs
    for label, method in methods.items():
        start = time.perf_counter()
        results.append(evaluate(label, method, case, train, test, epochs, wish.severities))
        console.print(f"{label}: {time.perf_counter() - start:.0f} s", highlight=False)
    baseline = next(scores for scores in results if scores.label == BASELINE)
    harmless = [name for name in CORRUPTIONS if name not in harmful(baseline)]
    if harmless:
        console.print(f"relative mCE leaves out what costs {BASELINE} nothing: {', '.join(harmless)}", highlight=False)
    console.print(
        f"{wish.data}: {len(train)} training and {len(test)} test rows, {epochs} epochs, {wish.members} members, "
        f"mean over severities {', '.join(map(str, wish.severities))}",
        highlight=False,
    )
    console.print(show(results))


def main() -> None:
    console = Console(width=120)
    try:
        run(arguments(), console)
    except BayesembleError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
