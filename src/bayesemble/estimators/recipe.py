"""How networks for tables are made and trained: the one recipe of the estimators and of the command line.

What is not said follows from the number of rows, so that small tables are not starved of steps and large ones not
overfed. Training stops early by the loss on rows that are held out, unless the method gathers networks along the whole
of training. If 90 % intervals of a real target hold too few of these rows, the noise is widened by one factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import setting, validate
from bayesemble.execute.loop import Loop
from bayesemble.methods import Method, make_method, method_class
from bayesemble.methods.gradient import GradientMethod
from bayesemble.metrics import fit_spread
from bayesemble.models.table_networks import EMBEDDINGS, quantile_edges, tabular
from bayesemble.task.likelihoods import (
    Heteroscedastic,
    HeteroscedasticGaussian,
    HeteroscedasticStudent,
    Likelihood,
    NegativeBinomial,
    Poisson,
    ZeroInflatedPoisson,
)
from bayesemble.task.priors import NormalPrior, VaguePrior
from bayesemble.task.task import Task
from bayesemble.training.ensemble import Ensemble
from bayesemble.training.fit import fit
from bayesemble.training.run_folders import checkpoint as checkpoints

_FALLING_RATE, _CONSTANT_RATE = 3e-3, 1e-3
_DROPOUT = 0.1  # of a method that needs dropout layers
_LARGE = 10_000  # rows
_STEPS = 3000  # gradient steps that a small table is given at most
_FEWEST_HELD_OUT = 10  # rows that "auto" stops by, and only if they are at most a fifth
_LEVEL = 0.9  # of the intervals that shall hold their share of the held-out rows
_NOISES = {"student": HeteroscedasticStudent(), "normal": HeteroscedasticGaussian()}
_COUNTS = {
    "poisson": (Poisson(), 1),
    "negative_binomial": (NegativeBinomial(), 2),
    "zero_inflated": (ZeroInflatedPoisson(), 2),
}


@dataclass(frozen=True)
class Recipe:
    """A method, its network and its training; None leaves a choice to the recipe."""

    method: str = setting("deep_ensemble", "name of a method")
    settings: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "settings of the method"})
    epochs: int | None = setting(None, "passes over the rows, at most", least=1)
    batch_size: int | None = setting(None, "rows of each step", least=1)
    width: int | None = setting(None, "units of each layer", least=1)
    depth: int = setting(1, "residual blocks of the network", least=0)
    embedding: str = setting("periodic", "what numbers become at the input", choices=EMBEDDINGS)
    dropout: float = setting(0.0, "rate of dropout layers in training", within="[0, 1)")
    prior_std: float | None = setting(
        None, "standard deviation of a normal prior of the weights; None: the vague prior of a task", above=0
    )
    noise: str = setting("student", "noise of a real target: student, with heavy tails, or normal", choices=_NOISES)
    counts: str = setting(
        "poisson", "distribution of counts: poisson, negative_binomial or zero_inflated", choices=_COUNTS
    )
    early_stopping: bool | str = setting("auto", "whether to stop by the loss on held-out rows", choices=("auto",))
    validation_fraction: float = setting(
        0.1, "share of the training rows that are held out for early stopping", within="(0, 1)"
    )
    patience: int | None = setting(None, "epochs without a better loss after which training stops", least=1)
    device: str | None = setting(None, "where to train, such as cuda or mps; None is the CPU")

    def __post_init__(self) -> None:
        validate(self)

    def make_method(self) -> Method:
        """The method, with the defaults of `own_defaults`."""
        return make_method(self.method, **(own_defaults(self.method, self.settings) | dict(self.settings)))

    def make_network(
        self, method: Method, numbers: NumpyArray, category_sizes: list[int], num_outputs: int
    ) -> dict[str, Any]:
        """Arguments of `table_network` for rows of numbers `(row, column)` and columns of categories."""
        edges = quantile_edges(numbers).tolist() if self.embedding == "piecewise" and numbers.shape[1] else None
        return {
            "num_numbers": numbers.shape[1],
            "category_sizes": category_sizes,
            "num_outputs": num_outputs,
            "width": (64 if len(numbers) < _LARGE else 128) if self.width is None else self.width,
            "depth": self.depth,
            "embedding": self.embedding if numbers.shape[1] else "none",
            "edges": edges,
            "dropout": self.dropout or (_DROPOUT if method.keeps_dropout else 0.0),
        }

    def real_likelihood(self) -> Likelihood:
        """That of a real target; its noise depends on the row."""
        return _NOISES[self.noise]

    def count_likelihood(self) -> tuple[Likelihood, int]:
        """That of a count, and how many outputs it reads."""
        return _COUNTS[self.counts]

    def hold_out(self, method: Method, y: NumpyArray, labels: bool, seed: int) -> NumpyArray:
        """Which rows are held out: of each class its share, and never all."""
        wish, share = self.early_stopping, self.validation_fraction
        chosen = np.zeros(len(y), dtype=bool)
        able = can_stop_early(method)
        if wish is True and not able:
            raise SettingError(
                f"{self.method} needs training to go on to the end, so early_stopping=True cannot be honoured; "
                'use "auto" or False'
            )
        if wish is False or not able or (wish == "auto" and len(y) < 5 * _FEWEST_HELD_OUT):
            return chosen
        shuffled = np.random.default_rng(seed).permutation(len(y))
        if labels:
            # Sorted by class, in random order within each: rows at equal distances are of each class its share.
            shuffled = shuffled[np.argsort(y[shuffled], kind="stable")]
        num = max(round(share * len(y)), 1 if wish is True else _FEWEST_HELD_OUT)
        chosen[shuffled[((np.arange(num) + 0.5) * len(y) / num).astype(int)]] = True
        if labels:
            chosen &= np.isin(y, y[~chosen])  # a class that would be held out altogether stays
        if chosen.all():
            raise DataError(f"n_samples={len(y)} is too few to hold some out; use early_stopping=False")
        return chosen


def table_network(*, edges: Any = None, offset: float = 0.0, **settings: Any) -> nn.Module:
    """The network for a table, see `tabular`; its first output starts around `offset`."""
    network = tabular(edges=None if edges is None else torch.tensor(edges), **settings)
    if offset:
        with torch.no_grad():
            network.output.bias[0].add_(offset)
    return network


def own_defaults(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that differ from those of the method: gradient methods learn at 0.003, falling along half a cosine.

    If the method gathers networks along training, or trains its members in turn, the rate does not fall, and is 0.001.
    """
    if not issubclass(method_class(name), GradientMethod):
        return {}
    if can_stop_early(make_method(name, **settings)):
        return {"learning_rate": _FALLING_RATE, "schedule": "cosine"}
    return {"learning_rate": _CONSTANT_RATE}


def can_stop_early(method: Method) -> bool:
    """Whether a run may end before its last epoch: not if networks are gathered along it, or members come in turn."""
    return not method.needs_every_epoch


@dataclass(frozen=True)
class Training:
    """A table and how it is trained on."""

    task: Task
    method: Method
    data: tuple[Any, ...]
    settings: dict[str, Any]
    """Those of `fit`."""
    held_out: tuple[Any, ...] | None
    """Rows that are held out, their targets, and their weights if they have any."""
    network: dict[str, Any]
    """Arguments of `table_network`."""

    def run(self, progress: bool = False) -> Ensemble:
        """Train, and complete what was trained."""
        return self.completed(fit(self.task, self.method, self.data, progress=progress, **self.settings))

    def completed(self, ensemble: Ensemble) -> Ensemble:
        """What was trained, with noise that is wide enough for the rows that were held out."""
        if self.held_out is None or not isinstance(self.task.likelihood, Heteroscedastic):
            return ensemble
        # Only wider: these rows have chosen the epoch too, so they look better than others will.
        inputs, targets, *weights = self.held_out
        found = fit_spread(ensemble.predict(inputs), targets, _LEVEL, *weights)
        return stretched(ensemble, max(1.0, found.value))


def training_on(
    recipe: Recipe,
    method: Method,
    network: dict[str, Any],
    likelihood: Likelihood,
    inputs: NumpyArray | tuple[NumpyArray, ...],
    targets: NumpyArray,
    held_out: NumpyArray,
    seed: int,
    folder: Path | None = None,
    weights: NumpyArray | None = None,
) -> Training:
    """Say how to train on the rows of a table, with labels 0, 1, ..., counts or standardised targets.

    Args:
        method: What `recipe.make_method` gave.
        network: What `recipe.make_network` gave.
        likelihood: How outputs are read.
        inputs: Standardised numbers `(row, column)`, or a pair of them and the indices of categories.
        targets: `(row, ...)`.
        held_out: Which rows the loss that stops training is taken on, as `recipe.hold_out` gives them; or none.
        seed: All randomness derives from it.
        folder: Where checkpoints go; a run that is there already goes on.
        weights: What each row counts for, all positive; None counts all alike.
    """

    def rows_of(chosen: NumpyArray) -> tuple[Any, ...]:
        given = _rows(inputs, chosen), targets[chosen]
        return given if weights is None else (*given, weights[chosen])

    rows = int((~held_out).sum())
    batch_size = recipe.batch_size
    if batch_size is None and not method.full_batch:
        batch_size = 2 ** round(math.log2(min(max(rows / 16, 16), 256)))
    steps = math.ceil(rows / min(batch_size or rows, rows))
    epochs = min(max(_STEPS // steps, 20), 200) if recipe.epochs is None else recipe.epochs
    prior = VaguePrior() if recipe.prior_std is None else NormalPrior(recipe.prior_std)
    options: dict[str, Any] = {}
    if held_out.any():
        patience = max(epochs // 8, 5) if recipe.patience is None else recipe.patience
        options = {"validation": rows_of(held_out), "patience": patience}
    if folder is not None:
        options |= {"checkpoint": folder, "checkpoint_every": max(epochs // 20, 1)}
        options["resume"] = checkpoints.exists(folder)
    options |= {"epochs": epochs, "batch_size": batch_size, "seed": seed, "device": recipe.device}
    options["executor"] = Loop(draws_by_vmap=True) if method.num_members == 1 else "vmap"
    task = Task(partial(table_network, **network), likelihood, prior)
    judged_by = rows_of(held_out) if held_out.any() else None
    return Training(task, method, rows_of(~held_out), options, judged_by, network)


def stretched(ensemble: Ensemble, factor: float) -> Ensemble:
    """The same ensemble of a real target, with noise that is wider by a factor."""
    likelihood = ensemble.task.likelihood
    assert isinstance(likelihood, Heteroscedastic)
    return replace(ensemble, task=replace(ensemble.task, likelihood=replace(likelihood, stretch=factor)))


def stretch_of(ensemble: Ensemble) -> float:
    """How much wider its noise was made than it had been learned."""
    likelihood = ensemble.task.likelihood
    return likelihood.stretch if isinstance(likelihood, Heteroscedastic) else 1.0


def _rows(inputs: NumpyArray | tuple[NumpyArray, ...], mask: NumpyArray) -> Any:
    return tuple(part[mask] for part in inputs) if isinstance(inputs, tuple) else inputs[mask]
