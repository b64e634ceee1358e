"""Networks compared in weights and in predictions."""

import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import measure
from bayesemble.diagnostics.landscape.similarities import similarity
from helpers import norm_mlp, quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), epochs=4, record="epoch")


def data():
    return table(40, seed=1)


def flat(params, place, names):
    return torch.cat([params[name][place].flatten() for name in names]).double()


def cosines(members, names):
    """The naive twin: pair by pair."""
    vectors = [flat(members.params, place, names) for place in range(members.num_members)]
    return torch.stack([torch.stack([a @ b / (a.norm() * b.norm()) for b in vectors]) for a in vectors])


def test_members_against_a_loop_over_pairs(ensemble):
    x, _ = data()
    found = similarity(ensemble, data())
    assert found.names == [(0, None), (1, None), (2, None)]
    assert found.difference_name == "disagreement"
    probs = ensemble.predict(x).member_probs.double()
    for m in range(3):
        for n in range(3):
            apart = (probs[m].argmax(-1) != probs[n].argmax(-1)).double().mean()
            middle = (probs[m] + probs[n]) / 2
            halves = [(p * (p / middle).log()).sum(-1).mean() / 2 for p in (probs[m], probs[n])]
            assert float(found.difference[m, n]) == pytest.approx(float(apart))
            assert float(found.jensen_shannon[m, n]) == pytest.approx(float(sum(halves)), abs=1e-7)
    assert torch.allclose(found.cosine, cosines(ensemble.state.members, list(ensemble.state.members.params)))


def test_batches_of_a_loader_add_up_to_the_whole(ensemble):
    x, y = data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    whole, parts = similarity(ensemble, (x, y)), similarity(ensemble, loader)
    assert torch.allclose(whole.difference, parts.difference)
    assert torch.allclose(whole.jensen_shannon, parts.jensen_shannon, atol=1e-8)


def test_along_one_path_and_across_both(ensemble):
    x, _ = data()
    path = similarity(ensemble, data(), epochs=[0, 2, 4], members=[1])
    assert path.names == [(1, 0), (1, 2), (1, 4)]
    along = ensemble.recording.along(1, [0, 2, 4])
    assert torch.allclose(path.cosine, cosines(along, list(along.params)))
    choices = measure.as_ensemble(ensemble, along).predict(x).member_probs.argmax(-1)
    assert float(path.difference[0, 2]) == pytest.approx(float((choices[0] != choices[2]).double().mean()))

    both = similarity(ensemble, data(), epochs=[2, 4], members=[2, 1])
    assert both.names == [(2, 2), (2, 4), (1, 2), (1, 4)]
    assert torch.allclose(both.cosine[2:, 2:], path.cosine[1:, 1:])
    ends = similarity(ensemble, data(), members=[2, 1])
    assert torch.allclose(both.cosine[[1, 3]][:, [1, 3]], ends.cosine)  # the last epoch is the fitted member
    assert torch.allclose(both.jensen_shannon[[1, 3]][:, [1, 3]], ends.jensen_shannon)


def test_norm_layers_count_only_if_asked_for_and_statistics_never():
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), table())
    members = ensemble.state.members
    linear = [name for name in members.params if not name.startswith("1.")]
    assert len(linear) == 4
    assert torch.allclose(similarity(ensemble, data()).cosine, cosines(members, linear))
    with_norms = similarity(ensemble, data(), norms=True).cosine
    assert torch.allclose(with_norms, cosines(members, list(members.params)))
    assert (with_norms[0, 1:] > similarity(ensemble, data()).cosine[0, 1:]).all()  # ones at the start raise it


def test_numbers_differ_by_the_root_mean_square_of_their_means():
    x, _ = table()
    y = x[:, :2] + 0.1
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian(noise="learned")), (x, y))
    found = similarity(ensemble, (x, y))
    assert found.jensen_shannon is None
    assert found.difference_name == "RMS difference of means"
    means = ensemble.predict(x).member_mean.double()
    assert torch.allclose(found.difference, (means[:, None] - means).square().flatten(2).mean(2).sqrt())
    network = [name for name in ensemble.state.members.params if not name.startswith("likelihood.")]
    assert torch.allclose(found.cosine, cosines(ensemble.state.members, network))


def test_what_cannot_be_compared_is_refused(ensemble):
    plain = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    with pytest.raises(be.SettingError, match=r"train with fit\(..., record='epoch'\)"):
        similarity(plain, data(), epochs=[0, 1])
    with pytest.raises(be.SettingError, match="it is empty"):
        similarity(ensemble, data(), epochs=[])
    with pytest.raises(be.SettingError, match=r"numbers 0 to 2, got \[5\]"):
        similarity(ensemble, data(), members=[5])
