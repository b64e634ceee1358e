"""The reproduction of repulsive deep ensembles by Barabanshchikova, Faget Caño & Singer, in one command.

    python examples/reproduce_repulsive.py DATA/mnist --ood DATA/notmnist --out runs
    python examples/reproduce_repulsive.py DATA/fashion-mnist --ood DATA/mnist --rows 20000 --members 5,9 --out runs

Folders hold idx files, as MNIST and Fashion-MNIST have them. Ensembles of 1, 5, 9, 13 and 17 networks, of three hidden
layers of 100, are trained with every estimator of the repulsion and both kernels, with and without adversarial images
(FGSM), as the released code trains: uncalibrated, the driving force times 0.01, prior standard deviation 0.5, pixels in
[-1, 1], Adam at 0.01 times 0.8 after each epoch with epsilon 1e-8 on the summed loss, batches of 128, 15 epochs, a
Laplace kernel of length 100. (The released ssge has the RBF kernel whatever is asked for; here it has the one that is
asked for. Released adversarial images are one step for all members; here each has its own.)

One line per run goes to `OUT/runs.jsonl` as it is done, and a run that is there already is not repeated. A run leaves
its pictures in OUT: entropy on test and foreign images, accuracy against confidence on test and rotated images, and the
images on which members agree and disagree most. At the end the table is printed, with the published row beside ours.
Published numbers are read off figure 1 of the report, which is about MNIST with NotMNIST as foreign images (accuracy to
0.01 points, NLL to 0.0005, ratio to 0.05); ssge, the Laplace kernel but for kde, and calibration errors are not in it.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import bayesemble as be
from bayesemble import metrics, plots
from bayesemble.data.array_files import find_reader
from bayesemble.data.corruptions import turned_and_flipped
from bayesemble.models import mlp
from bayesemble.predictive import ClassPredictive

KERNELS = {"rbf": be.kernels.RBF(), "laplace": be.kernels.Laplace(bandwidth=100.0)}
SCORES = ("accuracy", "nll", "ece", "entropy_ratio", "rotated_accuracy", "rotated_ece", "auroc_entropy")
MEMBERS = (1, 5, 9, 13, 17)
PUBLISHED = {  # accuracy in per cent, NLL and entropy ratio by the number of members
    ("kde", "rbf", False): [
        (96.99, 0.105, 8.4), (97.81, 0.0738, 12.4), (98.06, 0.0693, 12.6), (97.85, 0.0659, 13.4), (97.69, 0.0697, 13.5)
    ],
    ("sge", "rbf", False): [
        (96.99, 0.105, 8.4), (97.74, 0.0705, 13.4), (97.83, 0.0694, 12.3), (97.83, 0.0715, 12.9), (98.00, 0.0595, 14.4)
    ],
    ("kde", "laplace", False): [
        (96.99, 0.105, 8.4), (97.87, 0.0659, 13.5), (98.11, 0.0619, 14.1), (98.01, 0.0632, 13.5), (98.04, 0.0600, 14.2)
    ],
    ("kde", "rbf", True): [
        (96.99, 0.105, 8.4), (97.83, 0.0654, 13.0), (97.91, 0.0640, 13.4), (97.94, 0.0644, 13.5), (98.08, 0.0643, 13.1)
    ],
}  # fmt: skip


class Variant(NamedTuple):
    """One cell of the table; a single network has no repulsion, so that all estimators and kernels are one."""

    members: int
    estimator: str
    kernel: str
    fgsm: bool

    @property
    def name(self) -> str:
        words = [f"M{self.members}", self.estimator, self.kernel] if self.members > 1 else ["M1"]
        return "-".join([*words, *(["fgsm"] if self.fgsm else [])])

    @property
    def published(self) -> tuple[float, float, float] | None:
        found = PUBLISHED.get(("kde", "rbf", self.fgsm) if self.members == 1 else self[1:])
        return found[MEMBERS.index(self.members)] if found and self.members in MEMBERS else None

    def method(self, rows: int, epochs: int) -> be.Repulsive:
        drops = tuple(epoch / epochs for epoch in range(1, epochs))
        return be.Repulsive(
            num_members=self.members,
            estimator=self.estimator,
            kernel=KERNELS[self.kernel],
            calibrate=False,
            driving=0.01,
            learning_rate=1e-2,
            schedule=be.schedules.Step(at=drops, factor=0.8),
            epsilon=1e-8 / rows,
            adversarial=0.001 if self.fgsm else 0.0,
            measure_every=1,
        )


class Images(NamedTuple):
    """Pixels `(image, height, width)` in [0, 1], and labels, of all that is looked at."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    rotated: Tensor
    ood: Tensor


def variants(arguments: argparse.Namespace) -> Iterator[Variant]:
    """All cells; the plain ones first, so that a run that is cut off has what matters most."""
    for fgsm in (False, True) if arguments.fgsm else (False,):
        for kernel in arguments.kernels:
            for members in arguments.members:
                for estimator in arguments.estimators:
                    if members > 1 or (kernel, estimator) == (arguments.kernels[0], arguments.estimators[0]):
                        yield Variant(members, estimator, kernel, fgsm)


def read(folder: Path) -> dict[str, np.ndarray]:
    reader = find_reader(folder)
    if reader is None:
        raise SystemExit(f"{folder} is no folder of idx files")
    return reader.arrays(folder)


def load(arguments: argparse.Namespace) -> Images:
    own, other = read(arguments.folder), read(arguments.ood)

    def part(name: str, rows: int | None) -> tuple[Tensor, Tensor]:
        x, y = own[f"x_{name}"][:rows], own[f"y_{name}"][:rows]
        return torch.as_tensor(x.astype(np.float32) / 255), torch.as_tensor(y.astype(np.int64))

    test = part("test", arguments.test_rows)
    rotated = turned_and_flipped(test[0].numpy()[..., None], np.random.default_rng(0))[..., 0]
    ood = other.get("x_test", other.get("x"))[: arguments.test_rows]
    return Images(
        part("train", arguments.rows), test, torch.as_tensor(rotated), torch.as_tensor(ood.astype(np.float32) / 255)
    )


def inputs(images: Tensor) -> Tensor:
    return images.flatten(1) * 2 - 1


def run(variant: Variant, images: Images, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and score one ensemble, and leave its pictures."""
    (x, y), classes = images.train, int(images.train[1].max()) + 1
    task = be.Task(lambda: mlp(x[0].numel(), [100] * 3, classes), be.Categorical(), be.NormalPrior(std=0.5))
    start = time.perf_counter()
    ensemble = be.fit(
        task,
        variant.method(len(x), arguments.epochs),
        (inputs(x), y),
        epochs=arguments.epochs,
        batch_size=128,
        seed=arguments.seed,
        executor="vmap",
        progress=False,
    )
    seconds = time.perf_counter() - start
    test, rotated, ood = (ensemble.predict(inputs(part)) for part in (images.test[0], images.rotated, images.ood))
    draw(variant.name, arguments.out, images, test, rotated, ood)
    targets, binning = images.test[1], {"bins": 30, "closed": "left"}
    last = ensemble.history[-1]
    return {
        "accuracy": metrics.accuracy(test, targets),
        "nll": metrics.nll(test, targets),
        "ece": metrics.expected_calibration_error(test, targets, **binning),
        "entropy_ratio": metrics.entropy_ratio(test, ood),
        "rotated_accuracy": metrics.accuracy(rotated, targets),
        "rotated_ece": metrics.expected_calibration_error(rotated, targets, **binning),
        "auroc_entropy": metrics.ood_auroc(test, ood, "entropy"),
        "confidence": {
            name: metrics.accuracy_against_confidence(seen, targets).accuracy.tolist()
            for name, seen in (("test", test), ("rotated", rotated))
        },
        "driving_norm": float(np.mean(last["driving_norm"])),
        "repulsion_norm": float(np.mean(last["repulsion_norm"])),
        "seconds": seconds,
    }


def draw(
    name: str, folder: Path, images: Images, test: ClassPredictive, rotated: ClassPredictive, ood: ClassPredictive
) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    plots.plot_entropy(test.entropy, ood.entropy, left)
    for label, seen in (("test images", test), ("rotated images", rotated)):
        curve = metrics.accuracy_against_confidence(seen, images.test[1])
        plots.plot_accuracy_against_confidence(curve, right, label=label)
    figure.savefig(folder / f"{name}.png", dpi=100)
    plt.close(figure)
    if test.num_members < 2:
        return
    figure, axes = plt.subplots(3, 2, figsize=(9, 3.4), layout="constrained")
    parts = (("test", images.test[0], test), ("rotated", images.rotated, rotated), ("foreign", images.ood, ood))
    for row, (label, pixels, seen) in zip(axes, parts, strict=True):
        order = seen.member_std.argsort()
        for ax, words, rows in ((row[0], "least", order[:8]), (row[1], "most", order[-8:].flip(0))):
            chosen = [str(int(choice)) for choice in seen.probs[rows].argmax(-1)]
            plots.plot_gallery(pixels[rows], chosen, ax, columns=8)
            ax.set_title(f"{words} disagreement, {label} images", fontsize="small")
    figure.savefig(folder / f"{name}-disagreement.png", dpi=100)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """One line per run, the published figures behind ours; a dash is a figure that is not published."""
    lines = ["| run | " + " | ".join(SCORES) + " | published: accuracy, NLL, ratio (MNIST) |"]
    lines.append("| --- " * (len(SCORES) + 2) + "|")
    for row in rows:
        variant = Variant(*row["variant"])
        known = variant.published
        said = "-" if known is None else f"{known[0] / 100:.4f}, {known[1]:.4f}, {known[2]:.1f}"
        lines.append(f"| {variant.name} | " + " | ".join(f"{row[score]:.4f}" for score in SCORES) + f" | {said} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    def several(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="images to train on and to test with")
    parser.add_argument("--ood", type=Path, required=True, help="foreign images")
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--rows", type=int, help="training images; else all")
    parser.add_argument("--test-rows", type=int, help="test and foreign images; else all")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=lambda text: [int(word) for word in text.split(",")], default=list(MEMBERS))
    parser.add_argument("--estimators", type=several, default=["kde", "sge", "ssge"])
    parser.add_argument("--kernels", type=several, default=list(KERNELS))
    parser.add_argument("--fgsm", action=argparse.BooleanOptionalAction, default=True, help="also with FGSM")
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file, images = arguments.out / "runs.jsonl", load(arguments)
    setting = [arguments.folder.name, arguments.rows, arguments.test_rows, arguments.epochs, arguments.seed]
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = [row for row in found if row["setting"] == setting]
    for variant in variants(arguments):
        if not any(Variant(*row["variant"]) == variant for row in found):
            row = {"setting": setting, "variant": variant, **run(variant, images, arguments)}
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            found.append(row)
    print(table(found))


if __name__ == "__main__":
    plt.switch_backend("Agg")
    main()
