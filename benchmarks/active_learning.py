"""Digits with few labels: which rows to label next, chosen by an ensemble or at random.

python benchmarks/active_learning.py             # 5 seeds, 20 to 120 labels in steps of 10, a few minutes
python benchmarks/active_learning.py --seeds 1 --rounds 2 --members 3 --epochs 20

Every way starts with the same labelled rows of a seed and the same networks. Scores are those of 500 test rows that no
way ever sees. The gain is the difference of accuracies to random rows, mean over rounds: its mean and standard error
over seeds.
"""

import argparse

import numpy as np
import results
import torch
from sklearn.datasets import load_digits
from torch import nn

import bayesemble as be

WAYS = ("random", "entropy", "mutual_information", "batchbald")
TEST_ROWS, FIRST_LABELS = 500, 20


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def learning_curve(way: str, seed: int, rounds: int, step: int, members: int, epochs: int) -> list[float]:
    """Accuracies on the test rows with the first labels, and after each round of further ones."""
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, rest = order[:TEST_ROWS], order[TEST_ROWS:]
    labelled, pool = rest[:FIRST_LABELS], rest[FIRST_LABELS:]
    curve = []
    for number in range(rounds + 1):
        ensemble = be.fit(
            be.Task(network, be.Categorical()),
            be.DeepEnsemble(num_members=members, learning_rate=0.01),
            (x[labelled], y[labelled]),
            epochs=epochs,
            batch_size=20,
            executor="vmap",
            seed=seed,
            progress=False,
        )
        curve.append(ensemble.evaluate((x[test], y[test]))["accuracy"])
        if number < rounds:
            chosen = be.acquire(ensemble, x[pool], by=way, num=step, seed=100 * seed + number)
            labelled = torch.cat([labelled, pool[chosen]])
            kept = torch.ones(len(pool), dtype=torch.bool)
            kept[chosen] = False
            pool = pool[kept]
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--step", type=int, default=10, help="rows that are labelled in a round")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    settings = (options.rounds, options.step, options.members, options.epochs)
    curves = {way: np.array([learning_curve(way, seed, *settings) for seed in range(options.seeds)]) for way in WAYS}
    shown = sorted({0, options.rounds // 4, options.rounds // 2, 3 * options.rounds // 4, options.rounds})
    labels = [FIRST_LABELS + options.step * number for number in shown]
    print(
        f"| chosen by | {' | '.join(f'{count} labels' for count in labels)} | all rounds | gain | seeds with a gain |"
    )
    print(f"|{' --- |' * (len(labels) + 4)}")
    for way, curve in curves.items():
        gains = (curve[:, 1:] - curves["random"][:, 1:]).mean(1)
        cells = [f"{curve[:, number].mean():.3f}" for number in shown] + [f"{curve[:, 1:].mean():.3f}"]
        gain = [results.mean_and_error(gains.tolist()), f"{(gains > 0).sum()} of {len(gains)}"]
        print(f"| `{way}` | {' | '.join(cells + (['', ''] if way == 'random' else gain))} |", flush=True)


if __name__ == "__main__":
    main()
