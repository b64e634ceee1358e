"""The findings of Fort et al.: members against a trajectory, subspaces, planes, and paths.

    python benchmarks/landscape.py --folder DATA --page landscape.html
    python benchmarks/landscape.py --folder DATA --data cifar10 --members 3 --epochs 20 --plane 0

DATA holds `fashion-mnist/*.gz` and `cifar10/*.npz`. Fashion-MNIST: a 784-100-100-100-10 network, Adam at 0.003;
CIFAR-10: three convolutions of 16, 32 and 32 channels, Adam at 0.002. Both: 10,000 training images, cosine decay, no
prior, every epoch recorded, all measured on 2,000 test images. Numbers are printed; the figures are those of the
command `bayesemble landscape`.
"""

import argparse
import time
from pathlib import Path

import torch
from images import load_images
from torch import Tensor, nn

import bayesemble as be
from bayesemble.apps.report.landscape import Subject, examine, landscape_page
from bayesemble.apps.report.page import write
from bayesemble.diagnostics import landscape
from bayesemble.models import mlp

RATES = {"fashion-mnist": 3e-3, "cifar10": 2e-3}


def load(folder: Path, name: str, part: int, rows: int) -> tuple[Tensor, Tensor]:
    found = load_images(folder, name)[part].first(rows)
    images = torch.as_tensor(found.images)
    inputs = images.permute(0, 3, 1, 2).contiguous() - 0.5 if name == "cifar10" else images.flatten(1)
    return inputs, torch.as_tensor(found.labels)


def network(name: str) -> nn.Module:
    if name == "fashion-mnist":
        return mlp(784, [100] * 3, 10)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", default="fashion-mnist", choices=list(RATES))
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--curve-epochs", type=int, default=30)
    parser.add_argument("--plane", type=int, default=51, help="networks along each side of the timed plane; 0 is none")
    parser.add_argument("--page", type=Path, help="also write the page of figures")
    arguments = parser.parse_args()
    train, test = (load(arguments.folder, arguments.data, part, rows) for part, rows in ((0, 10_000), (1, 2000)))
    task = be.Task(lambda: network(arguments.data), be.Categorical(), prior=None)
    rate = RATES[arguments.data]
    method = be.DeepEnsemble(num_members=arguments.members, learning_rate=rate, schedule="cosine")
    ensemble = be.fit(task, method, train, epochs=arguments.epochs, batch_size=128, record="epoch")
    print("members:", {name: round(value, 4) for name, value in ensemble.evaluate(test).items()}, flush=True)
    report(ensemble, train, test, arguments)
    if arguments.page:
        subject = Subject(ensemble, test, train, resolution=31, epochs=arguments.curve_epochs)
        title = f"The landscape of {arguments.members} networks on {arguments.data}"
        write(arguments.page, landscape_page(subject, examine(subject), title))


def report(ensemble: be.Ensemble, train: object, test: object, arguments: argparse.Namespace) -> None:
    members = landscape.similarity(ensemble, test)
    late = landscape.similarity(ensemble, test, members=[0], epochs=ensemble.recording.epochs[-5:])
    cosine, difference = pairs(members.cosine), pairs(members.difference)
    print(f"cosine: members {cosine.mean():.4f} on average, last five epochs {pairs(late.cosine).min():.5f} or more")
    between, along = float(difference.mean()), float(pairs(late.difference).mean())
    print(f"disagreement: members {between:.4f}, last five epochs {along:.4f}, ratio {between / along:.1f}")
    found = landscape.diversity_accuracy(ensemble, test)
    least = float(found.accuracy["member"].min()) - 0.01
    print(f"disagreement with member 0, of accuracy {found.reference_accuracy}, of networks of {least:.3f} or more:")
    for kind, accuracy in found.accuracy.items():
        away = found.disagreement[kind][accuracy >= least]
        words = f"{away.min():.3f}, {away.median():.3f}, {away.max():.3f}" if len(away) else "none"
        print(f"  {kind}: smallest, median, largest {words} ({len(away)} of {len(accuracy)} networks)")
    table = landscape.ensembles_of_subspaces(ensemble, test)
    for kind in table.accuracy:
        print(
            f"{kind}: accuracy of one and of all {table.accuracy[kind][0]:.4f}, {table.accuracy[kind][-1]:.4f}; "
            f"Brier {table.brier[kind][0]:.4f}, {table.brier[kind][-1]:.4f}"
        )
    found_paths = {"line": landscape.path(ensemble, test)}
    if arguments.data == "fashion-mnist":  # units are matched in plain chains of linear layers
        found_paths["line, units matched"] = landscape.path(ensemble, test, align=True)
    curve = landscape.path(ensemble, test, kind="bezier", train=train, epochs=arguments.curve_epochs)
    for name, one in (found_paths | {"curve": curve}).items():
        print(
            f"{name}: barrier {one.barrier:.4f} nats, error {one.error_barrier:.4f}, "
            f"error in the middle {one.error[12]:.4f}, difference from both ends there {one.difference[12].tolist()}"
        )
    if not arguments.plane:
        return
    start = time.perf_counter()
    landscape.plane(ensemble, test, resolution=arguments.plane)
    print(f"plane of {arguments.plane} x {arguments.plane} on {len(test[1])} rows: {time.perf_counter() - start:.1f} s")


def pairs(matrix: Tensor) -> Tensor:
    """Entries of two different networks."""
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


if __name__ == "__main__":
    main()
