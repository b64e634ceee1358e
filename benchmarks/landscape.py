"""The findings of Fort et al. on Fashion-MNIST: members against a trajectory, subspaces, planes, and paths.

    python benchmarks/landscape.py --folder DATA --page landscape.html

DATA holds `fashion-mnist/*.gz`. A 784-100-100-100-10 network, 10,000 training images, Adam (rate 0.003) with cosine
decay, no prior; five members, every epoch recorded. Numbers are printed, the figures are those of the command
`bayesemble landscape`.
"""

import argparse
import time
from pathlib import Path

import torch

import bayesemble as be
from bayesemble import landscape
from bayesemble.data.images import read_idx
from bayesemble.models import mlp
from bayesemble.report.landscape import LandscapePage
from bayesemble.report.page import write


def load(folder: Path, part: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    files = (folder / "fashion-mnist" / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    found = read_idx(*files).first(rows)
    return torch.as_tensor(found.images).float().flatten(1), torch.as_tensor(found.labels).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--curve-epochs", type=int, default=30)
    parser.add_argument("--plane", type=int, default=51, help="networks along each side of the timed plane")
    parser.add_argument("--page", type=Path, help="also write the page of figures")
    arguments = parser.parse_args()
    train, test = load(arguments.folder, "train", arguments.rows), load(arguments.folder, "t10k", 2000)
    task = be.Task(lambda: mlp(784, [100] * 3, 10), be.Categorical(), prior=None)
    method = be.DeepEnsemble(num_members=5, learning_rate=3e-3, schedule="cosine")
    ensemble = be.fit(task, method, train, epochs=arguments.epochs, batch_size=128, record="epoch")
    print("members:", {name: round(value, 4) for name, value in ensemble.evaluate(test).items()})
    report(ensemble, train, test, arguments)
    if arguments.page:
        page = LandscapePage(ensemble, test, train, resolution=31, epochs=arguments.curve_epochs)
        for part in page.parts().values():
            part()
        write(arguments.page, page.render("The landscape of five networks on Fashion-MNIST"))


def report(ensemble: be.Ensemble, train: object, test: object, arguments: argparse.Namespace) -> None:
    apart = ~torch.eye(5, dtype=torch.bool)
    members = landscape.similarity(ensemble, test)
    late = landscape.similarity(ensemble, test, members=[0], epochs=ensemble.recording.epochs[-5:])
    print(
        f"cosine: members {members.cosine[apart].mean():.4f}, last five epochs {late.cosine[apart].min():.5f} or more"
    )
    between, along = float(members.difference[apart].mean()), float(late.difference[apart].mean())
    print(f"disagreement: members {between:.4f}, last five epochs {along:.4f}, ratio {between / along:.1f}")
    found = landscape.diversity_accuracy(ensemble, test)
    least = float(found.accuracy["member"].min()) - 0.01
    print(
        f"disagreement with member 0 of networks of accuracy {least:.3f} or more (reference {found.reference_accuracy})"
    )
    for kind, accuracy in found.accuracy.items():
        away = found.disagreement[kind][accuracy >= least]
        words = f"{away.min():.3f}, {away.median():.3f}, {away.max():.3f}" if len(away) else "none"
        print(f"  {kind}: smallest, median, largest {words} ({len(away)} of {len(accuracy)} networks)")
    table = landscape.ensembles_of_subspaces(ensemble, test)
    for kind in table.accuracy:
        print(
            f"{kind}: accuracy of 1 and 5 {table.accuracy[kind][0]:.4f}, {table.accuracy[kind][-1]:.4f}; "
            f"Brier {table.brier[kind][0]:.4f}, {table.brier[kind][-1]:.4f}"
        )
    line = landscape.path(ensemble, test)
    matched = landscape.path(ensemble, test, align=True)
    curve = landscape.path(ensemble, test, kind="bezier", train=train, epochs=arguments.curve_epochs)
    for name, one in (("line", line), ("line, units matched", matched), ("curve", curve)):
        print(
            f"{name}: barrier {one.barrier:.4f} nats, error {one.error_barrier:.4f}, "
            f"error in the middle {one.error[12]:.4f}, difference from both ends there {one.difference[12].tolist()}"
        )
    start = time.perf_counter()
    landscape.plane(ensemble, test, resolution=arguments.plane)
    print(f"plane of {arguments.plane} x {arguments.plane} on {len(test[1])} rows: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
