"""Whether repulsion harms: eleven problems, repulsive ensembles against a deep ensemble whose prior is tuned.

    python benchmarks/never_harms.py --folder DATA                             # all of it: some hours on two cores
    python benchmarks/never_harms.py --folder DATA --problems digits,clinc     # some problems
    python benchmarks/never_harms.py --folder DATA --problems digits,yacht --first-seed 3 --out fresh.jsonl
    python benchmarks/never_harms.py --write docs/repulsion.md                 # the table, from the runs that are there

DATA holds `uci/`, `fashion-mnist/`, `mnist/`, `cifar10/`, `tiny-imagenet-32/` and `clinc150/`. A tenth of the training
rows is held out; by it, the deep ensemble takes the best of five priors on the first seed (a prior is what weight decay
is). All methods train on the same other rows, with the same network, members, steps and Adam with cosine decay. Each
seed of a UCI set has an official split. Foreign rows of digits are those of two classes that are left out of training.
"Strength 1" is repulsion that samples the posterior of a prior N(0, 1), "as published" is uncalibrated under the same.

One line per run goes to the output file as it is done; a run that is there already is not repeated. Problems can be
shared out among processes that write to the same file. `--no-rival` leaves out the deep ensemble, and `--write` keeps
those figures of the page of which the file has no run. `FRESH` names problems, and `--first-seed` gives seeds and
splits, by which nothing of the default was chosen; their runs need a file of their own.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from images import load_images
from rich.console import Console
from rich.table import Table
from sklearn import datasets
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from uci import FILES

import bayesemble as be
from bayesemble import metrics
from bayesemble.data import toy
from bayesemble.models import mlp, resnet

Rows = tuple[Tensor, Tensor]
Found = dict[str, tuple[str, dict[str, tuple[float, ...]]]]
"""Of each problem the prior that was chosen, and the scores of each method."""
PRIORS: dict[str, be.NormalPrior | None] = {
    "vague": be.VaguePrior(),
    "normal 1": be.NormalPrior(1.0),
    "normal 0.3": be.NormalPrior(0.3),
    "fan-in 3": be.NormalPrior(3.0, "fan_in"),
    "none": None,
}
TUNED = "deep ensemble"
METHODS: dict[str, tuple[type[be.Method], dict[str, Any], str]] = {  # class, settings, prior
    "default": (be.Repulsive, {}, "vague"),
    "strength 1": (be.Repulsive, {"repulsion": 1.0}, "normal 1"),
    "as published": (be.Repulsive, {"calibrate": False}, "normal 1"),
    "SVGD": (be.Stein, {}, "vague"),
    "function space": (be.Repulsive, {"space": "function"}, "vague"),
}
WORSE_NLL, WORSE_NLL_SHARE, WORSE_AUROC, BETTER_AUROC = 0.005, 0.01, 0.003, 0.01
DIGITS, ROUNDING = 3, 1e-9


@dataclass(frozen=True)
class Problem:
    """Rows, a network, and how it is trained."""

    load: Callable[[Path, int], "Split"]
    network: Callable[[int, int], nn.Module]
    """From the width of the rows and the number of outputs."""
    members: int
    epochs: int
    batch: int
    rate: float = 1e-3


@dataclass(frozen=True)
class Split:
    """Rows to train on, a tenth of them held out; test rows; foreign rows, if there are any. Classes, or 0."""

    train: Rows
    held_out: Rows
    test: Rows
    foreign: Tensor | None
    classes: int


def split(train: Rows, test: Rows, foreign: Tensor | None, classes: int, seed: int) -> Split:
    x, y = train
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held, rest = order[: len(x) // 10], order[len(x) // 10 :]
    return Split((x[rest], y[rest]), (x[held], y[held]), test, foreign, classes)


def digits(folder: Path, seed: int) -> Split:
    x, y = datasets.load_digits(return_X_y=True)
    x, y = torch.as_tensor(x, dtype=torch.float32) / 16, torch.as_tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(100 + seed))
    known = y < 8
    train, test = (part[known[part]] for part in (order[:1200], order[1200:]))
    return split((x[train], y[train]), (x[test], y[test]), x[~known], 8, seed)


def pictures(name: str, foreign: str, rows: int) -> Callable[[Path, int], Split]:
    def load(folder: Path, seed: int) -> Split:
        (train, test), (_, other) = load_images(folder, name), load_images(folder, foreign)
        flat = [torch.as_tensor(part.images).flatten(1) for part in (train, test, other)]
        labels = [torch.as_tensor(part.labels) for part in (train, test)]
        return split((flat[0][:rows], labels[0][:rows]), (flat[1], labels[1]), flat[2], 10, seed)

    return load


def cifar(folder: Path, seed: int) -> Split:
    train, test = load_images(folder, "cifar10")
    train = train.first(10_000)
    with np.load(folder / "tiny-imagenet-32" / "tiny_imagenet32_val3k.npz") as found:
        foreign = found["images"][~found["cifar10_overlap"][found["labels"]]].astype(np.float32) / 255
    mean, std = train.images.mean((0, 1, 2)), train.images.std((0, 1, 2))

    def ready(images: np.ndarray) -> Tensor:
        return torch.as_tensor((images - mean) / std).permute(0, 3, 1, 2).contiguous()

    rows = [(ready(part.images), torch.as_tensor(part.labels)) for part in (train, test)]
    return split(rows[0], rows[1], ready(foreign), 10, seed)


def clinc(folder: Path, seed: int) -> Split:
    with np.load(folder / "clinc150" / "minilm_features.npz") as archive:
        found = {name: archive[name] for name in ("train", "test", "oos_test", "y_train", "y_test")}
    x = {name: torch.as_tensor(found[name].astype(np.float32)) for name in ("train", "test", "oos_test")}
    mean, std = x["train"].mean(0), x["train"].std(0).clamp(min=1e-6)
    x = {name: (rows - mean) / std for name, rows in x.items()}
    y = {name: torch.as_tensor(found[f"y_{name}"].astype(np.int64)) for name in ("train", "test")}
    return split((x["train"], y["train"]), (x["test"], y["test"]), x["oos_test"], 150, seed)


def gaussians(folder: Path, seed: int) -> Split:
    generator = np.random.default_rng(seed)
    parts = [toy.five_gaussians(generator, num) for num in (40, 200)]
    train, test = ((torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)) for x, y in parts)
    foreign = torch.as_tensor(toy.five_gaussians_ood(generator), dtype=torch.float32)
    return split(train, test, foreign, 5, seed)


def uci(name: str) -> Callable[[Path, int], Split]:
    def load(folder: Path, seed: int) -> Split:
        with np.load(folder / "uci" / f"{FILES[name]}.npz") as found:
            data, train, test = (found[key] for key in ("data", f"train_{seed}", f"test_{seed}"))
        mean, std = data[train].mean(0), data[train].std(0)
        rows = torch.as_tensor((data - mean) / np.where(std == 0, 1, std), dtype=torch.float32)
        return split((rows[train, :-1], rows[train, -1]), (rows[test, :-1], rows[test, -1]), None, 0, seed)

    return load


def table(load_rows: Callable[..., Any]) -> Callable[[Path, int], Split]:
    def load(folder: Path, seed: int) -> Split:
        x, y = load_rows(return_X_y=True)
        parts = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=y)
        mean, std = parts[0].mean(0), parts[0].std(0)
        x, x_test = (torch.as_tensor((part - mean) / std, dtype=torch.float32) for part in parts[:2])
        y, y_test = (torch.as_tensor(part) for part in parts[2:])
        return split((x, y), (x_test, y_test), None, int(y.max()) + 1, seed)

    return load


def dense(*hidden: int) -> Callable[[int, int], nn.Module]:
    return lambda inputs, outputs: mlp(inputs, list(hidden), outputs)


PROBLEMS = {
    "digits": Problem(digits, dense(64, 64), 10, 60, 64),
    "fashion": Problem(pictures("fashion-mnist", "mnist", 20_000), dense(100, 100, 100), 10, 12, 128),
    "mnist": Problem(pictures("mnist", "fashion-mnist", 10_000), dense(200, 200), 5, 12, 128),
    "cifar": Problem(cifar, lambda _, outputs: resnet(8, outputs), 5, 8, 64),
    "clinc": Problem(clinc, dense(256), 5, 10, 128),
    "gaussians": Problem(gaussians, dense(10, 10), 10, 1500, 200, 0.01),
    "concrete": Problem(uci("concrete"), dense(50), 5, 200, 100, 3e-3),
    "energy": Problem(uci("energy"), dense(50), 5, 200, 100, 3e-3),
    "power": Problem(uci("power"), dense(50), 10, 40, 100, 3e-3),
    "breast cancer": Problem(table(datasets.load_breast_cancer), dense(64, 64), 10, 40, 32),
    "wine": Problem(table(datasets.load_wine), dense(64, 64), 5, 100, 32),
}
FRESH = {
    "boston": Problem(uci("boston"), dense(50), 5, 200, 100, 3e-3),
    "kin8nm": Problem(uci("kin8nm"), dense(50), 5, 40, 100, 3e-3),
    "wine quality": Problem(uci("wine"), dense(50), 10, 100, 100, 3e-3),
    "yacht": Problem(uci("yacht"), dense(50), 10, 200, 100, 3e-3),
}
"""Sets that were first looked at when the default stood."""


def fitted(problem: Problem, rows: Split, method: be.Method, prior: str, seed: int) -> tuple[be.Ensemble, float]:
    likelihood = be.Categorical() if rows.classes else be.HeteroscedasticGaussian()
    width, outputs = rows.train[0].shape[1], rows.classes or 2
    task = be.Task(lambda: problem.network(width, outputs), likelihood, PRIORS[prior])
    start = time.process_time()
    ensemble = be.fit(
        task, method, rows.train, epochs=problem.epochs, batch_size=problem.batch, seed=seed, progress=False
    )
    return ensemble, time.process_time() - start


def scores(ensemble: be.Ensemble, rows: Split) -> dict[str, float]:
    own, (_, y) = ensemble.predict(rows.test[0]), rows.test
    found = {"nll": metrics.nll(own, y)}
    if rows.classes:
        found |= {"accuracy": metrics.accuracy(own, y), "ece": metrics.expected_calibration_error(own, y)}
    else:
        found["rmse"] = metrics.rmse(own, y)
    if rows.foreign is not None:
        foreign = ensemble.predict(rows.foreign)
        found["auroc"] = metrics.ood_auroc(own, foreign, "entropy")
        found["auroc_mi"] = metrics.ood_auroc(own, foreign, "mutual_information")
    return found


def wanted(
    done: list[dict[str, Any]], name: str, seeds: range, methods: list[str], rival: bool
) -> Iterator[tuple[str, str, int]]:
    """Method, prior and seed of the runs that are left; later seeds of the deep ensemble need the first."""
    there = {(row["method"], row["prior"], row["seed"]) for row in done if row["problem"] == name}
    runs = [(TUNED, prior, seeds[0]) for prior in PRIORS] if rival else []
    runs += [(method, METHODS[method][2], seed) for seed in seeds for method in methods]
    yield from (run for run in runs if run not in there)
    if not rival:
        return
    best = tuned_prior(done, name)
    yield from ((TUNED, best, seed) for seed in seeds[1:] if (TUNED, best, seed) not in there)


def tuned_prior(done: list[dict[str, Any]], name: str) -> str:
    """By the held-out rows of the first seed, on which all priors are tried."""
    tried = [row for row in done if (row["problem"], row["method"]) == (name, TUNED)]
    first = [row for row in tried if row["seed"] == min(row["seed"] for row in tried)]
    return min(first, key=lambda row: row["held_out_nll"])["prior"]


def measure(arguments: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name in arguments.problems.split(","):
        problem = (PROBLEMS | FRESH)[name]
        for label, prior, seed in wanted(done, name, seeds, arguments.methods.split(","), arguments.rival):
            kind, settings, _ = METHODS.get(label, (be.DeepEnsemble, {}, ""))
            method = kind(num_members=problem.members, learning_rate=problem.rate, schedule="cosine", **settings)
            rows = problem.load(arguments.folder, seed)
            ensemble, seconds = fitted(problem, rows, method, prior, seed)
            row = {"problem": name, "method": label, "prior": prior, "seed": seed, **scores(ensemble, rows)}
            row["held_out_nll"] = metrics.nll(ensemble.predict(rows.held_out[0]), rows.held_out[1])
            done.append(results.append(arguments.out, row | {"seconds": seconds}))
            Console().print(done[-1])


def means(done: list[dict[str, Any]], name: str, label: str) -> tuple[float, ...]:
    """NLL, accuracy or RMSE, and AUROC by entropy: means over seeds, to the digits of the table.

    The deep ensemble's are those under the prior that it chose.
    """
    rows = [row for row in done if (row["problem"], row["method"]) == (name, label)]
    if label == TUNED and rows:
        rows = [row for row in rows if row["prior"] == tuned_prior(done, name)]
    names = [score for score in ("nll", "accuracy", "rmse", "auroc") if all(score in row for row in rows)]
    return tuple(round(statistics.fmean(row[score] for row in rows), DIGITS) for score in names) if rows else ()


def table_of(done: list[dict[str, Any]]) -> Found:
    """What the runs came to."""
    found = {}
    for name in PROBLEMS | FRESH:
        rows = [row for row in done if row["problem"] == name]
        if rows:
            tuned = tuned_prior(done, name) if any(row["method"] == TUNED for row in rows) else "-"
            found[name] = (tuned, {label: means(done, name, label) for label in (TUNED, *METHODS)})
    return found


def filled(found: Found, earlier: Found) -> Found:
    """The same, with what an earlier table has of problems and methods of which there is no run."""
    whole = {}
    for name in PROBLEMS | FRESH:
        (tuned, own), (tuned_then, then) = (part.get(name, ("-", {})) for part in (found, earlier))
        if own or then:
            each = {label: own.get(label) or then.get(label, ()) for label in (TUNED, *METHODS)}
            whole[name] = (tuned if own.get(TUNED) else tuned_then, each)
    return whole


def lines(found: Found) -> list[str]:
    """The table, and what the default came to."""
    rows = ["| problem | tuned prior | " + " | ".join((TUNED, *METHODS)) + " |", "| --- " * (len(METHODS) + 3) + "|"]
    for name, (tuned, each) in found.items():
        cells = [" / ".join(f"{score:.{DIGITS}f}" for score in one) or "-" for one in each.values()]
        rows.append(f"| {name} | {tuned} | " + " | ".join(cells) + " |")
    pairs = {name: (each["default"], each[TUNED]) for name, (_, each) in found.items() if each["default"]}
    nll = {name: (own[0], rival[0]) for name, (own, rival) in pairs.items() if rival}
    auroc = {name: own[2] - rival[2] for name, (own, rival) in pairs.items() if len(rival) > 2}
    over = {name: own - rival - max(WORSE_NLL, WORSE_NLL_SHARE * abs(rival)) for name, (own, rival) in nll.items()}
    harmed = [name for name, above in over.items() if above > ROUNDING]
    blind = [name for name, gain in auroc.items() if gain < -WORSE_AUROC - ROUNDING]
    not_above = sum(own <= rival for own, rival in nll.values())
    better = sum(gain >= BETTER_AUROC - ROUNDING for gain in auroc.values())
    said = (
        f"The default against the tuned deep ensemble: NLL not above it on {not_above} of {len(nll)} problems, above "
        f"it by more than {WORSE_NLL} and 1 % on {', '.join(harmed) or 'none'}; AUROC above by {BETTER_AUROC} or more "
        f"on {better} of {len(auroc)}, below by more than {WORSE_AUROC} on {', '.join(blind) or 'none'}."
    )
    return [*rows, "", said]


def read_table(text: str) -> Found:
    """What a table on a page says."""
    found = {}
    for line in text.strip().splitlines()[2:-2]:
        name, tuned, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        scores = (() if cell == "-" else tuple(map(float, cell.split("/"))) for cell in cells)
        found[name] = (tuned, dict(zip((TUNED, *METHODS), scores, strict=True)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="data sets; without it nothing is trained")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(METHODS), help="beside the deep ensemble")
    parser.add_argument("--rival", action=argparse.BooleanOptionalAction, default=True, help="the deep ensemble too")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("never_harms.jsonl"))
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    arguments = parser.parse_args()
    done = results.read(arguments.out)
    if arguments.folder is not None:
        measure(arguments, done)
    found = table_of(done)
    if arguments.write is not None:
        results.renew(arguments.write, arguments.out.stem, lambda text: lines(filled(found, read_table(text))))
    rows = lines(found)
    shown = Table(*(cell.strip() for cell in rows[0].strip("|").split("|")))
    for row in rows[2:-2]:
        shown.add_row(*(cell.strip() for cell in row.strip("|").split("|")))
    Console(width=200).print(shown, rows[-1])


if __name__ == "__main__":
    main()
