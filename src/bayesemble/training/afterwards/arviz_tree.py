"""Ensembles for ArviZ: weights of networks, and what each thinks of rows with targets, by chain and draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesemble.core.arrays import NumpyArray, numbers
from bayesemble.core.errors import SettingError
from bayesemble.core.lazy import import_extra


def to_arviz(ensemble: Any, data: Any, num: int | None, seed: int) -> Any:
    """See `Ensemble.to_arviz`."""
    base = import_extra("arviz_base", "to_arviz makes a tree of the package arviz-base", "'bayesemble[frames]'")
    own = ensemble.weighed()
    networks, chains = own.draw(num, seed).unshared(), None if num is not None else own.method.chains(own.state)
    if (networks.weights != networks.weights[0]).any():
        raise SettingError(
            "ArviZ gives every draw the same weight, and these networks have unequal ones; say num=1000 to draw "
            "so many by their weights"
        )
    shape = (1, networks.num_members) if chains is None else (own.num_members, chains.num_draws)

    def by_chain(values: Tensor) -> NumpyArray:
        return values.detach().cpu().numpy().reshape(*shape, *values.shape[1:])

    groups: dict[str, dict[str, Any]] = {
        "posterior": {name: by_chain(leaf) for name, leaf in networks.params.items()},
        "sample_stats": {"network": np.arange(networks.num_members).reshape(shape)},
    }
    if data is not None:
        inputs, targets = data
        predictive = own.predict(inputs, num_draws=num, seed=seed)
        if predictive.num_members != networks.num_members:
            raise SettingError(
                f"{type(own.method).__name__} predicts in closed form, without networks whose log likelihoods could be "
                "told; say num=100 to draw so many"
            )
        with torch.no_grad():
            groups["log_likelihood"] = {"targets": by_chain(predictive.member_log_prob(targets))}
        groups["observed_data"] = {"targets": numbers(targets, "targets").cpu().numpy()}
    told = "networks are draws of one chain" if chains is None else "each member is a chain of a sampler"
    return base.from_dict(groups, attrs={"/": {"method": type(own.method).__name__, "chains": told}})
