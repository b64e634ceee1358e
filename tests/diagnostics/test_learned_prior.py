import pytest
import torch
from sklearn.decomposition import PCA

import bayesemble as be
from bayesemble.core.errors import SettingError
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), be.DeepEnsemble(num_members=5))


def test_the_plane_is_that_of_the_principal_components_of_the_weights(ensemble):
    found = be.learned_prior(ensemble, table())
    flat = torch.cat([leaf.flatten(1) for leaf in ensemble.state.members.params.values()], 1).double().numpy()
    pca = PCA(2).fit(flat)
    expected = torch.tensor(pca.transform(flat))
    torch.testing.assert_close(found.positions.abs(), expected.abs(), rtol=1e-4, atol=1e-6)
    assert found.share == pytest.approx(pca.explained_variance_ratio_.sum(), abs=1e-6)
    assert found.positions.mean(0).abs().max() < 1e-9


def test_weights_are_those_of_the_evidence(ensemble):
    for penalised in (False, True):
        found = be.learned_prior(ensemble, table(), penalised=penalised)
        evidence = be.weighting.evidence(ensemble, table(), penalised=penalised)
        assert torch.equal(found.posterior_weights, evidence.weights)
        assert torch.equal(found.prior_weights, evidence.prior_weights)


def test_two_members_lie_on_a_line_and_one_is_no_picture(ensemble):
    found = be.learned_prior(ensemble.keep([0, 1]), table())
    leaves = ensemble.state.members.params.values()
    apart = sum(float((leaf[0] - leaf[1]).double().square().sum()) for leaf in leaves) ** 0.5
    assert float((found.positions[0] - found.positions[1]).norm()) == pytest.approx(apart, rel=1e-6)
    assert found.share == pytest.approx(1)
    with pytest.raises(SettingError, match="needs two networks or more"):
        be.learned_prior(ensemble.keep([0]), table())
