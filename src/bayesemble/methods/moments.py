"""Mean and covariance of the weights of an ensemble, as the prior of the next one.

Where a method has a Gaussian around each member, its moments are known; otherwise they are those of the networks that
it averages over. Several members are a mixture: by the law of total variance, with weights p_m,

    mean = sum_m p_m mean_m,     covariance = sum_m p_m (covariance_m + (mean_m - mean)(mean_m - mean)')
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayesemble.core.errors import SettingError
from bayesemble.core.members import Members, State
from bayesemble.core.settings import require
from bayesemble.core.types import Leaves
from bayesemble.methods.base import Method
from bayesemble.task.posterior_prior import PosteriorPrior
from bayesemble.task.running import network_leaves

COVARIANCES = ("diag", "full")


def prior_of(
    method: Method, state: State, networks: Callable[[], Members], covariance: str, least: float
) -> PosteriorPrior:
    """A normal prior with the moments of the weights: Bayes' rule again, with what is known by now.

    It is exact where the posterior is normal, as of linear regression, and with "diag" its weights independent. A whole
    covariance is for methods that look at all weights at once, such as `DeepEnsemble`, `HMC` and `Laplace`. The mean of
    members that lie in different modes may be no good network: `ensemble.keep([0]).as_prior()` is that of one mode.
    """
    require(covariance in COVARIANCES, f"covariance is one of {', '.join(COVARIANCES)}, got {covariance!r}")
    require(least >= 0, f"least is a standard deviation, 0 or more, got {least}")
    if covariance == "full":
        require(least == 0, "a whole covariance is taken as it is: leave least out, or use covariance='diag'")
        return _with_covariance(method, state)
    means, variances = _by_method(method, state) or _by_networks(networks())
    variances = {name: leaf.clamp_min(least**2) for name, leaf in variances.items()}
    if still := [name for name, leaf in variances.items() if not (leaf > 0).all()]:
        raise SettingError(
            f"{', '.join(still[:3])} has weights without any spread in this ensemble of {type(method).__name__}, which "
            "as a prior could never move again; use a method that spreads all weights, such as laplace with "
            "select='all', or say how tightly such weights are held: as_prior(least=0.01)"
        )
    return PosteriorPrior.of(means, variances)


def _by_method(method: Method, state: State) -> tuple[Leaves, Leaves] | None:
    """Moments of the mixture of the Gaussians around the members, if there are any."""
    found = method.normal_weights(state)
    if found is None:
        return None
    members, variances = (network_leaves(part) for part in found)
    means = {name: _average(state.members.weights, leaf) for name, leaf in members.items()}
    total = {
        name: _average(state.members.weights, variances[name] + (leaf - means[name]).square())
        for name, leaf in members.items()
    }
    return means, total


def _by_networks(networks: Members) -> tuple[Leaves, Leaves]:
    """Mean and variance over networks, without the bias of few of them: the sum of squares over 1 - sum_m p_m^2."""
    weights, params = networks.weights, network_leaves(networks.params)
    share = 1 - float(weights.double().square().sum())
    require(share > 1e-12, "a single network has no spread to make a prior of; take several, or laplace or swag")
    means = {name: _average(weights, leaf) for name, leaf in params.items()}
    away = {name: (leaf - means[name]).square() for name, leaf in params.items()}
    return means, {name: _average(weights, leaf) / share for name, leaf in away.items()}


def _with_covariance(method: Method, state: State) -> PosteriorPrior:
    found = method.weight_covariances(state)
    params = network_leaves(state.members.params)
    if found is None or set(found[0]) != params.keys():
        raise SettingError(
            "the covariance of all weights is known of Laplace(structure='full', select='all'), once it is trained; "
            "use as_prior() with a standard deviation for each weight"
        )
    names, covariances = found
    weights = state.members.weights
    joined = torch.cat([params[name].double().flatten(1) for name in names], dim=1)
    away = joined - _average(weights, joined)
    total = _average(weights, covariances.double() + away.unsqueeze(2) * away.unsqueeze(1))
    sizes = [params[name][0].numel() for name in names]
    variances = dict(zip(names, total.diagonal().split(sizes), strict=True))
    means = {name: _average(weights, params[name]) for name in names}
    shaped = {name: variances[name].reshape(means[name].shape).to(means[name].dtype) for name in names}
    return PosteriorPrior.of(means, shaped, total)


def _average(weights: Tensor, values: Tensor) -> Tensor:
    return torch.tensordot(weights.to(values), values, dims=1)
