import math

import pytest
import torch

import bayesemble as be
from bayesemble.core.errors import SettingError
from bayesemble.diagnostics import weighting
from bayesemble.diagnostics.weighting import Evidence, member_log_probs, stacking_weights
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def fitted() -> be.Ensemble:
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(200), be.DeepEnsemble(num_members=4), epochs=6)


def found(log_likelihoods, prior=None) -> Evidence:
    values = torch.tensor(log_likelihoods, dtype=torch.float64)
    prior = torch.full_like(values, 1 / len(values)) if prior is None else torch.tensor(prior, dtype=torch.float64)
    return Evidence(values, prior)


EVIDENCES = {
    "equal": found([-3.0, -3.0, -3.0]),
    "unequal": found([-310.25, -312.0, -309.5, -330.0]),
    "weighted": found([-10.0, -11.0, -9.0], [0.2, 0.5, 0.3]),
    "one member": found([-7.5]),
    "far apart": found([-60_000.0, -60_060.0]),
}


@pytest.mark.parametrize("name", EVIDENCES)
def test_the_identities_of_empirical_bayes_hold(name):
    """algebra: evidence is a sum, weights are its shares, the gap is a divergence, the deficit is bounded."""
    one = EVIDENCES[name]
    log_joint = one.prior_weights.log() + one.log_likelihoods
    assert one.log_evidence == pytest.approx(torch.logsumexp(log_joint, 0).item(), abs=1e-10)
    assert one.weights.sum().item() == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close((log_joint - one.log_evidence).exp(), one.weights, atol=1e-10, rtol=1e-10)
    num = len(one.weights)
    divergence = sum((1 / num) * (-math.log(num) - (log_joint[m].item() - one.log_evidence)) for m in range(num))
    assert one.gap == pytest.approx(divergence, abs=1e-10)
    assert one.gap >= -1e-10
    best = int(one.log_likelihoods.argmax())
    assert -1e-10 <= one.deficit <= -math.log(one.prior_weights[best].item()) + 1e-10
    assert one.deficit == pytest.approx(max(one.log_likelihoods.tolist()) - one.log_evidence, abs=1e-10)
    assert one.likelihood_range == pytest.approx(max(one.log_likelihoods.tolist()) - min(one.log_likelihoods.tolist()))
    assert 1 - 1e-10 <= one.effective_members <= num + 1e-10


def test_equal_likelihoods_leave_the_prior_as_it_was():
    """The theorem: a prior on maximisers of the likelihood is its own posterior, and equal weights are exact."""
    one = EVIDENCES["equal"]
    torch.testing.assert_close(one.weights, one.prior_weights, atol=1e-12, rtol=0)
    assert one.gap == pytest.approx(0, abs=1e-12)
    assert one.log_evidence == pytest.approx(-3.0)


def test_published_examples_of_how_fast_weights_degenerate():
    """A gap of 1e-3 in the mean at 60,000 rows is 60 nats; 1e-4 at 50,000 gives .0067; 1e-3 at 1,000 gives .27."""
    assert found([0.0, -60.0]).weights[1].item() == pytest.approx(8.8e-27, rel=0.01)
    assert found([0.0, -5.0]).weights[1].item() == pytest.approx(0.0067, abs=1e-4)
    assert found([0.0, -1.0]).weights[1].item() == pytest.approx(0.27, abs=0.002)


def test_tempering_by_the_number_of_rows_gives_nearly_equal_weights():
    one = found([-600.0, -700.0])
    torch.testing.assert_close(one.tempered(1.0), one.weights)
    assert one.tempered(1000.0)[1].item() == pytest.approx(1 / (1 + math.exp(0.1)))
    with pytest.raises(be.SettingError, match="temperature must be positive"):
        one.tempered(0.0)


def test_evidence_of_an_ensemble_sums_the_log_probabilities_of_all_rows(fitted):
    x, y = table(200)
    one = be.weighting.evidence(fitted, (x, y))
    expected = [fitted.predict(x).member(i).log_prob(y).double().sum().item() for i in range(4)]
    assert one.log_likelihoods.tolist() == pytest.approx(expected, rel=1e-6)
    again = be.weighting.evidence(fitted.reweight([1, 1, 1, 5]), (x, y))
    assert again.prior_weights.tolist() == [0.125, 0.125, 0.125, 0.625]


def general_solver(log_probs):
    """The same problem for scipy's sequential quadratic programming."""
    import numpy as np
    from scipy.optimize import minimize

    probs = (log_probs - log_probs.amax(0)).exp().numpy()
    num = len(probs)
    return minimize(
        lambda w: -np.log(w @ probs).mean(),
        np.full(num, 1 / num),
        jac=lambda w: -(probs / (w @ probs)).mean(1),
        bounds=[(1e-12, 1)] * num,
        constraints=[{"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(num)}],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    ).x


@pytest.mark.parametrize(("members", "rows", "spread"), [(2, 50, 1.0), (5, 400, 0.3), (8, 500, 2.0), (20, 1000, 1.0)])
def test_stacking_finds_the_optimum_of_a_general_convex_solver(members, rows, spread, generator):
    log_probs = spread * torch.randn(members, rows, generator=generator, dtype=torch.float64)
    log_probs -= torch.rand(members, 1, generator=generator, dtype=torch.float64)
    weights = stacking_weights(log_probs)
    assert weights.numpy() == pytest.approx(general_solver(log_probs), abs=1e-6)


def test_stacking_satisfies_its_optimality_conditions_to_rounding(generator):
    """mean_n p_m / p <= 1, with equality for every member that has weight."""
    log_probs = torch.randn(10, 300, generator=generator, dtype=torch.float64)
    log_probs[7:] -= 1.0
    weights = stacking_weights(log_probs)
    ratios = (log_probs.exp() / (weights @ log_probs.exp())).mean(1)
    assert ratios.max() < 1 + 1e-9
    torch.testing.assert_close(ratios[weights > 1e-6], torch.ones_like(ratios[weights > 1e-6]), atol=1e-8, rtol=0)


def test_stacking_of_one_clearly_best_member_is_that_member(generator):
    log_probs = torch.randn(3, 100, generator=generator, dtype=torch.float64).abs() * -1
    log_probs[1] = 0.0
    assert stacking_weights(log_probs).tolist() == pytest.approx([0, 1, 0], abs=1e-9)


def test_stacking_treats_twins_alike_and_survives_tiny_probabilities(generator):
    log_probs = torch.randn(3, 100, generator=generator, dtype=torch.float64) - 5000
    weights = stacking_weights(torch.cat([log_probs, log_probs[:1]]))
    assert weights[0].item() == pytest.approx(weights[3].item(), abs=1e-6)
    alone = stacking_weights(log_probs)
    assert (weights[0] + weights[3]).item() == pytest.approx(alone[0].item(), abs=1e-6)


def test_a_row_impossible_under_every_member_is_named():
    with pytest.raises(be.DataError, match="row 1 is impossible"):
        stacking_weights(torch.tensor([[0.0, -math.inf], [0.0, -math.inf]]))


def test_a_row_impossible_under_one_member_is_no_obstacle():
    weights = stacking_weights(torch.tensor([[0.0, -math.inf, -1.0], [-1.0, 0.0, 0.0]], dtype=torch.float64))
    assert weights.isfinite().all()


def test_stacking_an_ensemble_is_at_least_as_good_as_equal_weights(fitted):
    x, y = table(200, seed=5)
    stacked = fitted.reweight(be.weighting.stacking(fitted, (x, y)))
    assert be.metrics.nll(stacked.predict(x), y) <= be.metrics.nll(fitted.predict(x), y) + 1e-9


def test_pseudo_bma_is_more_cautious_than_the_plain_softmax(fitted):
    x, y = table(200, seed=5)
    weights = be.weighting.pseudo_bma(fitted, (x, y))
    plain = torch.softmax(member_log_probs(fitted, (x, y)).sum(1), 0)
    assert weights.sum().item() == pytest.approx(1)
    assert torch.special.entr(weights).sum() > torch.special.entr(plain).sum()
    assert torch.equal(weights, be.weighting.pseudo_bma(fitted, (x, y)))


def test_pseudo_bma_of_two_members_is_the_mean_of_a_logistic_of_a_bootstrap(fitted):
    """Against a plain loop over resamples."""
    x, y = table(40, seed=5)
    pair = fitted.keep([0, 1])
    log_probs = member_log_probs(pair, (x, y))
    generator = torch.Generator().manual_seed(9)
    total = 0.0
    for _ in range(4000):
        shares = torch.empty(40, dtype=torch.float64).exponential_(generator=generator)
        difference = 40 * (shares / shares.sum() * (log_probs[0] - log_probs[1])).sum()
        total += torch.sigmoid(difference).item() / 4000
    assert be.weighting.pseudo_bma(pair, (x, y), resamples=4000)[0].item() == pytest.approx(total, abs=0.03)


def test_greedy_selection_adds_the_member_that_helps_most(fitted):
    x, y = table(200, seed=5)
    chosen = be.weighting.select(fitted, (x, y), budget=3)
    probs = member_log_probs(fitted, (x, y)).exp()
    assert len(set(chosen)) == 3
    for step in range(3):
        scores = {m: probs[[*chosen[:step], m]].mean(0).log().mean().item() for m in range(4) if m not in chosen[:step]}
        assert chosen[step] == max(scores, key=scores.__getitem__)
    kept = fitted.keep(chosen)
    torch.testing.assert_close(kept.predict(x).log_prob(y).double(), probs[chosen].mean(0).log(), atol=1e-5, rtol=0)
    with pytest.raises(be.SettingError, match="between 1 and 4"):
        be.weighting.select(fitted, (x, y), budget=5)


def test_a_kept_or_reweighted_ensemble_can_be_saved(fitted, tmp_path):
    x = table(20)[0]
    for name, changed in {"kept": fitted.keep([2, 0]), "reweighted": fitted.reweight([4, 3, 2, 1])}.items():
        changed.save(tmp_path / name)
        loaded = be.load(tmp_path / name, small_mlp)
        assert torch.equal(loaded.predict(x).probs, changed.predict(x).probs)
    with pytest.raises(be.SettingError, match="4 non-negative numbers, one per member"):
        fitted.reweight([1, 2])


MANY_NETWORKS = [
    be.ECMP(num_members=3, draws=7),
    be.Dropout(num_members=3, draws=7),
    be.SWAG(num_members=3, draws=7, rank=2),
    be.HMC(num_members=3, max_leapfrog=5),
    be.CyclicalSGMCMC(num_members=3, cycles=1, samples_per_cycle=4),
]


@pytest.mark.parametrize("method", MANY_NETWORKS, ids=lambda method: type(method).__name__)
def test_members_of_many_networks_are_weighed_by_their_averages(method):
    """Weights and choices are of members, which `reweight` and `keep` take, not of the networks that they draw."""
    task, (x, y) = be.Task(small_mlp, be.Categorical()), table(60)
    size = None if isinstance(method, be.HMC) else 16
    ensemble = quick_fit(task, (x, y), method, epochs=8, batch_size=size)
    averages = torch.stack([ensemble.keep([m]).predict(x).log_prob(y).double() for m in range(3)])
    weights = be.weighting.stacking(ensemble, (x, y))
    torch.testing.assert_close(weights, stacking_weights(averages), atol=1e-6, rtol=0)
    assert be.weighting.pseudo_bma(ensemble, (x, y)).shape == (3,)
    assert be.weighting.select(ensemble, (x, y), budget=1) == [int(averages.mean(1).argmax())]
    assert ensemble.reweight(weights).predict(x).probs.isfinite().all()


@pytest.mark.parametrize("weigh", [be.weighting.stacking, be.weighting.pseudo_bma])
def test_a_single_member_of_many_networks_cannot_be_weighed(weigh):
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), table(60), be.ECMP())
    with pytest.raises(be.SettingError, match=r"this ensemble of ECMP has one.*train it with num_members=2 or more"):
        weigh(ensemble, table(60))


# --- members under a prior ---


def test_the_penalised_evidence_is_that_of_the_log_joint():
    """By hand: weights in proportion to p(y|theta_m) p(theta_m), with the prior's density in full."""
    x, y = table()
    task = be.Task(small_mlp, be.Categorical(), be.NormalPrior(std=0.3))
    ensemble = quick_fit(task, (x, y), be.DeepEnsemble(num_members=4))
    plain, found = (weighting.evidence(ensemble, (x, y), penalised=penalised) for penalised in (False, True))
    params = ensemble.state.members.params
    density = torch.distributions.Normal(0.0, torch.tensor(0.3, dtype=torch.float64))
    log_prior = sum(density.log_prob(leaf.double()).flatten(1).sum(1) for leaf in params.values())
    torch.testing.assert_close(found.log_priors, log_prior)
    joint = plain.log_likelihoods + log_prior
    torch.testing.assert_close(found.weights, torch.softmax(joint, 0))
    assert found.log_evidence == pytest.approx(float(torch.logsumexp(joint - math.log(4), 0)))
    assert found.likelihood_range == pytest.approx(float(joint.max() - joint.min()))
    assert found.elbo == pytest.approx(float(joint.mean()))
    assert found.gap >= 0
    assert found.deficit == pytest.approx(float(joint.max()) - found.log_evidence)
    assert not torch.allclose(found.weights, plain.weights)


def test_map_points_of_one_height_are_exact_empirical_bayes_with_the_penalty_alone():
    """Two mirrored MAP points of one and the same network, one of them scaled: by units of ReLU the likelihood is the
    same and the penalty is not; mirrored points have both."""
    x, y = table()
    task = be.Task(small_mlp, be.Categorical())
    ensemble = quick_fit(task, (x, y), be.DeepEnsemble(num_members=2))
    params = ensemble.state.members.params
    order = torch.arange(8).flip(0)
    for name, leaf in params.items():
        leaf[1] = leaf[0]
        leaf[1] = leaf[0][order] if name.startswith("0") else (leaf[0][:, order] if name == "2.weight" else leaf[0])
    found = weighting.evidence(ensemble, (x, y), penalised=True)
    assert found.gap == pytest.approx(0, abs=1e-4)
    params["0.weight"][1] *= 2
    params["0.bias"][1] *= 2
    params["2.weight"][1] /= 2
    assert weighting.evidence(ensemble, (x, y)).gap == pytest.approx(0, abs=1e-4)
    assert weighting.evidence(ensemble, (x, y), penalised=True).gap > 0.01


def test_without_a_prior_there_is_no_penalty():
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical(), prior=None), table())
    with pytest.raises(SettingError, match="the task has no prior"):
        weighting.evidence(ensemble, table(), penalised=True)
