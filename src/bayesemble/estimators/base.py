"""What classifier and regressor share: parameters, training and prediction."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from bayesemble.core.arrays import NumpyArray
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.members import State
from bayesemble.core.settings import require
from bayesemble.data.catalogue import location_and_scale
from bayesemble.estimators.recipe import Recipe, Training, own_defaults, training_on
from bayesemble.methods import METHODS, method_class
from bayesemble.predictive import Predictive
from bayesemble.task.likelihoods import Categorical, Likelihood
from bayesemble.task.networks import ModelSource, new_module
from bayesemble.training.ensemble import Ensemble

_NESTED = "method__"
_OWN = ("num_members", "learning_rate")  # settings of a method that are parameters of the estimator itself


class EnsembleEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share.

    Args:
        method: Name of a method in `bayesemble.METHODS`.
        num_members: Independently started members; None is the method's own default. The method "map" has one.
        epochs: Passes over the rows, at most; None takes 3000 steps, but 20 passes at least and 200 at most.
        batch_size: Rows per step; None takes a sixteenth of all, between 16 and 256. Methods such as hmc take all.
        learning_rate: None is 0.003, falling along half a cosine unless method__schedule says otherwise; for methods
            that gather networks along training it is a constant 0.001, for samplers their own default.
        width: Units of each layer; None is 64, or 128 from 10,000 rows on.
        depth: Residual blocks of the network.
        embedding: What numbers become at the input: "periodic", "piecewise" or "none".
        dropout: Rate of dropout layers in training. The method "mc_dropout" has 0.1 if this is 0.
        prior_std: Standard deviation of a normal prior of the weights; None is the vague prior of a task.
        noise: Of a real target: "student", whose heavy tails bear outliers, or "normal". Classes have none.
        early_stopping: Whether to hold rows out and stop when the loss on them no longer falls. "auto": if the
            method can, and there are at least 50 rows.
        validation_fraction: Share of the rows to hold out; "auto" takes at least 10.
        patience: Epochs without a better loss after which training stops; None is an eighth of all, at least 5.
        device: Where to train, such as "cuda" or "mps"; None is the CPU. Predictions are made on the CPU, in float64.
        random_state: None, a number or a `RandomState`.
        **method__settings: Settings of the method, each as `method__NAME`.

    `fit` takes `sample_weight`: the log joint is that of rows repeated so many times, so the sum of the weights is the
    number of rows that the likelihood stands for, and a row of weight 0 is as if it were not there. Standardisation,
    the loss that stops training and the width of the noise go by the weights too. Batches, epochs and which rows are
    held out go by the rows as they are: a fit on repeated rows ends with the same weights, up to rounding, if all rows
    are one batch and none is held out. `score` takes `sample_weight` as scikit-learn has it.

    After fitting, `ensemble_` is the `Ensemble`, and `n_iter_` the number of epochs.
    """

    def __init__(
        self,
        method: str = "deep_ensemble",
        *,
        num_members: int | None = 10,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        width: int | None = None,
        depth: int = 1,
        embedding: str = "periodic",
        dropout: float = 0.0,
        prior_std: float | None = None,
        noise: str = "student",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        patience: int | None = None,
        device: str | None = None,
        random_state: Any = None,
        **method__settings: Any,
    ) -> None:
        for name in method__settings:
            if not name.startswith(_NESTED):
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}; a method's setting is {_NESTED}name")
        self.method = method
        self.num_members = num_members
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.width = width
        self.depth = depth
        self.embedding = embedding
        self.dropout = dropout
        self.prior_std = prior_std
        self.noise = noise
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self._settings = method__settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; those of the method too that were given, and if deep, also those at their defaults."""
        known = deep and isinstance(self.method, str) and self.method in METHODS
        own: dict[str, Any] = {}
        if known:
            own = {f.name: f.default for f in fields(method_class(self.method))} | own_defaults(self.method, {})
        nested = {_NESTED + name: value for name, value in own.items() if name not in _OWN}
        return super().get_params(deep=False) | nested | self._settings

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of the method as `method__name`."""
        super().set_params(**{name: value for name, value in params.items() if not name.startswith(_NESTED)})
        nested = {name: value for name, value in params.items() if name.startswith(_NESTED)}
        valid = self.get_params(deep=True)
        for name in nested:
            if name not in valid:
                raise SettingError(f"invalid parameter {name!r} of {self}; valid ones are {', '.join(valid)}")
        self._settings = self._settings | nested
        return self

    def predictive(self, X: Any) -> Predictive:  # noqa: N803
        """The whole predictive distribution, in the original units, with all members."""
        return self._predictive(X, keep_members=True)

    def predict_uncertainty(self, X: Any) -> dict[str, NumpyArray]:  # noqa: N803
        """Doubt of each row: "aleatoric", which more data would not remove, "epistemic", which it would, and "total".

        Variances for regression, entropies in nats for classification; the first two add up to the third.
        """
        predictive = self._predictive(X)
        uncertainty = {"aleatoric": predictive.aleatoric.numpy(), "epistemic": predictive.epistemic.numpy()}
        return uncertainty | {"total": uncertainty["aleatoric"] + uncertainty["epistemic"]}

    def _predictive(self, X: Any, keep_members: bool = False) -> Predictive:  # noqa: N803
        check_is_fitted(self)
        refuse_words(X)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        return self.ensemble_.predict((x - self._shift) / self._scale, keep_members=keep_members)

    def _rows_that_count(
        self, x: NumpyArray, y: NumpyArray, sample_weight: Any
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray | None]:
        """Rows of positive weight, their targets and their weights; None if all count alike."""
        if sample_weight is None:
            return x, y, None
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        counting = weights > 0
        if not counting.any():  # newer versions of scikit-learn have said so already
            raise DataError("all sample weights are 0: there is nothing to learn from")
        return x[counting], y[counting], weights[counting]

    def _training_on(
        self, x: NumpyArray, y: NumpyArray, likelihood: Likelihood, num_outputs: int, weights: NumpyArray | None
    ) -> Training:
        """How to train on checked rows, with labels 0, 1, ... or standardised targets, and maybe weights."""
        self._shift, self._scale = location_and_scale(x, 0, weights)
        x = ((x - self._shift) / self._scale).astype(np.float32)
        recipe = self._recipe()
        method = recipe.make_method()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held_out = recipe.hold_out(method, y, isinstance(likelihood, Categorical), seed)
        network = recipe.make_network(method, x, [], num_outputs)
        return training_on(recipe, method, network, likelihood, x, y, held_out, seed, weights=weights)

    def _take(self, ensemble: Ensemble) -> Self:
        """Be fitted: the ensemble is what the training has come to that `_prepare` gave."""
        self.ensemble_ = _in_double(ensemble)
        self.n_iter_ = len(ensemble.history)
        return self

    def _recipe(self) -> Recipe:
        settings = {name.removeprefix(_NESTED): value for name, value in self._settings.items()}
        for name in _OWN:
            require(name not in settings, f"{name} is a parameter of its own: say {name}, not {_NESTED}{name}")
        entry = METHODS.get(self.method) if isinstance(self.method, str) else None
        if self.num_members is not None and (entry is None or "num_members" not in entry.fixed):
            settings["num_members"] = self.num_members
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        same = {f.name: getattr(self, f.name) for f in fields(Recipe) if f.name not in ("settings", "counts")}
        return Recipe(**same, settings=settings)


def refuse_words(X: Any) -> None:  # noqa: N803
    """Refuse a data frame with columns that are no numbers, by their names."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return
    if named := [str(name) for name in X.columns if not _holds_numbers(X[name])]:
        raise DataError(
            f"inputs must be numbers, but columns hold text, categories or dates: {', '.join(named)}; encode them, as "
            "by sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or write the table to a file for "
            "`bayesemble fit`, which encodes such columns itself"
        )


def _holds_numbers(column: Any) -> bool:
    if getattr(getattr(column, "dtype", None), "kind", "O") in "biuf":
        return True
    try:
        np.asarray(column, np.float64)
    except (ValueError, TypeError):
        return False
    return True


def _in_double(ensemble: Ensemble) -> Ensemble:
    """The ensemble in double precision on the CPU, so that a row's prediction does not depend on the rows beside it."""
    task, state = ensemble.task, ensemble.state.to(torch.device("cpu"))
    slots = {name: leaves for name, leaves in state.slots.items() if name not in ensemble.method.training_slots}
    state = State(state.members, slots).map(lambda _, leaf: leaf.double() if leaf.is_floating_point() else leaf)
    assert isinstance(task.example, torch.Tensor)
    task = replace(task, model=partial(_double, task.model), example=task.example.double())
    return replace(ensemble, task=task, state=state)


def _double(source: ModelSource) -> nn.Module:
    return new_module(source).double()
