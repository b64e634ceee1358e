"""One network in place of ten: does a student doubt where its teacher does?

python benchmarks/distil.py --folder DATA             # all sets, 2 seeds, about half an hour
python benchmarks/distil.py --sets diabetes,digits    # which come with scikit-learn, and need no folder
python benchmarks/distil.py --sets diabetes --mixed 0 20 --steps 2000
python benchmarks/distil.py --times                   # how much faster a student is, by rows and by width: a minute

DATA holds `uci/*.npz`, as for `benchmarks/uci.py`. The teacher is a deep ensemble of ten, trained on half of the rows
(of 4,000 at most); the student has the size of one member, 64-64-64-10 for digits and D-100-100-3
for numbers. It sees the inputs of these rows, with `mixed` copies more; the other half is held out. Per row: Spearman's
correlation of epistemic and of total doubt with those of the teacher; beside it that between the two halves of the
teacher, five networks each, which says how much of its doubt is the accident of its networks; the size of epistemic
doubt, and scores of both. With --times, those of teacher over student: of `predict`, and of the module with mean or
probabilities and both kinds of doubt, for all of the rows at once. Both take turns, and the best of each counts.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

import bayesemble as be

MEMBERS, MOST, ROUNDS = 10, 4000, 40
UCI = {
    "yacht": "yacht",
    "boston": "bostonHousing",
    "energy": "energy",
    "concrete": "concrete",
    "wine": "wine-quality-red",
    "kin8nm": "kin8nm",
    "power": "power-plant",
}
EPOCHS = {"digits": 60, "diabetes": 15}  # of the teacher; after more it overfits diabetes
COLUMNS = ("data", "mixed", "rows", "epistemic", "total", "halves, epistemic", "halves, total", "epistemic, ratio")
COLUMNS += ("NLL teacher", "NLL student")


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(name: str, folder: Path | None) -> tuple[Tensor, Tensor]:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
    else:
        assert folder is not None, f"--folder says where uci/{UCI[name]}.npz is"
        rows = np.load(folder / "uci" / f"{UCI[name]}.npz")["data"]
        rows = rows[np.random.default_rng(0).permutation(len(rows))[:MOST]]
        x, y = rows[:, :-1], rows[:, -1]
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def teach(name: str, x: Tensor, y: Tensor, seed: int) -> tuple[be.Ensemble, tuple[int, ...]]:
    """A teacher, and the widths of its student."""
    classes, columns = not y.is_floating_point(), x.shape[1]
    hidden = (64, 64) if classes else (100, 100)
    likelihood = be.Categorical() if classes else be.HeteroscedasticGaussian()
    teacher = be.fit(
        be.Task(lambda: mlp(columns, *hidden, 10 if classes else 2), likelihood),
        be.DeepEnsemble(num_members=MEMBERS),
        (x, y),
        epochs=EPOCHS.get(name, max(15, min(60, 13_000 // len(x)))),
        batch_size=32,
        executor="vmap",
        seed=seed,
        progress=False,
    )
    return teacher, (columns, *hidden, 10 if classes else 3)


def times_faster(slow: Callable[[], object], quick: Callable[[], object]) -> float:
    """The quickest of many turns of each, which take turns."""
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for number, way in enumerate((slow, quick)):
            start = time.perf_counter()
            way()
            best[number] = min(best[number], time.perf_counter() - start)
    return best[0] / best[1]


def agreement(one: be.Predictive, other: be.Predictive) -> list[float]:
    kinds = ("epistemic", "total")
    return [float(spearmanr(one.uncertainty(kind), other.uncertainty(kind))[0]) for kind in kinds]


def speeds(classes: bool, width: int, num_rows: int) -> list[float]:
    """How many times faster a student of one member's size predicts, and its module answers; 64 columns."""
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long() if classes else x[:, 0]
    likelihood = be.Categorical() if classes else be.HeteroscedasticGaussian()
    task = be.Task(lambda: mlp(64, width, width, 10 if classes else 2), likelihood)
    teacher = be.fit(task, be.DeepEnsemble(num_members=MEMBERS), (x, y), epochs=1, progress=False)
    widths = (64, width, width, 10 if classes else 3)
    student = be.distil(teacher, lambda: mlp(*widths), x, mixed=0, epochs=1, progress=False)
    rows = x.repeat(num_rows // len(x), 1)
    names = ["probs" if classes else "mean", "aleatoric", "epistemic"]
    large, small = teacher.module(names), student.module(names)
    with torch.no_grad():
        modules = times_faster(lambda: large(rows), lambda: small(rows))
    return [times_faster(lambda: teacher.predict(rows), lambda: student.predict(rows)), modules]


def print_speeds() -> None:
    print("| predicts | hidden units | rows | `predict`, times faster | module, times faster |\n" + "| --- " * 5 + "|")
    for classes, width, rows in itertools.product((True, False), (100, 500), (256, 4096)):
        cells = [f"{times:.1f}" for times in speeds(classes, width, rows)]
        print(f"| {'classes' if classes else 'a number'} | 2 x {width} | {rows} | {' | '.join(cells)} |", flush=True)


def one(name: str, folder: Path | None, copies: list[int | None], seed: int, steps: int | None) -> list[list[float]]:
    x, y = load(name, folder)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    seen, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    teacher, widths = teach(name, x[seen], y[seen], seed)
    rows, targets = x[held_out], y[held_out]
    told = teacher.predict(rows)
    halves = agreement(told.take(torch.arange(MEMBERS // 2)), told.take(torch.arange(MEMBERS // 2, MEMBERS)))
    found = []
    for mixed in copies:
        epochs = None
        if steps is not None:
            copied = 200_000 // len(seen) if mixed is None else 1 + mixed
            epochs = max(1, round(steps * 128 / (len(seen) * copied)))
        student = be.distil(
            teacher, lambda: mlp(*widths), x[seen], mixed=mixed, epochs=epochs, seed=seed, progress=False
        )
        learned = student.predict(rows)
        ratio = float(learned.uncertainty("epistemic").mean() / told.uncertainty("epistemic").mean())
        scores = [side.evaluate((rows, targets))["nll"] for side in (teacher, student)]
        found.append([len(seen), *agreement(told, learned), *halves, ratio, *scores])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="that holds uci/*.npz")
    parser.add_argument("--sets", default=",".join(["digits", "diabetes", *UCI]))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None, help="of the student; those of be.distil unless told")
    parser.add_argument("--mixed", type=int, nargs="+", default=[None], help="copies; those of be.distil unless told")
    parser.add_argument("--times", action="store_true", help="measure times alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # weights of pixels that are always 0 fade away, and such numbers take very long
    if options.times:
        print_speeds()
        return
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|", flush=True)
    for name in options.sets.split(","):
        seeds = [one(name, options.folder, options.mixed, seed, options.steps) for seed in range(options.seeds)]
        for number, mixed in enumerate(options.mixed):
            columns = list(zip(*(seed[number] for seed in seeds), strict=True))
            cells = [str(columns[0][0]), *(" ".join(f"{value:.3f}" for value in column) for column in columns[1:])]
            print(f"| {name} | {'usual' if mixed is None else mixed} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
