"""One network in place of ten: does a student doubt where its teacher does?

python benchmarks/distil.py             # 5 seeds, without and with mixed rows, about fifteen minutes
python benchmarks/distil.py --seeds 1 --epochs 10

Digits (classes, 64-64-64-10) and the diabetes table of scikit-learn (a number, 10-100-100-2, and a student with three
outputs). The teacher is a deep ensemble of ten, trained on half of the rows. The student sees the inputs of these rows,
with `mixed` copies more; the other half is held out. Per row: Spearman's correlation of epistemic and of total doubt
with those of the teacher, scores of both, and the time of a prediction of the held-out rows by the teacher over that by
the student. Means and standard errors over seeds.
"""

import argparse
import itertools
import time

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

import bayesemble as be

MEMBERS, ROUNDS = 10, 30


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def diabetes() -> tuple[Tensor, Tensor]:
    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


SETS = {
    "digits": (digits, (64, 64, 64, 10), (64, 64, 64, 10), be.Categorical(), 60),
    "diabetes": (diabetes, (10, 100, 100, 2), (10, 100, 100, 3), be.HeteroscedasticGaussian(), 15),
}


def seconds(ensemble: be.Ensemble, x: Tensor) -> float:
    """The quickest of many predictions."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        ensemble.predict(x)
        times.append(time.perf_counter() - start)
    return min(times)


def one(name: str, mixed: int, seed: int, epochs: int | None) -> list[float]:
    load, network, student, likelihood, teaching = SETS[name]
    x, y = load()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    seen, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    teacher = be.fit(
        be.Task(lambda: mlp(*network), likelihood),
        be.DeepEnsemble(num_members=MEMBERS),
        (x[seen], y[seen]),
        epochs=teaching,
        batch_size=32,
        executor="vmap",
        seed=seed,
        progress=False,
    )
    small = be.distil(teacher, lambda: mlp(*student), x[seen], mixed=mixed, epochs=epochs, seed=seed, progress=False)
    rows, targets = x[held_out], y[held_out]
    told, learned = teacher.predict(rows), small.predict(rows)
    agree = [spearmanr(told.uncertainty(kind), learned.uncertainty(kind))[0] for kind in ("epistemic", "total")]
    size = learned.uncertainty("epistemic").mean() / told.uncertainty("epistemic").mean()
    scores = [side.evaluate((rows, targets))["nll"] for side in (teacher, small)]
    return [*agree, float(size), *scores, seconds(teacher, rows) / seconds(small, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=None, help="of the student; 10,000 steps unless told")
    parser.add_argument("--mixed", type=int, nargs="+", default=[0, 20, 100])
    options = parser.parse_args()
    torch.set_flush_denormal(True)  # weights of pixels that are always 0 fade away, and such numbers take very long
    print("| data | mixed | epistemic | total | epistemic, ratio of means | NLL teacher | NLL student | times faster |")
    print("| --- " * 8 + "|")
    for name in SETS:
        for mixed in options.mixed:
            found = np.array([one(name, mixed, seed, options.epochs) for seed in range(options.seeds)])
            errors = found.std(0, ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.full(6, np.nan)
            cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(found.mean(0), errors, strict=True)]
            print(f"| {name} | {mixed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
