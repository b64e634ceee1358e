"""Have chains forgotten where they began, and how much do their draws tell? R-hat and effective sample size.

Both compare what draws do inside chains with what they do over all chains, after each chain is split in two and all
draws are replaced by the normal scores of their ranks, so that heavy tails do no harm:

    z = Phi^-1((rank - 3/8) / (S + 1/4)),   S draws in all

R-hat near 1 (below 1.01; 1.05 will do for predictions) is necessary, never sufficient: chains that all miss the same
mode agree. The weights of a network can be permuted without changing it, so that chains in different copies of the
posterior never agree on the weights; what has to converge is the function.

Reference: Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), "Rank-normalization, folding, and localization: an
improved R-hat".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from bayesemble.core.arrays import numbers
from bayesemble.core.errors import DataError, SettingError
from bayesemble.predictive import LocationScalePredictive, Predictive
from bayesemble.training.ensemble import Ensemble

_FEWEST_DRAWS = 4  # half a chain needs two draws to have a variance


def rhat(values: Any) -> Tensor:
    """Rank-normalised split R-hat: the larger of the one for the middle and the one for the tails.

    R-hat = sqrt( ((n - 1)/n W + B/n) / W ),  with W the variance inside chains and B/n that of their means; for the
    tails it is taken of |value - median|.

    Values that are all equal have R-hat 1; chains that each stand still in another place have R-hat infinity.

    Shape: `(chain, draw, ...)` to `(...)`.
    """
    draws, shape = _split(values)
    folded = (draws - draws.flatten(0, 1).quantile(0.5, dim=0)).abs()
    largest = torch.maximum(_plain_rhat(_rank_normalised(draws)), _plain_rhat(_rank_normalised(folded)))
    return largest.reshape(shape)


def effective_sample_size(values: Any) -> Tensor:
    """How many independent draws would tell the mean as well (bulk ESS), from all chains together.

    ESS = S / (1 + 2 sum_t rho_t), the autocorrelations rho_t being added in pairs as long as these are positive, and no
    pair counting more than the one before it (Geyer's initial monotone sequence); of the pair that ends the sum the
    first counts once, which makes the ESS of draws better than independent ones less noisy. These have up to
    S log10 S. Values that are all equal have ESS S. The numbers are those of ArviZ.

    Shape: `(chain, draw, ...)` to `(...)`.
    """
    draws, shape = _split(values)
    return _plain_effective_sample_size(_rank_normalised(draws)).reshape(shape)


def tail_effective_sample_size(values: Any) -> Tensor:
    """How many independent draws would tell the ends of the distribution as well (tail ESS).

    The smaller ESS of the two facts "not above the 5 % quantile" and "not above the 95 % quantile". The numbers are
    those of ArviZ.

    Shape: `(chain, draw, ...)` to `(...)`.
    """
    draws, shape = _checked(values)
    ends = np.quantile(draws.flatten(0, 1).cpu().numpy(), [0.05, 0.95], axis=0)
    sizes = [_plain_effective_sample_size(_halves((draws <= torch.from_numpy(end)).double())) for end in ends]
    return torch.minimum(*sizes).reshape(shape)


def convergence(ensemble: Ensemble, inputs: Any) -> dict[str, float]:
    """Say how well the chains of an ensemble have converged, on the functions of the draws and on their weights.

    - `rhat`, `ess`, `ess_tail`: the worst R-hat and the smallest effective sample sizes (of the mean, and of the ends)
      of what the draws predict: the probability of each class or the mean (and noise) of each output, on every row of
      the inputs;
    - `rhat_parameters`, `ess_parameters`, `ess_tail_parameters`: the same of the parameters; for networks with hidden
      units expect these to be bad, since the units can change places;
    - `divergent` (HMC): number of trajectories that diverged after the warm-up, over all chains;
    - `acceptance` (HMC): mean probability of acceptance after the warm-up.

    Args:
        ensemble: Fitted with chains, as `HMC` has them.
        inputs: Rows to compare the functions on, as for `Ensemble.predict`.
    """
    ensemble = ensemble.weighed()
    chains = ensemble.method.chains(ensemble.state)
    if chains is None:
        raise SettingError(
            f"convergence compares chains of draws, as be.HMC and be.CyclicalSGMCMC make them; this is an ensemble of "
            f"{type(ensemble.method).__name__} without chains"
        )
    kept, num_chains = chains.num_draws, ensemble.num_members
    if kept < _FEWEST_DRAWS:
        raise SettingError(f"convergence needs at least {_FEWEST_DRAWS} draws of each chain, got {kept}; train longer")
    members = ensemble.draw()
    functions = _function_values(ensemble.predict(inputs)).unflatten(0, (num_chains, kept))
    weights = torch.cat([leaf.reshape(len(leaf), -1) for leaf in members.params.values()], dim=1)
    weights = weights.unflatten(0, (num_chains, kept))
    return _worst(functions, "") | _worst(weights, "_parameters") | chains.facts


def _worst(draws: Tensor, suffix: str) -> dict[str, float]:
    return {
        f"rhat{suffix}": float(rhat(draws).max()),
        f"ess{suffix}": float(effective_sample_size(draws).min()),
        f"ess_tail{suffix}": float(tail_effective_sample_size(draws).min()),
    }


def _function_values(predictive: Predictive) -> Tensor:
    """What each draw predicts, `(draw, number)`."""
    values = predictive.member_values().flatten(1)
    if isinstance(predictive, LocationScalePredictive):
        return torch.cat([values, predictive.stds.flatten(1)], dim=1)
    return values


def _checked(values: Any) -> tuple[Tensor, torch.Size]:
    """Draws of chains, `(chain, draw, number)`, and the shape that the numbers had."""
    draws = numbers(values, "the draws").double()
    if draws.dim() < 2 or draws.shape[1] < _FEWEST_DRAWS or not draws.shape[0]:
        raise DataError(
            f"chains of at least {_FEWEST_DRAWS} draws are needed, (chain, draw, ...); got shape {tuple(draws.shape)}"
        )
    if not draws.isfinite().all():
        raise DataError("draws must be finite numbers; some are infinite or not a number")
    return draws.reshape(*draws.shape[:2], -1), draws.shape[2:]


def _halves(draws: Tensor) -> Tensor:
    """Halves of chains as chains, `(2 * chain, draw // 2, number)`; a draw in the middle is left out."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _split(values: Any) -> tuple[Tensor, torch.Size]:
    draws, shape = _checked(values)
    return _halves(draws), shape


def _rank_normalised(draws: Tensor) -> Tensor:
    ranks = torch.from_numpy(rankdata(draws.flatten(0, 1).cpu().numpy(), axis=0))
    normal = torch.special.ndtri((ranks - 3 / 8) / (len(ranks) + 1 / 4))
    return normal.reshape(draws.shape)


def _plain_rhat(draws: Tensor) -> Tensor:
    num_draws = draws.shape[1]
    within, between = draws.var(1).mean(0), draws.mean(1).var(0)
    ratio = ((num_draws - 1) / num_draws * within + between) / within
    return torch.where((within == 0) & (between == 0), 1.0, ratio.sqrt())


def _plain_effective_sample_size(draws: Tensor) -> Tensor:
    """ESS `(number,)` of chains as they are, `(chain, draw, number)`."""
    num_chains, num_draws = draws.shape[:2]
    total = num_chains * num_draws
    inside = _autocovariance(draws).mean(0)
    within = inside[0] * num_draws / (num_draws - 1)
    overall = inside[0] + draws.mean(1).var(0)
    constant = overall == 0
    correlation = 1 - (within - inside) / torch.where(constant, 1.0, overall)
    correlation[0] = 1.0
    # the pair that ends the sum: the first that is not positive, or the last one before the last draw
    last = max((num_draws - 3) // 2, 0)
    pairs = correlation[: 2 * last + 2].unflatten(0, (-1, 2)).sum(1)
    added = torch.cat([(pairs > 0).cumprod(0)[:last], torch.zeros_like(pairs[:1])])
    end = added.sum(0, keepdim=True).long()
    first = correlation.gather(0, 2 * end)[0]
    once = torch.where(pairs.gather(0, end)[0] >= 0, first, first.clamp_min(0))
    length = -1 + 2 * (pairs.cummin(0).values * added).sum(0) + once
    effective = total / length.clamp_min(1 / math.log10(total))
    return torch.where(constant, float(total), effective)


def _autocovariance(draws: Tensor) -> Tensor:
    """Autocovariance of each chain, `(chain, lag, number)`; at every lag the sum over draws is divided by n."""
    num_draws = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * num_draws, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * num_draws, dim=1)[:, :num_draws] / num_draws
