"""Paths through training on a plane, and the recorded checkpoints they are made of."""

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.diagnostics.landscape import embeddings, measure
from bayesemble.diagnostics.landscape.embeddings import embedding
from helpers import quick_fit, small_mlp, table


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), table(), epochs=5, record="epoch")


@pytest.fixture(scope="module")
def inputs():
    return table(20, seed=1)[0]


def vectors_of(ensemble, inputs, member, epoch):
    """The probabilities of one recorded network as one vector, from its own weights by hand."""
    params = {name: leaf[member] for name, leaf in ensemble.recording.members(epoch).params.items()}
    hidden = (inputs @ params["0.weight"].T + params["0.bias"]).clamp_min(0)
    return (hidden @ params["2.weight"].T + params["2.bias"]).softmax(-1).flatten()


def test_pca_points_have_the_distances_of_the_two_widest_directions(ensemble, inputs):
    found = embedding(ensemble, inputs, members=[2, 0], epochs=[1, 3, 5], kind="pca")
    assert (found.members, found.epochs, found.kind) == ([2, 0], [1, 3, 5], "pca")
    assert found.points.shape == (2, 3, 2)
    rows = torch.stack([vectors_of(ensemble, inputs, m, e) for m in (2, 0) for e in (1, 3, 5)]).double().numpy()
    centred = rows - rows.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :2] * sizes[:2]
    points = found.points.flatten(0, 1).numpy()
    assert np.allclose(points @ points.T, expected @ expected.T, atol=1e-6)  # the same up to the signs of the axes


def test_tsne_is_the_same_for_the_same_seed_and_takes_few_points(ensemble, inputs):
    one, again = (embedding(ensemble, inputs, seed=3) for _ in range(2))
    assert one.points.shape == (3, 6, 2)
    assert one.epochs == [0, 1, 2, 3, 4, 5]
    assert torch.equal(one.points, again.points)
    assert one.points.isfinite().all()
    three = embedding(ensemble, inputs, members=[1], epochs=[0, 2, 5])
    assert three.points.shape == (1, 3, 2)
    assert three.points.isfinite().all()


def test_tsne_keeps_paths_that_lie_apart_apart(inputs):
    """Members whose functions differ more from one another than along their paths: their points do not mix."""
    ensemble = quick_fit(
        be.Task(small_mlp, be.Categorical()),
        table(),
        be.DeepEnsemble(num_members=2, learning_rate=1e-3),
        epochs=12,
        batch_size=48,
        record="epoch",
    )
    points = embedding(ensemble, inputs).points
    centres = points.mean(1)
    own = (points - centres[:, None]).norm(dim=-1)
    other = (points - centres.flip(0)[:, None]).norm(dim=-1)
    assert (own < other).all()


@pytest.mark.parametrize(("num", "perplexity"), [(3, 1.0), (4, 1.0), (18, 17 / 3), (91, 30.0), (200, 30.0)])
def test_the_perplexity_is_a_third_of_the_other_points_between_bounds(num, perplexity, monkeypatch):
    asked = {}

    class Recorded:
        def __init__(self, dim, **options):
            asked.update(options, dim=dim)

        def fit_transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setattr("sklearn.manifold.TSNE", Recorded)
    embeddings._on_plane(torch.zeros(num, 5), "tsne", 3)
    assert (asked["dim"], asked["perplexity"]) == (2, pytest.approx(perplexity))
    assert 0 <= asked["random_state"] < 2**32


def test_means_of_numbers_are_embedded(inputs):
    x, _ = table()
    ensemble = quick_fit(be.Task(small_mlp, be.Gaussian(noise=0.5)), (x, x[:, :2]), epochs=3, record="epoch")
    found = embedding(ensemble, inputs, kind="pca").points.flatten(0, 1)
    predicted = [measure.as_ensemble(ensemble, ensemble.recording.members(e)) for e in range(4)]
    means = torch.stack([one.predict(inputs).member_mean.flatten(1) for one in predicted], 1).flatten(0, 1).double()
    centred = means - means.mean(0)
    widest = torch.linalg.svdvals(centred)[:2]
    assert torch.allclose(torch.linalg.svdvals(found), widest, rtol=1e-5)


def test_checkpoints_are_the_last_epochs_without_the_start(ensemble):
    recording = ensemble.recording
    for last, epochs in ((1, [5]), (2, [4, 5]), (5, [1, 2, 3, 4, 5]), (10, [1, 2, 3, 4, 5])):
        points = embeddings.checkpoints(ensemble, 1, last)
        for name, leaf in points.items():
            assert torch.equal(leaf, torch.stack([recording.members(e).params[name][1] for e in epochs]))
    with pytest.raises(be.SettingError, match="at least 2 of the last epochs are needed, got last=1 of 5 recorded"):
        embeddings.checkpoints(ensemble, 1, 1, least=2)


def test_what_cannot_be_embedded_is_refused(ensemble, inputs):
    with pytest.raises(be.SettingError, match=r"train with fit\(..., record='epoch'\)"):
        embedding(quick_fit(be.Task(small_mlp, be.Categorical()), table()), inputs)
    with pytest.raises(be.SettingError, match="kind is"):
        embedding(ensemble, inputs, kind="umap")
    with pytest.raises(be.SettingError, match="numbers 0 to 2, got"):
        embedding(ensemble, inputs, members=[3])
    with pytest.raises(be.SettingError, match="3 networks and 2 numbers of each; there are 2 and 40"):
        embedding(ensemble, inputs, members=[0], epochs=[0, 1])
    with pytest.raises(be.CheckpointError, match="epoch 9 was not recorded"):
        embedding(ensemble, inputs, epochs=[9])
