"""R-hat and effective sample size: closed forms, naive twins, and what they say of chains gone wrong."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesemble as be
from bayesemble.diagnostics.convergence import effective_sample_size, rhat, tail_effective_sample_size
from helpers import oracle, quick_fit, small_mlp, table, tempered_mlp


def independent(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def autoregressive(generator: torch.Generator, rho: float, *shape: int) -> Tensor:
    """x_t = rho x_(t-1) + sqrt(1 - rho^2) e_t, begun in its stationary distribution, for shape `(chain, draw, ...)`."""
    noise = independent(generator, *shape)
    draws = [noise[:, 0]]
    for t in range(1, shape[1]):
        draws.append(rho * draws[-1] + math.sqrt(1 - rho**2) * noise[:, t])
    return torch.stack(draws, dim=1)


def naive_scores(chains: list[list[float]]) -> list[list[float]]:
    """Normal scores of the ranks among all draws, ties sharing their mean rank."""
    pool = [value for chain in chains for value in chain]

    def score(value: float) -> float:
        rank = sum(other < value for other in pool) + (sum(other == value for other in pool) + 1) / 2
        return NormalDist().inv_cdf((rank - 3 / 8) / (len(pool) + 1 / 4))

    return [[score(value) for value in chain] for chain in chains]


def naive_halves(values: np.ndarray) -> list[list[float]]:
    half = values.shape[1] // 2
    return [list(row) for chain in values for row in (chain[:half], chain[len(chain) - half :])]


def naive_rhat(values: np.ndarray) -> float:
    def plain(chains: list[list[float]]) -> float:
        n = len(chains[0])
        within = np.mean([np.var(chain, ddof=1) for chain in chains])
        between = n * np.var([np.mean(chain) for chain in chains], ddof=1)
        return math.sqrt(((n - 1) / n * within + between / n) / within)

    halves = naive_halves(values)
    median = np.median([value for chain in halves for value in chain])
    folded = [[abs(value - median) for value in chain] for chain in halves]
    return max(plain(naive_scores(halves)), plain(naive_scores(folded)))


def naive_ess(chains: list[list[float]]) -> float:
    """Lag by lag and pair by pair."""
    m, n = len(chains), len(chains[0])

    def covariance(chain: list[float], lag: int) -> float:
        centre = np.mean(chain)
        return sum((chain[t] - centre) * (chain[t + lag] - centre) for t in range(n - lag)) / n

    within = np.mean([np.var(chain, ddof=1) for chain in chains])
    overall = within * (n - 1) / n + np.var([np.mean(chain) for chain in chains], ddof=1)
    if overall == 0:
        return m * n
    rho = [1.0] + [1 - (within - np.mean([covariance(c, t) for c in chains])) / overall for t in range(1, n)]
    total, smallest, t = 0.0, math.inf, 0
    while rho[t] + rho[t + 1] > 0 and t + 4 < n:
        smallest = min(smallest, rho[t] + rho[t + 1])
        total += smallest
        t += 2
    once = rho[t] if rho[t] > 0 or rho[t] + rho[t + 1] >= 0 else 0.0
    return m * n / max(-1 + 2 * total + once, 1 / math.log10(m * n))


def naive_tail(values: np.ndarray) -> float:
    ends = np.quantile(values, [0.05, 0.95])
    return min(naive_ess(naive_halves(np.where(values <= end, 1.0, 0.0))) for end in ends)


@pytest.mark.parametrize("num_draws", [20, 21])
def test_naive_twins(generator, num_draws):
    smooth = autoregressive(generator, 0.6, 3, num_draws)
    ties = (2 * smooth).round()
    for values in (smooth, ties, smooth.cumsum(1), -smooth.exp()):
        assert rhat(values).item() == pytest.approx(naive_rhat(values.numpy()), rel=1e-10)
        bulk = naive_ess(naive_scores(naive_halves(values.numpy())))
        assert effective_sample_size(values).item() == pytest.approx(bulk, rel=1e-10)
        assert tail_effective_sample_size(values).item() == pytest.approx(naive_tail(values.numpy()), rel=1e-10)


def congruential(rho: float, num_chains: int, num_draws: int) -> Tensor:
    """An autoregression of the same numbers everywhere: those of the generator s <- 16807 s mod 2^31 - 1."""
    state, rows = 1, []
    for _ in range(num_chains):
        row = [0.0]
        for _ in range(num_draws):
            state = 16807 * state % (2**31 - 1)
            row.append(rho * row[-1] + state / (2**31 - 1) - 0.5)
        rows.append(row[1:])
    return torch.tensor(rows, dtype=torch.float64)


# (rho, chains, draws): bulk and tail ESS by array_stats.ess of arviz-stats 0.8.0, the tail with prob=(0.05, 0.95).
ARVIZ = {
    (0.0, 1, 4): (2.4082399653118496, 2.4082399653118496),
    (0.0, 2, 7): (12.9501749525715, 12.9501749525715),
    (-0.5, 4, 12): (80.69957939402819, 61.598877980364705),
    (0.6, 1, 30): (15.507519755338512, 42.56756756756756),
    (0.9, 3, 101): (12.538439980692816, 58.91012109765579),
    (-0.9, 2, 200): (1040.823996531185, 89.76877031837373),
    (0.3, 4, 500): (1092.8211060273873, 1314.4077643066346),
}


@pytest.mark.parametrize(("rho", "num_chains", "num_draws"), ARVIZ)
def test_the_numbers_of_arviz(rho, num_chains, num_draws):
    values = congruential(rho, num_chains, num_draws)
    found = effective_sample_size(values).item(), tail_effective_sample_size(values).item()
    assert found == pytest.approx(ARVIZ[rho, num_chains, num_draws], rel=1e-10)


def test_the_numbers_of_arviz_where_it_is_installed(generator):
    stats = oracle("arviz_stats.base").array_stats
    for num_draws in (4, 7, 12, 101):
        for values in (independent(generator, 3, num_draws), autoregressive(generator, 0.9, 3, num_draws)):
            ours = effective_sample_size(values).item(), tail_effective_sample_size(values).item()
            axes = {"chain_axis": 0, "draw_axis": 1}
            bulk = stats.ess(values.numpy(), **axes, method="bulk")
            tail = stats.ess(values.numpy(), **axes, method="tail", prob=(0.05, 0.95))
            assert ours == pytest.approx((float(bulk), float(tail)), rel=1e-10)


def test_the_tail_of_independent_draws_is_known_by_all_of_them(generator):
    sizes = tail_effective_sample_size(independent(generator, 4, 500, 50))
    assert sizes.mean().item() == pytest.approx(2000, rel=0.1)


def test_a_tail_that_one_chain_alone_visits(generator):
    """A single stay of 50 draws is about half of what lies beyond the 95 % quantile: the end is known worst."""
    before = independent(generator, 4, 500)
    values = before.clone()
    values[0, 100:150] += 8
    assert tail_effective_sample_size(values) < 0.1 * tail_effective_sample_size(before)
    assert tail_effective_sample_size(values) < 0.5 * effective_sample_size(values)


def test_independent_draws(generator):
    values = independent(generator, 4, 500, 50)
    assert rhat(values).max() < 1.02
    sizes = effective_sample_size(values)
    assert sizes.mean().item() == pytest.approx(2000, rel=0.05)
    assert sizes.min() > 1500


@pytest.mark.parametrize("rho", [0.5, 0.8, -0.4])
def test_the_closed_form_of_an_autoregression(generator, rho):
    """ESS = n (1 - rho) / (1 + rho)."""
    values = autoregressive(generator, rho, 4, 2000, 30)
    expected = 8000 * (1 - rho) / (1 + rho)
    sizes = effective_sample_size(values)
    assert sizes.mean().item() == pytest.approx(expected, rel=0.08)
    assert sizes.sub(expected).abs().max() < 0.35 * expected


def test_the_standard_error_that_it_gives_is_the_spread_of_the_mean(generator):
    values = autoregressive(generator, 0.7, 4, 500, 400)
    claimed = (values.flatten(0, 1).var(0) / effective_sample_size(values)).mean().sqrt()
    assert claimed.item() == pytest.approx(values.mean((0, 1)).square().mean().sqrt().item(), rel=0.1)


def test_chains_that_disagree(generator):
    values = independent(generator, 4, 200)
    shifted, spread, drifting = values.clone(), values.clone(), values + torch.linspace(0, 4, 200)
    shifted[0] += 3
    spread[0] *= 5
    assert rhat(shifted) > 1.3
    assert rhat(drifting) > 1.3  # all chains alike, but not their halves
    assert rhat(spread) > 1.1  # the same mean: only the tails tell
    assert effective_sample_size(shifted) < 20


def test_it_is_the_order_of_the_values_that_counts(generator):
    values = autoregressive(generator, 0.5, 3, 100)
    torch.testing.assert_close(effective_sample_size(values.exp()), effective_sample_size(values))
    torch.testing.assert_close(rhat(7 * values - 2), rhat(values))
    cauchy = torch.tan(math.pi * (torch.rand(4, 500, generator=generator, dtype=torch.float64) - 0.5))
    assert rhat(cauchy) < 1.02


def test_shapes_and_kinds_of_arrays(generator):
    values = independent(generator, 2, 10, 3, 2)
    assert (
        rhat(values).shape == effective_sample_size(values).shape == tail_effective_sample_size(values).shape == (3, 2)
    )
    assert torch.equal(rhat(values.numpy()), rhat(values))
    assert rhat(values)[2, 1] == rhat(values[:, :, 2, 1])


def test_values_that_do_not_move():
    still = torch.full((3, 10), 2.5)
    assert rhat(still) == 1
    assert effective_sample_size(still) == tail_effective_sample_size(still) == 30
    stuck = torch.arange(3.0)[:, None].expand(3, 10)
    assert rhat(stuck) == math.inf
    assert effective_sample_size(stuck) < 10


def test_draws_that_cannot_be_judged_are_refused():
    with pytest.raises(be.DataError, match=r"at least 4 draws are needed.*got shape \(2, 3\)"):
        rhat(torch.zeros(2, 3))
    assert rhat(torch.zeros(2, 4)) == 1
    with pytest.raises(be.DataError, match="must be finite"):
        effective_sample_size(torch.full((2, 10), math.nan))


def chains(**settings: object) -> be.Ensemble:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    task = be.Task(lambda: nn.Linear(2, 1).double(), be.Gaussian(noise=0.5))
    method = be.HMC(**({"num_members": 3, "num_draws": 20} | settings))
    return quick_fit(task, (x, x[:, 0]), method, epochs=60, batch_size=None, executor="vmap")


def test_an_ensemble_is_judged_by_its_functions_and_its_weights(generator):
    fitted, x = chains(), independent(generator, 7, 2)
    found = be.convergence(fitted, x)
    functions = fitted.predict(x).member_mean.reshape(3, 20, 7)
    weights = [leaf.reshape(3, 20, -1) for leaf in fitted.draw().params.values()]
    assert found["rhat"] == pytest.approx(rhat(functions).max().item())
    assert found["ess"] == pytest.approx(effective_sample_size(functions).min().item())
    assert found["ess_tail"] == pytest.approx(tail_effective_sample_size(functions).min().item())
    assert found["ess_tail_parameters"] == pytest.approx(
        min(tail_effective_sample_size(leaf).min().item() for leaf in weights)
    )
    assert found["rhat_parameters"] == pytest.approx(max(rhat(leaf).max().item() for leaf in weights))
    assert found["ess_parameters"] == pytest.approx(min(effective_sample_size(leaf).min().item() for leaf in weights))
    assert found["divergent"] == 0
    sampling = [row["acceptance"] for row in fitted.history[30:]]
    assert found["acceptance"] == pytest.approx(np.mean(sampling))


def test_classes_and_learned_noise(generator):
    x, y = table()
    fitted = quick_fit(
        be.Task(small_mlp, be.Categorical()), (x, y), be.HMC(num_members=2), epochs=12, batch_size=None, executor="vmap"
    )
    probabilities = fitted.predict(x).member_probs.reshape(2, 6, 48, 2)
    assert be.convergence(fitted, x)["rhat"] == pytest.approx(rhat(probabilities).max().item(), rel=1e-4)
    task = be.Task(lambda: nn.Linear(4, 1), be.Gaussian(noise="learned"))
    noisy = quick_fit(task, (x, y.float()), be.HMC(num_members=2), epochs=12, batch_size=None, executor="vmap")
    predictive = noisy.predict(x)
    worst = max(rhat(part.reshape(2, 6, 48)).max().item() for part in (predictive.means, predictive.stds))
    assert be.convergence(noisy, x)["rhat"] == pytest.approx(worst)


def test_a_parameter_without_axes_is_judged_too():
    fitted = quick_fit(
        be.Task(tempered_mlp, be.Categorical()), table(), be.HMC(num_members=2), epochs=12, batch_size=None
    )
    weights = [leaf.reshape(2, 6, -1) for leaf in fitted.draw().params.values()]
    found = be.convergence(fitted, table()[0])
    assert found["rhat_parameters"] == pytest.approx(max(rhat(leaf).max().item() for leaf in weights), rel=1e-5)


def test_ensembles_without_chains_are_refused():
    x, y = table()
    with pytest.raises(be.SettingError, match="DeepEnsemble without chains"):
        be.convergence(quick_fit(be.Task(small_mlp, be.Categorical()), (x, y)), x)
    short = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y), be.HMC(), epochs=4, batch_size=None)
    with pytest.raises(be.SettingError, match="at least 4 draws of each chain, got 2"):
        be.convergence(short, x)


def test_chains_of_stochastic_gradients_are_compared_too():
    method = be.CyclicalSGMCMC(num_members=3, cycles=2, samples_per_cycle=4)
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method, epochs=20)
    found = be.convergence(ensemble, table()[0])
    functions = ensemble.predict(table()[0]).member_probs.flatten(1).unflatten(0, (3, 8))
    assert found["rhat"] == pytest.approx(float(rhat(functions).max()))
    assert "acceptance" not in found
