"""Support against inductive bias: a network fits random labels as well as true ones, but its evidence tells them apart.

    python examples/random_labels.py

A network 64-30-10 is trained on 300 digits whose labels are true, or random for a share of the rows. It fits nearly all
of them: its prior has such functions in its support. The log evidence of the Laplace approximation, which says how much
of the prior lies where the labels are, falls with the share of random labels, below that of guessing (-2.30 nats).
After Wilson (2020), section 3, and Wilson & Izmailov (2020).
"""

import torch
from torch import Tensor

import bayesemble as be


def with_random_labels(labels: Tensor, share: float, num_classes: int) -> Tensor:
    """A share of the labels drawn anew, each class equally likely."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    labels = labels.clone()
    labels[chosen] = torch.randint(num_classes, (len(chosen),), generator=generator)
    return labels


def accuracy(ensemble: be.Ensemble, x: Tensor, labels: Tensor) -> float:
    """Of the trained network itself, without draws around it."""
    params, buffers = ensemble.state.members.split()[0]
    with torch.no_grad():
        return float((ensemble.task.forward(params, buffers, x).argmax(1) == labels).double().mean())


def main(
    rows: int = 300, epochs: int = 1500, shares: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
) -> list[dict[str, float]]:
    split = be.data.load_split("digits", seed=0)
    x, y = (torch.as_tensor(part[:rows]) for part in (split.x_train, split.y_train))
    x_test, y_test = torch.as_tensor(split.x_test), torch.as_tensor(split.y_test)
    task = be.Task(lambda: be.models.mlp(64, [30], 10), be.Categorical(), be.NormalPrior(std=1.0))
    method = be.Laplace(select="all", structure="full", num_members=1, learning_rate=0.01, schedule="cosine")
    found = []
    print("random labels  train accuracy  test accuracy  log evidence per row")
    for share in shares:
        labels = with_random_labels(y, share, 10)
        ensemble = be.fit(task, method, (x, labels), epochs=epochs, progress=False)
        evidence = float(ensemble.state.slots["laplace"]["log_evidence"][0]) / rows
        fitted, unseen = (accuracy(ensemble, *some) for some in ((x, labels), (x_test, y_test)))
        print(f"{share:13.0%}  {fitted:14.3f}  {unseen:13.3f}  {evidence:20.3f}")
        found.append({"share": share, "train": fitted, "test": unseen, "evidence": evidence})
    return found


if __name__ == "__main__":
    main()
