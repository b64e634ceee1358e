"""Samples around one member: each kind by its definition; and ensembles of them."""

import itertools

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import measure, neighbourhoods
from bayesemble.diagnostics.landscape.embeddings import checkpoints
from bayesemble.diagnostics.landscape.neighbourhoods import ensembles_of_subspaces, sample_subspace, weight_average
from helpers import norm_mlp, quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), epochs=8, record="epoch")


def data():
    return table(40, seed=1)


def flat(params):
    """(network, number), in double, leaves by name."""
    return torch.cat([params[name].flatten(1) for name in sorted(params)], 1).double()


def own(ensemble, member):
    return flat({name: leaf[member : member + 1] for name, leaf in ensemble.state.members.params.items()})[0]


def last_points(ensemble, member, last):
    return flat(checkpoints(ensemble, member, last))


def test_random_samples_lie_at_uniform_distances_in_random_directions(ensemble):
    moved = flat(sample_subspace(ensemble, 1, "random", 400).params) - own(ensemble, 1)
    distances = moved.norm(dim=1)
    assert float(distances.max()) <= 10  # as in the paper
    assert abs(float(distances.mean()) - 5) < 4 * (100 / 12 / 400) ** 0.5
    directions = moved / distances[:, None]
    size = directions.shape[1]
    assert abs(float((directions * size**0.5).mean())) < 4 / (400 * size) ** 0.5
    products = (directions @ directions.T)[np.triu_indices(400, 1)]
    assert float(products.square().mean()) == pytest.approx(1 / size, rel=0.05)  # of independent directions


def test_dropout_samples_drop_weights_and_make_up_for_it(ensemble):
    start = own(ensemble, 0)
    made = flat(sample_subspace(ensemble, 0, "dropout", 300, scale=0.4).params)
    shares = []
    for one in made:
        kept = one != 0
        ratio = (one / start)[kept]
        assert float(ratio.max() - ratio.min()) < 1e-5  # all kept weights grow by the same 1 / (1 - p)
        share = 1 - 1 / float(ratio.mean())
        assert 0 <= share <= 0.4 + 1e-6
        assert abs(float((~kept).double().mean()) - share) <= 5 * (share * (1 - share) / len(one)) ** 0.5 + 1e-6
        shares.append(share)
    assert abs(float(np.mean(shares)) - 0.2) < 4 * 0.4 / (12 * 300) ** 0.5


def test_diagonal_samples_have_mean_and_spread_of_the_last_checkpoints(ensemble):
    points = last_points(ensemble, 2, 4)
    assert len(points) == 4
    made = flat(sample_subspace(ensemble, 2, "diagonal", 500, last=4, scale=2.0).params)
    scores = (made - points.mean(0)) / (2 * points.std(0, correction=0))
    count = scores.numel()
    assert abs(float(scores.mean())) < 4 / count**0.5
    assert abs(float(scores.square().mean()) - 1) < 4 * (2 / count) ** 0.5


@pytest.mark.parametrize(("last", "rank"), [(8, 5), (4, 3)])
def test_pca_samples_lie_in_the_widest_directions_with_unit_spread(ensemble, last, rank):
    points = last_points(ensemble, 0, last).numpy()
    _, _, directions = np.linalg.svd(points - points.mean(0), full_matrices=False)
    moved = flat(sample_subspace(ensemble, 0, "pca", 500, last=last, scale=3.0).params).numpy() - points.mean(0)
    coordinates = moved @ directions[:rank].T
    assert np.abs(moved - coordinates @ directions[:rank]).max() < 1e-4
    count = coordinates.size
    assert abs((coordinates**2).mean() / 9 - 1) < 4 * (2 / count) ** 0.5  # whatever the singular values are
    assert np.abs(np.corrcoef(coordinates.T) - np.eye(rank)).max() < 5 / 500**0.5


def test_checkpoints_that_coincide_give_the_mean_alone():
    points = {"a": torch.ones(3, 2, 2), "b": torch.zeros(3, 4)}
    basis = neighbourhoods._directions({name: leaf - leaf.mean(0) for name, leaf in points.items()})
    assert [len(leaf) for leaf in basis.values()] == [0, 0]
    mean = {name: leaf.mean(0) for name, leaf in points.items()}
    made = neighbourhoods._principal(mean, basis, 1.0, torch.Generator().manual_seed(0))
    assert all(torch.equal(made[name], mean[name]) for name in mean)


def test_the_average_is_the_mean_of_the_last_checkpoints(ensemble):
    one = weight_average(ensemble, 1, last=3)
    assert one.num_members == 1
    assert torch.allclose(flat(one.params)[0], last_points(ensemble, 1, 3).mean(0), atol=1e-6)


def test_a_sample_depends_on_its_own_number_only(ensemble):
    for kind in neighbourhoods.KINDS:
        few, many = (sample_subspace(ensemble, 0, kind, num, seed=4) for num in (2, 5))
        assert torch.equal(flat(few.params), flat(many.params)[:2])
        assert not torch.equal(flat(few.params), flat(sample_subspace(ensemble, 0, kind, 2, seed=5).params))


def test_a_scale_for_each_sample(ensemble):
    scales = torch.tensor([0.0, 2.0])
    moved = flat(sample_subspace(ensemble, 0, "random", 2, scale=scales).params) - own(ensemble, 0)
    assert float(moved[0].norm()) == 0
    assert torch.equal(
        moved[1], (flat(sample_subspace(ensemble, 0, "random", 2, scale=2.0).params))[1] - own(ensemble, 0)
    )


def test_parts_that_fit_into_memory_give_the_same(ensemble, monkeypatch):
    whole = sample_subspace(ensemble, 0, "diagonal", 5)
    monkeypatch.setattr(neighbourhoods, "at_once", lambda _: 2)
    parts = sample_subspace(ensemble, 0, "diagonal", 5)
    assert torch.equal(flat(whole.params), flat(parts.params))
    assert torch.allclose(parts.weights, torch.full((5,), 0.2, dtype=torch.float64))


def test_the_likelihood_keeps_its_parameters():
    x, _ = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian(noise="learned")), (x, x[:, :2]), epochs=3, record="epoch")
    names = [name for name in ensemble.state.members.params if name.startswith("likelihood.")]
    assert names
    made = [sample_subspace(ensemble, 1, kind, 3) for kind in neighbourhoods.KINDS] + [weight_average(ensemble, 1)]
    for one in made:
        for name in names:
            assert torch.equal(one.params[name], ensemble.state.members.params[name][1:2].expand_as(one.params[name]))
        assert one.params.keys() == ensemble.state.members.params.keys()


def test_batch_norm_statistics_are_those_of_the_sample():
    train = table()
    ensemble = quick_fit(be.Task(norm_mlp, be.Categorical()), train, epochs=3, record="epoch")
    with pytest.raises(be.DataError, match="pass train="):
        sample_subspace(ensemble, 0, "random", 2)
    for made in (sample_subspace(ensemble, 0, "random", 2, train=train), weight_average(ensemble, 0, train=train)):
        pairs = zip(made.params["0.weight"], made.params["0.bias"], strict=True)
        hidden = torch.stack([train[0] @ weight.T + bias for weight, bias in pairs])
        assert torch.allclose(made.buffers["1.running_mean"], hidden.mean(1), atol=1e-4)


def test_ensembles_of_subspaces_against_loops_over_subsets(ensemble):
    x, y = data()
    found = ensembles_of_subspaces(ensemble, (x, y), num=3, last=4, scales={"random": 2.0}, seed=1)
    assert found.sizes == [1, 2, 3]
    assert list(found.accuracy) == ["member", "random", "dropout", "diagonal", "pca", "average"] == list(found.brier)
    for kind in found.accuracy:
        probs = []
        for member in range(3):
            if kind == "member":
                made = ensemble.state.members.take(torch.tensor([member]))
            elif kind == "average":
                made = weight_average(ensemble, member, 4)
            else:
                scale = 2.0 if kind == "random" else None
                made = sample_subspace(ensemble, member, kind, 3, last=4, scale=scale, seed=1)
            probs.append(measure.as_ensemble(ensemble, made).predict(x).member_probs.double().mean(0))
        for place, size in enumerate((1, 2, 3)):
            right, brier = [], []
            for some in itertools.combinations(probs, size):
                mean = sum(some) / size
                right.append(float((mean.argmax(-1) == y).double().mean()))
                brier.append(float((mean - torch.nn.functional.one_hot(y, 2)).square().sum(-1).mean()))
            assert float(found.accuracy[kind][place]) == pytest.approx(np.mean(right))
            assert float(found.brier[kind][place]) == pytest.approx(np.mean(brier))


def test_the_brier_score_of_more_members_is_never_worse_on_average(ensemble):
    """It is convex, so the mean over subsets falls with their size."""
    found = ensembles_of_subspaces(ensemble, data(), kinds=("member", "diagonal"), num=3)
    for scores in found.brier.values():
        assert (scores.diff() <= 1e-12).all()


@pytest.mark.parametrize("kind", ["random", "dropout"])
def test_a_scale_of_nothing_leaves_the_member_as_it_is(ensemble, kind):
    made = flat(sample_subspace(ensemble, 0, kind, 2, scale=0).params)
    assert torch.equal(made, own(ensemble, 0).expand(2, -1))
    assert sample_subspace(ensemble, 0, kind, 2, scale=1).num_members == 2


@pytest.mark.parametrize("kind", ["diagonal", "pca"])
def test_two_epochs_are_enough_for_a_subspace(ensemble, kind):
    assert sample_subspace(ensemble, 0, kind, 3, last=2).num_members == 3


def test_samples_below_an_accuracy_are_drawn_again_and_left_out_after_their_tries(ensemble):
    """Against plain loops: the first tries are the samples that come without a bound."""
    train = table()
    plain = sample_subspace(ensemble, 0, "random", 12, scale=4.0)
    right = 1 - measure.measure(ensemble, [plain], train).error
    bound = float(right.sort().values[6])  # about half of them are good enough
    once = sample_subspace(ensemble, 0, "random", 12, scale=4.0, least_accuracy=bound, validation=train, tries=1)
    assert torch.equal(flat(once.params), flat(plain.params)[right >= bound])
    more = sample_subspace(ensemble, 0, "random", 12, scale=4.0, least_accuracy=bound, validation=train)
    assert once.num_members < more.num_members <= 12
    assert torch.equal(flat(more.params)[: once.num_members], flat(once.params))
    assert (1 - measure.measure(ensemble, [more], train).error >= bound).all()
    assert float(more.weights.sum()) == pytest.approx(1)
    every = sample_subspace(ensemble, 0, "random", 12, scale=4.0, least_accuracy=0.0, validation=train)
    assert torch.equal(flat(every.params), flat(plain.params))
    found = ensembles_of_subspaces(
        ensemble, train, kinds=("random",), num=12, scales={"random": 4.0}, least_accuracy=bound, validation=train
    )
    free = ensembles_of_subspaces(ensemble, train, kinds=("random",), num=12, scales={"random": 4.0})
    assert float(found.accuracy["random"][0]) >= float(free.accuracy["random"][0])


def test_what_rejection_cannot_honour_is_refused(ensemble):
    with pytest.raises(be.SettingError, match="give both, or neither"):
        sample_subspace(ensemble, 0, "random", 2, least_accuracy=0.7)
    with pytest.raises(be.SettingError, match="from 0 to 1, got 70"):
        sample_subspace(ensemble, 0, "random", 2, least_accuracy=70, validation=table())
    with pytest.raises(be.SettingError, match=r"none of 2 networks around member 0 \(random\) .* in 5 tries"):
        sample_subspace(ensemble, 0, "random", 2, scale=1e4, least_accuracy=0.99, validation=table())


def test_what_cannot_be_sampled_is_refused(ensemble):
    plain = quick_fit(be.Task(small_mlp, be.Categorical()), table())
    with pytest.raises(be.SettingError, match=r"train with fit\(..., record='epoch'\)"):
        sample_subspace(plain, 0, "pca", 2)
    assert sample_subspace(plain, 0, "random", 2).num_members == 2
    with pytest.raises(be.SettingError, match="kind is one of random, dropout, diagonal, pca, not 'swag'"):
        sample_subspace(ensemble, 0, "swag", 2)
    with pytest.raises(be.SettingError, match=r"up to 1 for dropout, .*; got 2"):
        sample_subspace(ensemble, 0, "dropout", 2, scale=2)
    with pytest.raises(be.SettingError, match="one for each of 3 networks"):
        sample_subspace(ensemble, 0, "random", 3, scale=torch.ones(2))
    with pytest.raises(be.SettingError, match="got num=0"):
        sample_subspace(ensemble, 0, "random", 0)
    with pytest.raises(be.SettingError, match="numbers 0 to 2"):
        sample_subspace(ensemble, 7, "random", 1)
    with pytest.raises(be.SettingError, match="sizes lie in 1 to 3"):
        ensembles_of_subspaces(ensemble, data(), sizes=[4])
    x, _ = table()
    numbers = quick_fit(be.Task(small_mlp, be.Gaussian(noise=0.5)), (x, x[:, :2]))
    with pytest.raises(be.SettingError, match="this task predicts numbers"):
        ensembles_of_subspaces(numbers, (x, x[:, :2]))
