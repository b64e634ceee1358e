"""Numbers that are not finite: none is ever saved over finite ones, nor returned, and what is said about it is so."""

import math
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.core.errors import BayesembleError, TrainingError
from bayesemble.training.run_folders import checkpoint
from faulting.fault import HARMLESS, LOSS, REFUSED, RIGHT, SILENT, UNCLEAR, Attempt, Verdict, check, heard
from helpers import quick_fit, small_mlp, table

LONG, SHORT = 300, 9
METHODS: dict[str, Callable[[], Any]] = {
    "deep_ensemble": lambda: be.DeepEnsemble(num_members=3),
    "repulsive": lambda: be.Repulsive(num_members=3),
    "svgd": lambda: be.Stein(num_members=3),
    "csgmcmc": lambda: be.CyclicalSGMCMC(num_members=2, cycles=2),
    "swag": lambda: be.SWAG(num_members=2, start=0.3, rank=2),
    "ecmp": lambda: be.ECMP(num_members=2),
}


class Trap(nn.Module):
    """A small network whose gradient, or output, is NaN the n-th time it runs; its loss is finite until then."""

    calls, at, output = 0, 0, False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(torch.relu(self.norm(self.first(x))))
        Trap.calls += 1
        if Trap.calls != Trap.at:
            return y
        if Trap.output:
            return y * math.nan
        return y + 0 * torch.sqrt((y - y.detach()).pow(2).sum())  # the root of zero: a slope of infinity times zero


def prepare(place: Path) -> Path:
    return place


def attempt(place: Path, number: int, chance: random.Random) -> Attempt:
    """A fault in training, in the data, in one member, or in prediction."""
    folder = place / f"run-{number}"
    name = list(METHODS)[number // 6 % len(METHODS)]
    executor = chance.choice(["loop", "vmap"])
    with_checkpoint = chance.random() < 0.7
    kinds: list[tuple[str, Callable[[], Verdict]]] = [
        (
            f"NaN gradient in {name} by {executor}",
            partial(trapped, folder, name, executor, chance, False, with_checkpoint),
        ),
        (
            f"NaN output in {name} by {executor}",
            partial(trapped, folder, name, executor, chance, True, with_checkpoint),
        ),
        (f"one member of three diverges by {executor}", partial(one_diverges, folder, executor, chance, "raise")),
        (f"one member of three is dropped by {executor}", partial(one_diverges, folder, executor, chance, "drop")),
        ("odd numbers in the data", partial(odd_data, folder, executor, chance)),
        ("odd numbers in prediction", partial(odd_prediction, chance)),
    ]
    words, act = kinds[number % len(kinds)]
    return Attempt(words + (", with checkpoints" if with_checkpoint else ""), act)


def trapped(
    folder: Path, name: str, executor: str, chance: random.Random, output: bool, with_checkpoint: bool
) -> Verdict:
    """Training meets a NaN at a random step."""
    Trap.calls, Trap.at, Trap.output = 0, 0, output
    train = partial(
        quick_fit, be.Task(Trap, be.Categorical()), table(), METHODS[name](), epochs=5, executor=executor, seed=1
    )
    with heard():
        train()
    total = Trap.calls
    Trap.calls, Trap.at = 0, chance.randrange(1, total + 1)
    return finite_or_refused(folder if with_checkpoint else None, Trap, train, f"at {Trap.at} of {total}")


def finite_or_refused(folder: Path | None, model: Callable, train: Callable[..., be.Ensemble], where: str) -> Verdict:
    """What is returned is finite, or training is refused and the checkpoint that it speaks of is finite."""
    try:
        with heard():
            ensemble = train(checkpoint=folder)
    except BayesembleError as error:
        Trap.at = 0
        words = str(error)
        there = folder is not None and folder.is_dir() and checkpoint.exists(folder)
        check(there or "checkpoint is intact" not in words, UNCLEAR, f"there is no checkpoint, but: {words}")
        if there and folder is not None:
            check_finite(be.load(folder, model), LOSS, "the checkpoint holds parameters that are not finite")
        return REFUSED, words
    Trap.at = 0
    check_finite(ensemble, SILENT, f"parameters that are not finite were returned, {where}")
    return HARMLESS, f"finite, {where}"


def check_finite(ensemble: be.Ensemble, outcome: str, words: str) -> None:
    """Parameters, what members are drawn from, and predictions are finite."""
    members, slots = ensemble.state.members, ensemble.state.slots
    leaves = [*members.params.values(), members.weights, *(leaf for own in slots.values() for leaf in own.values())]
    check(all(bool(leaf.isfinite().all()) for leaf in leaves if leaf.is_floating_point()), outcome, words)
    probs = ensemble.predict(table(8)[0]).probs
    check(bool(probs.isfinite().all()), outcome, f"predictions are not finite; {words}")


def one_diverges(folder: Path, executor: str, chance: random.Random, wish: str) -> Verdict:
    """One member has targets that its loss cannot hold: it is named, and where asked for, the others go on."""
    generator = torch.Generator().manual_seed(chance.randrange(10**6))
    bad, x, y = chance.randrange(3), *(torch.randn(3, 48, size, generator=generator) for size in (4, 1))
    y = y[..., 0]
    calm = y.clone()
    y[bad] *= chance.choice([1e25, 1e30, 3e37])
    task = be.Task(small_mlp, be.HeteroscedasticGaussian())
    wished: dict[str, Any] = {} if wish == "raise" else {"on_nonfinite": wish}

    def train(targets: Tensor, **options: Any) -> be.Ensemble:
        return quick_fit(task, be.PerMember(x, targets), executor=executor, epochs=3, **options)

    try:
        with heard() as said:
            ensemble = train(y, checkpoint=folder, **wished)
    except TrainingError as error:
        check(wish == "raise", LOSS, f"on_nonfinite='drop', but all members are lost: {error}")
        check(f"member {bad}" in str(error), UNCLEAR, f"it was member {bad}: {error}")
        there = folder.is_dir() and checkpoint.exists(folder)
        check(there or "checkpoint is intact" not in str(error), UNCLEAR, f"there is no checkpoint, but: {error}")
        return REFUSED, str(error)
    mean = ensemble.predict(x[0]).mean
    check(bool(mean.isfinite().all()), SILENT, "predictions are not finite")
    if float(ensemble.state.members.weights[bad]) == 0:
        others = [index for index in range(3) if index != bad]
        expected = train(calm).state.members.params
        same = all(
            torch.equal(leaf[others], expected[name][others]) for name, leaf in ensemble.state.members.params.items()
        )
        check(same, SILENT, "the other members are not what they are without the bad one")
        told = [*said, str(ensemble.history)]
        check(any(f"{bad}" in words for words in told), UNCLEAR, "nobody says which member was dropped")
        return RIGHT, f"member {bad} weighs nothing, the others are what they are alone"
    return HARMLESS, "finite"


def odd_data(folder: Path, executor: str, chance: random.Random) -> Verdict:
    """One cell of inputs or targets is not finite, or so large that its square is not."""
    generator = torch.Generator().manual_seed(chance.randrange(10**6))
    x, y = torch.randn(48, 4, generator=generator), torch.randn(48, generator=generator)
    value, row = chance.choice([math.nan, math.inf, -math.inf, 1e30, -3e38]), chance.randrange(48)
    which = chance.choice(["inputs", "targets", "validation"])
    odd = (x.clone(), y.clone())
    odd[0 if which == "inputs" else 1][row, ...] = value
    task = be.Task(small_mlp, be.HeteroscedasticGaussian())
    data, validation = ((x, y), odd) if which == "validation" else (odd, None)
    options = {"validation": validation, "keep_best": True} if validation else {}
    train = partial(quick_fit, task, data, executor=executor, epochs=3, **options)
    found = finite_or_refused_real(folder, train)
    if not math.isfinite(value):
        check(found[0] == REFUSED, SILENT, f"{value} in {which} was taken")
    return found[0], f"{value:g} in {which}, row {row}: {found[1]}"


def finite_or_refused_real(folder: Path, train: Callable[..., be.Ensemble]) -> Verdict:
    """The same for real targets, where only weights and means are looked at."""
    try:
        with heard():
            ensemble = train(checkpoint=folder)
    except BayesembleError as error:
        there = folder.is_dir() and checkpoint.exists(folder)
        check(there or "checkpoint is intact" not in str(error), UNCLEAR, f"there is no checkpoint, but: {error}")
        return REFUSED, str(error)
    finite = all(bool(leaf.isfinite().all()) for leaf in ensemble.state.members.params.values())
    check(finite, SILENT, "parameters that are not finite were returned")
    check(bool(ensemble.predict(table(8)[0]).mean.isfinite().all()), SILENT, "means that are not finite")
    return HARMLESS, "finite"


def odd_prediction(chance: random.Random) -> Verdict:
    """One cell of rows to predict is odd: refused with its place, or the prediction is finite."""
    x = table(12)[0].clone()
    value, row = chance.choice([math.nan, math.inf, -math.inf, 1e30, -3e38]), chance.randrange(12)
    x[row, chance.randrange(4)] = value
    classes = chance.random() < 0.5
    ensemble = fitted(classes)
    try:
        found = ensemble.predict(x)
    except BayesembleError as error:
        check(f"row {row}" in str(error), UNCLEAR, f"it was row {row}: {error}")
        return REFUSED, str(error)
    check(math.isfinite(value), SILENT, f"{value} was predicted from")
    numbers = [found.probs] if classes else [found.mean, found.std]
    check(all(bool(one.isfinite().all()) for one in numbers), SILENT, f"an input of {value:g} gives numbers not finite")
    return RIGHT, f"finite for {value:g}"


@cache
def fitted(classes: bool) -> be.Ensemble:
    """An ensemble that predicts."""
    x, y = table()
    likelihood = be.Categorical() if classes else be.HeteroscedasticGaussian()
    return quick_fit(be.Task(small_mlp, likelihood), (x, y if classes else x[:, 0]))
