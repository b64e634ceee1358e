"""Tables: the default ensemble against scikit-learn's models and TabM, none of them tuned.

    python benchmarks/tables.py --folder DATA
    python benchmarks/tables.py --folder DATA --sets diabetes,wine --models ensemble,"random forest"    # a trial

DATA holds `uci/*.npz`, of which the first five of the standard 90:10 splits are taken, and of naval the first target.
The other sets come with scikit-learn and are split 80:20, with the classes in their shares. Our settings were chosen on
other splits of the same rows (`--first 10 --splits 7`); protein, which has only five, was not looked at for it.

NLL needs a distribution, so each competitor is helped to one. Models of the mean get normal noise, the same for all
rows, whose standard deviation is that of their errors when each fifth of the training rows is predicted from the others
(forest: each row from the trees that did not see it; TabM: of its errors on the rows that stop its training). The
forest has 300 trees, whose votes get one more for every class, or a single vote against all others would cost
infinitely much. Gradient boosting has its defaults. The network (MLP) has standardised inputs and targets and up to
1,000 epochs, else its defaults. The Gaussian process has an RBF kernel with a scale for each column plus noise (for
classes one scale, without noise), and is given at most 1,000 rows. TabM has piecewise linear embeddings, its own
defaults but 2 blocks of 128 units and 16 members, which two processor cores can train, AdamW at a rate of 0.002,
batches of 256 rows, patience of 16 epochs and at most 5,000 steps; it is had by
`pip install --no-deps tabm rtdl_num_embeddings`. Seconds are processor time of training once, and predicting.

One line per run goes to the output file as it is done; a run that is there already is not repeated. Mean ranks are
over sets, by the mean over splits.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from rich.console import Console
from rich.table import Table
from sklearn import datasets
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import KFold, cross_val_predict, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional
from uci import FILES

import bayesemble as be
from bayesemble.estimators import EnsembleClassifier, EnsembleRegressor
from bayesemble.metrics import summarise

CLASSES = {
    "breast cancer": datasets.load_breast_cancer,
    "wine (classes)": datasets.load_wine,
    "digits": datasets.load_digits,
}
SETS = (*CLASSES, "diabetes", *FILES)
TREES = 300
GAUSSIAN_PROCESS_ROWS = 1000
TABM_STEPS = 5000


@dataclass(frozen=True)
class Split:
    """Training and test rows; labels 0, 1, ... or one real target."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any

    @property
    def classes(self) -> int:
        """Their number; 0 of a real target."""
        return int(self.y.max()) + 1 if self.y.dtype.kind == "i" else 0


def load(folder: Path, name: str, number: int) -> Split:
    if name in FILES:
        with np.load(folder / "uci" / f"{FILES[name]}.npz") as archive:
            data, train, test = (archive[key] for key in ("data", f"train_{number}", f"test_{number}"))
        return Split(data[train, :-1], data[train, -1], data[test, :-1], data[test, -1])
    labelled = name in CLASSES
    x, y = (CLASSES[name] if labelled else datasets.load_diabetes)(return_X_y=True)
    y = y.astype(np.int64) if labelled else y
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=number, stratify=y if labelled else None)
    return Split(x, y, x_test, y_test)


# --- models: from a split to a predictive distribution, and the seconds of training and of predicting ---


def ensemble(split: Split, seed: int) -> tuple[be.Predictive, float]:
    start = time.process_time()
    kind = EnsembleClassifier if split.classes else EnsembleRegressor
    model = kind(prior_std=1.0, random_state=seed).fit(split.x, split.y)
    return model.predictive(split.x_test), time.process_time() - start


def scikit(classifier: Any, regressor: Any) -> Callable[[Split, int], tuple[be.Predictive, float]]:
    """A model of classes, and one of the mean."""

    def run(split: Split, seed: int) -> tuple[be.Predictive, float]:
        model = clone(classifier if split.classes else regressor)
        names = {name: seed for name in model.get_params() if name.endswith("random_state")}
        model.set_params(**names)
        start = time.process_time()
        model.fit(split.x, split.y)
        found = model.predict_proba(split.x_test) if split.classes else model.predict(split.x_test)
        seconds = time.process_time() - start
        if not split.classes:
            if isinstance(model, RandomForestRegressor):
                unseen = model.oob_prediction_
            else:
                unseen = cross_val_predict(clone(model), split.x, split.y, cv=KFold(5, shuffle=True, random_state=seed))
            return be.Predictive.from_normal(found, np.sqrt(np.mean((split.y - unseen) ** 2))), seconds
        if isinstance(model, RandomForestClassifier):
            found = (TREES * found + 1) / (TREES + split.classes)
        return be.Predictive.from_probs(found), seconds

    return run


def gaussian_process(split: Split, seed: int) -> tuple[be.Predictive, float]:
    rows = np.random.default_rng(seed).permutation(len(split.y))[:GAUSSIAN_PROCESS_ROWS]
    scaler = StandardScaler().fit(split.x)
    x, x_test, y = scaler.transform(split.x)[rows], scaler.transform(split.x_test), split.y[rows]
    width = np.sqrt(x.shape[1])
    start = time.process_time()
    if split.classes:
        model = GaussianProcessClassifier(ConstantKernel() * RBF(width, (1e-2, 1e3)), random_state=seed).fit(x, y)
        return be.Predictive.from_probs(model.predict_proba(x_test)), time.process_time() - start
    kernel = ConstantKernel(1, (1e-3, 1e4)) * RBF(np.full(x.shape[1], width), (1e-2, 1e4)) + WhiteKernel(
        0.1, (1e-8, 10)
    )
    regressor = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(x, y)
    mean, std = regressor.predict(x_test, return_std=True)
    return be.Predictive.from_normal(mean, std), time.process_time() - start


def tabm(split: Split, seed: int) -> tuple[be.Predictive, float]:
    """A fifth of the rows stops training, by the loss of the averaged prediction, and gives the noise."""
    import rtdl_num_embeddings
    from tabm import TabM

    torch.manual_seed(seed)
    start = time.process_time()
    scaler = StandardScaler().fit(split.x)
    x, x_test = (torch.as_tensor(scaler.transform(part), dtype=torch.float32) for part in (split.x, split.x_test))
    shift, scale = (0.0, 1.0) if split.classes else (split.y.mean(), split.y.std())
    y = torch.as_tensor(split.y) if split.classes else torch.as_tensor((split.y - shift) / scale, dtype=torch.float32)
    rows = torch.randperm(len(y))
    held, kept = rows[: len(y) // 5], rows[len(y) // 5 :]
    varied = (x[kept] != x[kept][0]).any(0)  # its bins need columns with at least two values
    x, x_test = x[:, varied], x_test[:, varied]
    bins = rtdl_num_embeddings.compute_bins(x[kept], n_bins=min(48, len(kept) // 4))
    embedding = rtdl_num_embeddings.PiecewiseLinearEmbeddings(bins, 16, activation=False, version="B")
    sizes = {"d_out": split.classes or 1, "k": 16, "n_blocks": 2, "d_block": 128}
    network = TabM.make(n_num_features=x.shape[1], num_embeddings=embedding, **sizes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=3e-4)

    def outputs(inputs: Tensor) -> Tensor:
        """Class probabilities `(row, class)` or means `(row,)`, averaged over members."""
        with torch.no_grad():
            found = torch.cat([network(part) for part in inputs.split(1000)])
        return found.softmax(-1).mean(1) if split.classes else found.squeeze(-1).mean(1)

    def held_out_loss() -> float:
        found = outputs(x[held])
        loss = functional.nll_loss(found.log(), y[held]) if split.classes else (found - y[held]).square().mean()
        return float(loss)

    best, patience, state, steps = float("inf"), 16, network.state_dict(), 0
    while patience and steps < TABM_STEPS:
        network.train()
        for batch in kept[torch.randperm(len(kept))].split(256):
            found = network(x[batch]).flatten(0, 1)
            wanted = y[batch].repeat_interleave(sizes["k"], 0)
            loss = (
                functional.cross_entropy(found, wanted)
                if split.classes
                else (found.squeeze(-1) - wanted).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        network.eval()
        patience -= 1
        if (score := held_out_loss()) < best:
            best, patience, state = score, 16, {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    found, seconds = outputs(x_test), time.process_time() - start
    if split.classes:
        return be.Predictive.from_probs(found.double()), seconds
    return be.Predictive.from_normal(shift + scale * found.double(), scale * best**0.5), seconds


MODELS: dict[str, Callable[[Split, int], tuple[be.Predictive, float]]] = {
    "ensemble": ensemble,
    "random forest": scikit(RandomForestClassifier(TREES), RandomForestRegressor(TREES, oob_score=True)),
    "boosting": scikit(HistGradientBoostingClassifier(), HistGradientBoostingRegressor()),
    "gaussian process": gaussian_process,
    "mlp": scikit(
        make_pipeline(StandardScaler(), MLPClassifier(max_iter=1000)),
        TransformedTargetRegressor(
            make_pipeline(StandardScaler(), MLPRegressor(max_iter=1000)),
            transformer=StandardScaler(),
        ),
    ),
    "tabm": tabm,
}


# --- results ---


def run(name: str, model: str, number: int, folder: Path) -> dict[str, Any]:
    split = load(folder, name, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message=".*just two bin edges")
        predictive, seconds = MODELS[model](split, number)
    found = summarise(predictive, torch.as_tensor(split.y_test))
    names = ("nll", "accuracy", "ece") if split.classes else ("nll", "rmse", "coverage_90")
    return {"seconds": seconds, **{score: found[score] for score in names}}


def means(rows: list[dict[str, Any]], name: str, model: str) -> dict[str, float] | None:
    """Means over splits, with `error`, which orders models: RMSE, or one minus accuracy."""
    own = [row for row in rows if row["set"] == name and row["model"] == model]
    if not own:
        return None
    found = {key: statistics.fmean(row[key] for row in own) for key in own[0] if key not in ("set", "model", "split")}
    return found | {"error": found["rmse"] if "rmse" in found else 1 - found["accuracy"]}


def ranks(rows: list[dict[str, Any]], score: str, sets: list[str], models: list[str]) -> dict[str, float]:
    """Mean rank of each model over the sets, from 1; equal ones share the mean of their places."""
    places: dict[str, list[float]] = {model: [] for model in models}
    for name in sets:
        values = {model: found[score] for model in models if (found := means(rows, name, model))}
        for model, value in values.items():
            below = sum(other < value for other in values.values())
            same = sum(other == value for other in values.values())
            places[model].append(below + (same + 1) / 2)
    return {model: statistics.fmean(found) for model, found in places.items() if found}


def summary(rows: list[dict[str, Any]]) -> list[Table]:
    sets = [name for name in SETS if any(row["set"] == name for row in rows)]
    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    by_set = Table("set", "model", "NLL", "RMSE / accuracy", "90 % covers / ECE", "seconds")
    for name in sets:
        for model in models:
            if found := means(rows, name, model):
                error, uncertainty = ("rmse", "coverage_90") if "rmse" in found else ("accuracy", "ece")
                cells = [f"{found[key]:.4g}" for key in ("nll", error, uncertainty)]
                by_set.add_row(name, model, *cells, f"{found['seconds']:.1f}")
        by_set.add_section()
    by_rank = Table("model", "NLL", "RMSE / accuracy", "seconds", title=f"mean rank over {len(sets)} sets")
    found_ranks = [ranks(rows, score, sets, models) for score in ("nll", "error", "seconds")]
    for model in sorted(models, key=lambda model: found_ranks[0][model]):
        by_rank.add_row(model, *(f"{found[model]:.2f}" for found in found_ranks))
    return [by_set, by_rank]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS), help=f"of {', '.join(SETS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    arguments = parser.parse_args()
    rows = results.read(arguments.out)
    for name in arguments.sets.split(","):
        for model in arguments.models.split(","):
            for number in range(arguments.first, arguments.first + arguments.splits):
                key = {"set": name, "model": model, "split": number}
                if not any(key.items() <= row.items() for row in rows):
                    rows.append(results.append(arguments.out, key | run(name, model, number, arguments.folder)))
    for table in summary(rows):
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
