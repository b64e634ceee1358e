"""Weights of members: a deep ensemble as empirical Bayes, and stacking.

The members of an ensemble are the atoms of a learned prior, pi = sum_m pi_m delta(theta_m). With ll_m the log
likelihood of all training rows under member m, everything Bayes' rule says is a sum over members:

    log evidence        log m = log sum_m pi_m exp(ll_m)
    posterior weights   w_m   = pi_m exp(ll_m) / m

Equal weights are the exact posterior only if all ll_m are equal, as they are where each member has reached the maximum
of the likelihood: then this prior has the largest evidence of all priors, and averaging members is exact inference
under it. Members that are trained under a prior are maxima of ll_m + log p(theta_m) instead, and the same holds with
that penalised likelihood in place of ll_m: `evidence(..., penalised=True)`.

Weights from the training likelihood say which member
the training data prefer; which average predicts best is a question for held-out data: `stacking` and `pseudo_bma`.

Reference: Loaiza-Ganem et al. (2025), "Deep Ensembles Secretly Perform Empirical Bayes"; Yao et al. (2018), "Using
stacking to average Bayesian predictive distributions".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesemble.core import seeds
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require
from bayesemble.metrics import effective_members
from bayesemble.task.running import network_leaves
from bayesemble.training.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the training data say of the members. All logs are in nats, all sums in double precision."""

    log_likelihoods: Tensor
    """(member,): ll_m, the sum over all rows of log p(y|x, theta_m)."""
    prior_weights: Tensor
    """(member,): pi_m."""
    log_priors: Tensor | None = None
    """(member,): log p(theta_m) under the task's prior, if that is counted; then ll_m + log p(theta_m) stands for ll_m
    in all that follows."""

    @property
    def objectives(self) -> Tensor:
        """(member,): ll_m, or ll_m + log p(theta_m): what training climbs."""
        return self.log_likelihoods if self.log_priors is None else self.log_likelihoods + self.log_priors

    @property
    def log_evidence(self) -> float:
        """log sum_m pi_m exp(ll_m)."""
        return float(torch.logsumexp(self._log_joint(), 0))

    @property
    def weights(self) -> Tensor:
        """Posterior weights of the members, `(member,)`."""
        return torch.softmax(self._log_joint(), 0)

    def tempered(self, temperature: float) -> Tensor:
        """Weights proportional to pi_m exp(ll_m / temperature); the number of rows gives nearly equal ones."""
        require(temperature > 0, f"temperature must be positive, got {temperature}")
        return torch.softmax(self.prior_weights.log() + self.objectives / temperature, 0)

    @property
    def elbo(self) -> float:
        """The bound on the log evidence that equal weights reach: mean_m ll_m - KL(equal || pi)."""
        return float(self.objectives.mean()) - _divergence_from_equal(self.prior_weights)

    @property
    def gap(self) -> float:
        """What equal weights cost against the posterior: log evidence - elbo = KL(equal || posterior), at least 0."""
        return self.log_evidence - self.elbo

    @property
    def deficit(self) -> float:
        """What the prior costs against its best atom: max_m ll_m - log evidence, between 0 and -log pi of that atom."""
        return float(self.objectives.max()) - self.log_evidence

    @property
    def likelihood_range(self) -> float:
        """max ll - min ll: equal weights are nearly exact only if this is of the order of 1."""
        return float(self.objectives.max() - self.objectives.min())

    @property
    def effective_members(self) -> float:
        """How many members really count by their posterior weights, 1 / sum_m w_m^2."""
        return effective_members(self.weights)

    def _log_joint(self) -> Tensor:
        return self.prior_weights.log() + self.objectives


def evidence(ensemble: Ensemble, data: Any, *, penalised: bool = False) -> Evidence:
    """Evidence of the ensemble's point-mass prior, its current weights being the prior weights.

    Pass the whole training set, without augmentation: a batch scaled up is useless for weights, since a difference of
    0.001 in the mean loss is 60 nats on 60,000 rows. With `penalised`, the log density of each member under the task's
    prior is added to its log likelihood: what counts for members that are MAP points.
    """
    log_probs = member_log_probs(ensemble, data)
    log_priors = log_prior_of_members(ensemble) if penalised else None
    return Evidence(log_probs.sum(1), ensemble.draw().weights.double(), log_priors)


def log_prior_of_members(ensemble: Ensemble) -> Tensor:
    """log p(theta_m) of every network that predictions average over under the task's prior, `(network,)`, in double."""
    task = ensemble.task
    if task.prior is None:
        raise SettingError("the task has no prior, so its members are not penalised; leave out penalised=True")
    require(not task.mixed, "networks of different architectures have densities that cannot be compared")
    leaves = {name: leaf.double() for name, leaf in network_leaves(ensemble.draw().unshared().params).items()}
    return task.prior.log_prob(leaves, task.scales)


def stacking(ensemble: Ensemble, data: Any) -> Tensor:
    """Weights `(member,)` that maximise the log score of the average on held-out data.

    maximise  mean_n log sum_m w_m p_m(y_n|x_n)   over   w >= 0, sum w = 1

    A convex problem, solved to its optimum. Members that add nothing get weight 0 (up to 1e-9). A member that stands
    for many networks (components, chains, Gaussians) is the average of those it draws.
    """
    return stacking_weights(_log_probs_of_members(ensemble, data))


def pseudo_bma(ensemble: Ensemble, data: Any, *, resamples: int = 1000, seed: int = 0) -> Tensor:
    """Pseudo-BMA+ weights `(member,)`: softmax of the log score on held-out data, averaged over a Bayesian bootstrap.

    It is more cautious than the softmax of the plain log score, which a single row can decide.
    """
    log_probs = _log_probs_of_members(ensemble, data)
    num = log_probs.shape[1]
    generator = seeds.generator(seed, "bayesian bootstrap")
    shares = torch.empty(resamples, num, dtype=torch.float64).exponential_(generator=generator)
    totals = num * (shares / shares.sum(1, keepdim=True)) @ log_probs.T
    return torch.softmax(totals, dim=1).mean(0)


def select(ensemble: Ensemble, data: Any, budget: int) -> list[int]:
    """The members of a small ensemble: added one by one, each time the one that helps the log score most.

    `ensemble.keep(select(ensemble, data, budget=3))` is the ensemble of those three.

    Reference: Caruana et al. (2004), "Ensemble selection from libraries of models".
    """
    log_probs = _log_probs_of_members(ensemble, data)
    require(1 <= budget <= len(log_probs), f"the budget is between 1 and {len(log_probs)}, all members, got {budget}")
    chosen: list[int] = []
    total = torch.full_like(log_probs[0], -math.inf)
    for _ in range(budget):
        candidates = torch.logaddexp(total, log_probs).mean(1)
        candidates[chosen] = -math.inf
        chosen.append(int(candidates.argmax()))
        total = torch.logaddexp(total, log_probs[chosen[-1]])
    return chosen


def member_log_probs(ensemble: Ensemble, data: Any) -> Tensor:
    """log p(y_n|x_n, theta_m) of every network that predictions average over, in double precision, `(network, row)`."""
    parts = [predictive.member_log_prob(targets).double() for predictive, targets in ensemble.predictions(data)]
    return torch.cat(parts, dim=1)


def _log_probs_of_members(ensemble: Ensemble, data: Any) -> Tensor:
    """log p_m(y_n|x_n) of what `Ensemble.reweight` and `keep` take, `(member, row)`.

    A member that draws networks, or has kept several, predicts by their average.
    """
    networks = ensemble.networks()
    if not networks.sampled and networks.joined().num_members == ensemble.num_members:
        return member_log_probs(ensemble, data)
    require(
        ensemble.num_members > 1,
        f"members are weighed against one another, and this ensemble of {type(ensemble.method).__name__} has one, "
        "whose networks have the weights that its method gives them; train it with num_members=2 or more",
    )
    members = [ensemble.keep([index]) for index in range(ensemble.num_members)]
    return torch.stack([_log_probs_of_average(member, data) for member in members])


def _log_probs_of_average(ensemble: Ensemble, data: Any) -> Tensor:
    return torch.cat([predictive.log_prob(targets).double() for predictive, targets in ensemble.predictions(data)])


def stacking_weights(log_probs: Tensor) -> Tensor:
    """Solve the stacking problem for given log probabilities `(member, row)`, by an interior-point method.

    Newton's method on  -mean_n log sum_m w_m p_mn - t sum_m log w_m  with sum w = 1, for t falling to 1e-13.
    """
    scale = log_probs.amax(0)
    if not scale.isfinite().all():
        row = int((~scale.isfinite()).nonzero()[0])
        raise DataError(f"row {row} is impossible (or not a number) under every member, so no weights can be best")
    probs = (log_probs - scale).double().exp()
    weights = torch.full((len(probs),), 1 / len(probs), dtype=torch.float64)
    for power in range(1, 14):
        weights = _central_point(probs, weights, 10.0**-power)
    return weights / weights.sum()


def _central_point(probs: Tensor, weights: Tensor, barrier: float) -> Tensor:
    def value(point: Tensor) -> float:
        return float(-(point @ probs).log().mean() - barrier * point.log().sum())

    for _ in range(50):
        ratios = probs / (weights @ probs)
        slope = -ratios.mean(1) - barrier / weights
        curvature = ratios @ ratios.T / probs.shape[1] + torch.diag(barrier / weights.square())
        step = _newton_step(slope, curvature)
        decrease = float(-slope @ step)
        if decrease < 1e-20:
            break
        shrinking = step < 0
        size = min(1.0, 0.99 * float((-weights[shrinking] / step[shrinking]).min())) if shrinking.any() else 1.0
        before = value(weights)
        while value(weights + size * step) > before - 1e-4 * size * decrease and size > 1e-12:
            size /= 2
        if size <= 1e-12:
            break
        weights = weights + size * step
    return weights


def _newton_step(slope: Tensor, curvature: Tensor) -> Tensor:
    """The step that keeps the sum: solve [H 1; 1' 0] [step; multiplier] = [-slope; 0]."""
    ones = torch.ones_like(slope)
    solved: Tensor = torch.linalg.solve(curvature, torch.stack([-slope, ones], dim=1))
    newton, flat = solved.unbind(1)
    return newton - flat * (newton.sum() / flat.sum())


def _divergence_from_equal(weights: Tensor) -> float:
    """KL(equal || weights)."""
    return float(-math.log(len(weights)) - weights.log().mean())
