"""Calibration on CIFAR-10 of implicit ensembles: a plain network, dropout, EMP and ECMP, by the number of draws.

    python benchmarks/calibration.py --folder DATA
    python benchmarks/calibration.py --folder DATA --rows 1000 --epochs 2 --seeds 1 --test-rows 500     # a trial
    python benchmarks/calibration.py --folder DATA --shrink 2 --epochs 15 --draws 1,5,20       # 16 x 16 pixels

DATA holds `cifar10/*.npz`. All methods have the same network (a residual network of 8 layers with batch norm), prior
(that of weight decay 1e-4 on the mean loss: N(0, 1) for 10,000 images), epochs, Adam with cosine decay, and batches of
128. Images are not augmented, so that the plain network becomes too sure of itself. EMP and ECMP have five components
of the norm layers and of the output layer. A prediction has 200 draws, of which smaller numbers take the first.
ECMP single has the prior pull components as strongly as shared weights. Under "own", the same trained network is scored
with batch-norm statistics of each draw (`statistics="own"`).
ECE and MCE have 20 bins of equal width, of which those with at most 5 images are left out. One line per run goes to
the output file as it is done; a run that is there already is not repeated. Means and standard errors over seeds are
printed at the end.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from images import LabelledImages, load_images
from rich.console import Console
from rich.table import Table
from torch import Tensor

import bayesemble as be
from bayesemble import metrics
from bayesemble.core.types import Batch, Clock
from bayesemble.models import resnet
from bayesemble.predictive import ClassPredictive

SCORES = ("accuracy", "nll", "ece", "mce", "confidence", "mutual_information")
BINNING = {"bins": 20, "min_count": 6}


def variants() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Names, methods and their settings; what all have in common is added in `main`."""
    yield "plain", be.DeepEnsemble, {}
    for rate in (0.005, 0.05):
        yield f"dropout {rate}", be.Dropout, {"rate": rate, "select": "not norm"}
    for kind in (be.EMP, be.ECMP):
        yield kind.__name__, kind, {"components": 5, "select": "norm+output"}
    yield "ECMP single", be.ECMP, {"components": 5, "select": "norm+output", "kl": "single"}


def load(arguments: argparse.Namespace) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images `(image, channel, height, width)`, standardised by the channels of the training images, and labels."""
    train, test = load_images(arguments.folder, "cifar10")
    train, test = train.first(arguments.rows), test.first(arguments.test_rows)
    shift, scale = train.images.mean(axis=(0, 1, 2)), train.images.std(axis=(0, 1, 2))

    def prepare(part: LabelledImages) -> tuple[Tensor, Tensor]:
        images = ((part.images - shift) / scale).transpose(0, 3, 1, 2)
        pixels = torch.as_tensor(np.ascontiguousarray(images, dtype=np.float32))
        return torch.nn.functional.avg_pool2d(pixels, arguments.shrink), torch.as_tensor(part.labels)

    return prepare(train), prepare(test)


def run(method: Any, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train one method and score it with each number of draws."""
    (x, y), (x_test, y_test) = load(arguments)
    prior = be.NormalPrior.from_weight_decay(arguments.weight_decay, len(y)) if arguments.weight_decay else None
    start = time.perf_counter()
    ensemble = be.fit(
        be.Task(lambda: resnet(8, 10), be.Categorical(), prior),
        method,
        (x, y),
        epochs=arguments.epochs,
        batch_size=128,
        seed=seed,
        executor=be.Loop(channels_last=True),
        progress=False,
    )
    trained = time.perf_counter()
    num_draws = None if isinstance(method, be.DeepEnsemble) else max(arguments.draws)
    # Small batches: the activations of large ones are fresh memory for every draw, which takes longer than the sums.
    probs = ensemble.predict(x_test, num_draws=num_draws, batch_size=128, seed=seed).member_probs
    numbers = [num for num in arguments.draws if num <= len(probs)]
    own = with_own_statistics(ensemble, x, y, max(numbers)) if isinstance(method, be.Patched) else None
    own_probs = None if own is None else own.predict(x_test, batch_size=128, seed=seed).member_probs
    return {
        "own": own_probs is not None
        and {num: scores(be.Predictive.from_probs(own_probs[:num]), y_test) for num in numbers},
        "epochs": arguments.epochs,
        "rows": len(y),
        "test_rows": len(y_test),
        "learning_rate": arguments.learning_rate,
        "train_loss": ensemble.history[-1]["loss"][0],
        "seconds": trained - start,
        "seconds_to_predict": time.perf_counter() - trained,
        "draws": {num: scores(be.Predictive.from_probs(probs[:num]), y_test) for num in numbers},
    }


def with_own_statistics(ensemble: be.Ensemble, x: Tensor, y: Tensor, draws: int) -> be.Ensemble:
    """The same trained network with batch-norm statistics measured for each of its draws."""
    method = replace(ensemble.method, statistics="own", draws=draws)
    context = be.Context(ensemble.task, ensemble.executor, Clock(0, 1, 0))
    batches = [Batch(*rows) for rows in zip(x.split(500), y.split(500), strict=True)]
    return replace(ensemble, method=method, state=method.finish(ensemble.state, lambda: iter(batches), context))


def scores(predictive: ClassPredictive, targets: Tensor) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(predictive, targets),
        "nll": metrics.nll(predictive, targets),
        "ece": metrics.expected_calibration_error(predictive, targets, **BINNING),
        "mce": metrics.maximum_calibration_error(predictive, targets, **BINNING),
        "confidence": float(predictive.probs.amax(-1).mean()),
        "mutual_information": float(predictive.mutual_information.mean()),
    }


def summarise(rows: list[dict[str, Any]]) -> Table:
    table = Table("method", "draws", *SCORES)
    for name in dict.fromkeys(row["method"] for row in rows):
        runs = [row["draws"] for row in rows if row["method"] == name]
        own = [row["own"] for row in rows if row["method"] == name and row.get("own")]
        for num in own[0] if own else ():
            cells = [results.mean_and_error([found[num][score] for found in own], 4) for score in SCORES]
            table.add_row(f"{name}, own", num, *cells)
        for num in max(runs, key=len):
            cells = []
            for score in SCORES:
                values = [found[num][score] for found in runs if num in found]
                cells.append(results.mean_and_error(values, 4))
            table.add_row(name, num, *cells)
        table.add_section()
    return table


def counts(text: str) -> list[int]:
    return sorted(int(part) for part in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, help="training images; else all")
    parser.add_argument("--test-rows", type=int, help="test images; else all")
    parser.add_argument("--shrink", type=int, default=1, help="average this many pixels to one in both directions")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--draws", type=counts, default=[1, 20, 100, 200], help="numbers of draws, by commas, with 1")
    parser.add_argument("--weight-decay", type=float, default=1e-4, help="what the prior stands for; 0 is no prior")
    parser.add_argument("--methods", default=",".join(name for name, *_ in variants()), help="some of these")
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    arguments = parser.parse_args()
    rows = results.read(arguments.out)
    for seed in range(arguments.seeds):
        for name, kind, settings in variants():
            known = any(row["method"] == name and row["seed"] == seed for row in rows)
            if known or name not in arguments.methods.split(","):
                continue
            method = kind(num_members=1, learning_rate=arguments.learning_rate, schedule="cosine", **settings)
            row = {"method": name, "seed": seed, **run(method, arguments, seed)}
            rows.append(results.append(arguments.out, row))  # as it is read back: numbers of draws are texts there
    Console(width=160).print(summarise(rows))


if __name__ == "__main__":
    main()
