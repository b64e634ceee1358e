"""Many threads at once: one ensemble predicts the bits of a serial run, fits side by side do not disturb one another,
and the user's own random numbers and number of threads stay what they are.
"""

import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bayesemble as be
from bayesemble.methods import METHODS, make_method
from bayesemble.task.likelihoods import HeteroscedasticGaussian
from faulting import stage
from faulting.fault import LEFTOVER, RIGHT, SILENT, Attempt, Verdict, check, heard
from helpers import dropout_mlp, norm_mlp, quick_fit, small_mlp, table
from same_bits import SMALL

NAMES = [name for name in METHODS if name != "map"]


@dataclass
class Size:
    """How much is done at once."""

    threads: int = 64
    each: dict[str, int] = field(default_factory=lambda: {"loop": 100, "vmap": 20})
    epochs: int = 3


size = Size()


def shorten() -> None:
    """Little of it, for the suite."""
    size.threads, size.each, size.epochs = 8, {"loop": 3, "vmap": 2}, 2


def prepare(place: Path) -> float:
    """Let threads take turns much more often than they usually do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    return before


def finish(before: float) -> None:
    """As it was."""
    sys.setswitchinterval(before)


def attempt(_: float, number: int, chance: random.Random) -> Attempt:
    """What is shared by a whole process, then all methods in prediction and in training."""
    cases: list[tuple[str, Callable[[], Verdict]]] = [(words, partial(act, chance)) for words, act in SHARED.items()]
    for executor in ("loop", "vmap"):
        many = f"{size.threads} threads x {size.each[executor]} predictions of"
        cases += [(f"{many} {name} by {executor}", partial(predictions, name, executor)) for name in NAMES]
        cases += [(f"4 fits of {name} by {executor} in 4 threads", partial(fits, name, executor)) for name in NAMES]
    words, act = cases[number % len(cases)]
    return Attempt(words, act, seconds=600, may_refuse=False)


def trained(name: str, executor: str, seed: int = 0) -> be.Ensemble:
    method = make_method(name, **({"num_members": 2} | SMALL.get(name, {})))
    model: Callable = dropout_mlp if method.keeps_dropout else small_mlp if name == "hmc" else norm_mlp
    rows = None if method.full_batch else 16
    with heard():
        task = be.Task(model, be.Categorical())
        return quick_fit(task, table(), method, executor=executor, batch_size=rows, epochs=size.epochs, seed=seed)


def predictions(name: str, executor: str) -> Verdict:
    """Each thread predicts other rows at the same time."""
    ensemble, x = trained(name, executor), table(128, seed=1)[0]

    def predict(index: int) -> bytes:
        rows = x[8 * (index % 16) :][:8]
        return ensemble.predict(rows, num_draws=3).probs.numpy().tobytes()

    alone, count = [predict(index) for index in range(16)], size.threads * size.each[executor]
    with ThreadPoolExecutor(size.threads) as pool:
        found = list(pool.map(predict, range(count)))
    wrong = sum(one != alone[index % 16] for index, one in enumerate(found))
    check(not wrong, SILENT, f"{wrong} of {count} predictions differ from those of one thread")
    return RIGHT, f"{count} predictions, all the bits of one thread"


def fits(name: str, executor: str) -> Verdict:
    """Fits with other seeds, side by side and one after the other."""

    def train(seed: int) -> dict[str, bytes]:
        return stage.weights(trained(name, executor, seed))

    alone = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(train, range(4)))
    wrong = sum(one != other for one, other in zip(alone, found, strict=True))
    check(not wrong, SILENT, f"{wrong} of 4 fits end with other weights than alone")
    return RIGHT, "the same weights"


# --- what a process has only one of ---


def user_stream(act: Callable[[], Any], chance: random.Random) -> Verdict:
    """The user draws from torch's global generator while something is done in another thread; neither disturbs."""
    alone, seed, before, found = act(), chance.randrange(10**6), torch.get_rng_state(), []
    pool = ThreadPoolExecutor(1)
    try:
        torch.manual_seed(seed)
        beside = pool.submit(act)
        while not beside.done() or len(found) < 100:
            found.append(float(torch.rand(())))
            time.sleep(1e-4)
        torch.manual_seed(seed)
        expected = [float(torch.rand(())) for _ in found]
    finally:
        torch.set_rng_state(before)
        pool.shutdown()
    wrong = sum(one != other for one, other in zip(expected, found, strict=True))
    check(not wrong, SILENT, f"{wrong} of {len(expected)} numbers of the user's own torch.rand are others")
    check(beside.result() == alone, SILENT, "the user's torch.rand changed what came out in the other thread")
    return RIGHT, "the user's numbers and ours are untouched"


def fit_with(executor: str) -> dict[str, bytes]:
    """The weights of a network with dropout."""
    task = be.Task(dropout_mlp, be.Categorical())
    return stage.weights(quick_fit(task, table(), be.DeepEnsemble(num_members=4), executor=executor, epochs=10))


def predict_by_dropout() -> list[bytes]:
    """Predictions for which dropout draws."""
    ensemble = trained("mc_dropout", "loop")
    return [ensemble.predict(table(8)[0], num_draws=5, seed=seed).probs.numpy().tobytes() for seed in range(20)]


def thread_count(_: random.Random) -> Verdict:
    """Fits that ask for other numbers of torch threads overlap; afterwards the number is what it was."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(6) as pool:
            for future in [pool.submit(counted, 1 + index % 3) for index in range(12)]:
                future.result()
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    check(after == before, LEFTOVER, f"torch had {before} threads before, {after} after fits side by side")
    return RIGHT, f"{before} threads before and after"


def counted(threads: int) -> None:
    quick_fit(be.Task(small_mlp, be.Categorical()), table(), executor=be.Loop(threads=threads), epochs=3)


def shared_task(_: random.Random) -> Verdict:
    """One Task object in four fits at once."""
    task = be.Task(dropout_mlp, be.Categorical())

    def train(seed: int) -> dict[str, bytes]:
        return stage.weights(quick_fit(task, table(), be.DeepEnsemble(num_members=3), seed=seed))

    alone = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(train, range(4)))
    check(found == alone, SILENT, "fits that share a Task end with other weights")
    return RIGHT, "the same weights"


def many_members(_: random.Random) -> Verdict:
    """Initial weights of many members are drawn while others draw theirs."""

    def train(seed: int) -> dict[str, bytes]:
        task = be.Task(small_mlp, be.Categorical())
        return stage.weights(quick_fit(task, table(), be.DeepEnsemble(num_members=60), epochs=1, seed=seed))

    alone = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(train, range(4)))
    check(found == alone, SILENT, "fits of 60 members end with other weights than alone")
    return RIGHT, "the same weights"


def regression(_: random.Random) -> Verdict:
    """Means and variances, with a network that has its own noise."""
    x = table(64)[0]
    task = be.Task(small_mlp, HeteroscedasticGaussian())
    ensemble = quick_fit(task, (x, 3 * x[:, 0] + 100), be.DeepEnsemble(num_members=5))
    alone = [ensemble.predict(x[index : index + 4]).mean for index in range(32)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda index: ensemble.predict(x[index % 32 :][:4]).mean, range(640)))
    wrong = sum(not torch.equal(one, alone[index % 32]) for index, one in enumerate(found))
    check(not wrong, SILENT, f"{wrong} of 640 means differ")
    return RIGHT, "640 means, all the bits of one thread"


def grid_search(_: random.Random) -> Verdict:
    """scikit-learn's search under joblib's threads finds what it finds alone."""
    from joblib import parallel_backend
    from sklearn.model_selection import GridSearchCV

    from bayesemble.estimators import EnsembleClassifier

    x, y = (part.numpy() for part in table(60))
    search = GridSearchCV(EnsembleClassifier(epochs=2, random_state=0), {"width": [4, 8]}, cv=2)
    with heard():
        alone = search.fit(x, y).cv_results_["mean_test_score"].tolist()
        with parallel_backend("threading", n_jobs=4):
            found = search.set_params(n_jobs=4).fit(x, y).cv_results_["mean_test_score"].tolist()
    check(found == alone, SILENT, f"{found} in threads, {alone} alone")
    return RIGHT, f"scores {alone}"


SHARED: dict[str, Callable[[random.Random], Verdict]] = {
    "the user's torch.rand while be.fit trains in a loop": partial(user_stream, partial(fit_with, "loop")),
    "the user's torch.rand while be.fit trains by vmap": partial(user_stream, partial(fit_with, "vmap")),
    "the user's torch.rand while dropout predicts": partial(user_stream, predict_by_dropout),
    "fits with other numbers of torch threads": thread_count,
    "one Task in four fits": shared_task,
    "60 members in four fits": many_members,
    "means in 16 threads": regression,
    "GridSearchCV in threads": grid_search,
}
LONG, SHORT = 4 * len(NAMES) + len(SHARED), len(SHARED) + 3
