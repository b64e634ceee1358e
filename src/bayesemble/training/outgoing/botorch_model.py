"""An ensemble as a surrogate of BoTorch: acquisition functions ask it for a posterior over functions.

Each network is one function that may be the true one. So a posterior at points X is the set of the networks' means
there, `(..., network, point, output)`, with their weights, and a sample of it is a network: what it says of several
points goes together. Observation noise is not in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.lazy import import_extra
from bayesemble.core.settings import require
from bayesemble.predictive import RealPredictive
from bayesemble.training.outgoing.module import EnsembleModule, module_of


def botorch_model(ensemble: Any, num_draws: int | None, seed: int) -> Any:
    """A model of BoTorch; see `Ensemble.to_botorch`."""
    package = import_extra("botorch.models.ensemble", "ensemble.to_botorch() needs botorch", "'bayesemble[botorch]'")
    module, task = module_of(ensemble, ["outputs"], num_draws, seed, None), ensemble.task
    require(task.output_shape is not None, "to_botorch needs to know what the network gives: from_modules(..., data=)")
    blank = torch.zeros(module.weights.numel(), 1, *task.output_shape, dtype=task.dtype, device=module.weights.device)
    num_outputs = _means(module, blank).shape[-1]

    class EnsembleSurrogate(package.EnsembleModel):  # type: ignore[misc, name-defined]
        """The networks of an ensemble, each a function that may be the true one."""

        def __init__(self) -> None:
            super().__init__(weights=module.weights)
            self.module, self._num_outputs = module, num_outputs

        def forward(self, X: Tensor) -> Tensor:  # noqa: N803  so BoTorch calls it
            """Means of each network at points `(..., point, feature)`: `(..., network, point, output)`."""
            own = next(leaf for leaf in self.module.parameters() if leaf.is_floating_point())  # BoTorch may move them
            rows = X.reshape(-1, X.shape[-1]).to(own.dtype)
            means = _means(self.module, self.module.member_outputs(rows)).to(X.dtype)
            return means.reshape(len(means), *X.shape[:-1], num_outputs).movedim(0, -3)

    return EnsembleSurrogate()


def _means(module: EnsembleModule, outputs: Tensor) -> Tensor:
    """Means of each network, `(network, row, output)`."""
    predictive = module.predictive(outputs)
    if not isinstance(predictive, RealPredictive):
        raise SettingError(f"a surrogate predicts numbers, and this ensemble gives a {type(predictive).__name__}")
    means = predictive.member_mean
    return means.unsqueeze(-1) if means.dim() == 2 else means
