"""The frozen part runs once a batch for all members, or once for all epochs, and training gives the same."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be


class Body(nn.Module):
    runs = 0
    """Rows that went through."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        Body.runs += len(x)
        return self.norm(self.layer(x)).relu()


def network():
    return nn.Sequential(Body(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 3, generator=GENERATOR), torch.arange(40) % 2
XV, YV = torch.randn(10, 3, generator=GENERATOR), torch.arange(10) % 2


@pytest.fixture
def model():
    Body.runs = 0
    given = network()
    given[0].norm.running_mean.fill_(0.3)
    return be.adapt(given, "head", head="1|3")


def fitted(model, method=None, data=(X, Y), **settings):
    method = method or be.DeepEnsemble(num_members=4, learning_rate=0.01)
    settings = {"epochs": 2, "batch_size": 10, "progress": False} | settings
    return be.fit(be.Task(model, be.Categorical()), method, data, **settings)


def by_hand(model, **settings):
    """The head alone, trained on what the frozen part gives."""
    body = model[0].eval()
    with torch.no_grad():
        rows = body(X)
    head = nn.Sequential(nn.Identity(), model[1], nn.ReLU(), model[3])
    return be.fit(
        be.Task(head, be.Categorical(), start="fresh"),
        be.DeepEnsemble(num_members=4, learning_rate=0.01),
        (rows, Y),
        epochs=2,
        batch_size=10,
        progress=False,
        **settings,
    )


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("cache", [False, True])
def test_it_is_the_training_of_heads_on_features(model, executor, cache):
    found, expected = fitted(model, executor=executor, cache=cache), by_hand(model, executor=executor)
    for name, leaf in expected.state.members.params.items():
        assert torch.allclose(found.state.members.params[name], leaf, atol=1e-5)


def test_the_frozen_part_runs_once_a_batch_for_all_members(model):
    def rows_of(num_members):
        Body.runs = 0
        fitted(model, be.DeepEnsemble(num_members=num_members), executor="loop")
        return Body.runs

    assert rows_of(12) == rows_of(2) < 3 * 40 + 300


def test_cached_it_runs_once_for_all_epochs(model, tmp_path):
    def rows_of(epochs, cache):
        Body.runs = 0
        fitted(model, epochs=epochs, validation=(XV, YV), cache=cache)
        return Body.runs

    assert rows_of(5, True) == rows_of(2, True)
    assert rows_of(5, tmp_path / "cache") == rows_of(2, tmp_path / "cache")
    assert rows_of(5, False) >= rows_of(2, False) + 3 * 40


def test_cached_on_disk_it_gives_the_same_bits(model, tmp_path):
    one, other = fitted(model, cache=True), fitted(model, cache=tmp_path / "cache")
    for name, leaf in one.state.members.params.items():
        assert torch.equal(leaf, other.state.members.params[name])
    assert list((tmp_path / "cache").glob("features-training*"))


def test_validation_sees_the_same_with_and_without(model):
    losses = [
        [row["validation_loss"] for row in fitted(model, validation=(XV, YV), cache=c).history] for c in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_cached_run_goes_on_where_it_was_stopped(model, tmp_path):
    whole = fitted(model, cache=True, epochs=4)
    fitted(model, cache=True, epochs=2, checkpoint=tmp_path / "run")
    again = fitted(model, cache=True, epochs=4, checkpoint=tmp_path / "run", resume=True)
    for name, leaf in whole.state.members.params.items():
        assert torch.equal(leaf, again.state.members.params[name])


def test_bootstrapped_members_take_their_own_rows_from_the_cache(model):
    method = be.DeepEnsemble(num_members=3, bootstrap=True)
    one, other = fitted(model, method), fitted(model, method, cache=True)
    for name, leaf in one.state.members.params.items():
        assert torch.allclose(leaf, other.state.members.params[name], atol=1e-5)


def test_adversarial_inputs_go_through_the_whole_network(model):
    """The gradient in the inputs goes through the frozen part, too."""
    ensemble = fitted(model, be.DeepEnsemble(num_members=2, adversarial=0.1), epochs=1)
    assert ensemble.evaluate((X, Y))["nll"] < 1
    with pytest.raises(be.SettingError, match="which adversarial training changes"):
        fitted(model, be.DeepEnsemble(num_members=2, adversarial=0.1), cache=True)


def test_what_cannot_be_kept_is_refused(model):
    with pytest.raises(be.DataError, match="pass arrays, tensors or a TensorDataset, not a DataLoader"):
        fitted(model, data=DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True), cache=True, batch_size=None)
    with pytest.raises(be.SettingError, match="cache is True, False or a folder, got 3"):
        fitted(model, cache=3)
    with pytest.raises(be.SettingError, match="cache needs a folder of its own"):
        fitted(model, cache="folder", checkpoint="folder")
    with pytest.raises(be.SettingError, match="nothing here is frozen"):
        be.fit(be.Task(network, be.Categorical()), be.DeepEnsemble(), (X, Y), epochs=1, cache=True, progress=False)


def test_rows_of_a_loader_go_through_once_a_batch(model):
    loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
    fitted(model, be.DeepEnsemble(num_members=6), data=loader, batch_size=None, executor="loop")
    assert Body.runs < 3 * 40 + 300


def test_function_space_repulsion_and_its_prior_take_prepared_rows(model):
    for points in ("batch", "noise"):
        method = be.Repulsive(num_members=3, space=be.FunctionSpace(points=points, prior_every=2))
        assert fitted(model, method, cache=True, epochs=1).evaluate((X, Y))["nll"] < 2


class Looking(Body):
    """Looks at its rows, as masks of transformers do, so that no record of its operations can be kept."""

    def forward(self, x):
        return super().forward(x) if x.max() < 100 else super().forward(x) * 0


def looking():
    given = network()
    given[0] = Looking()
    return be.adapt(given, "head", head="1|3")


MANY = torch.randn(400, 3, generator=GENERATOR)


def run_alone(ensemble, rows):
    """What each member gives by itself, in batches of the same size."""
    alone = [ensemble.keep([index]) for index in range(ensemble.num_members)]
    return torch.stack([torch.cat([one.predict(part).probs for part in rows.split(50)]) for one in alone])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_rows_to_predict_go_through_once_for_all_members(executor):
    ensemble = fitted(looking(), executor=executor)
    expected = run_alone(ensemble, MANY)
    Body.runs = 0
    found = ensemble.predict(MANY, batch_size=50)
    assert Body.runs < 4 * 400 / 2 + 300
    assert torch.allclose(found.member_probs, expected, rtol=0, atol=0 if executor == "loop" else 1e-6)
    Body.runs = 0
    ensemble.predict(MANY, batch_size=50)
    assert Body.runs == 400


def test_rows_to_predict_go_through_once_for_all_draws():
    ensemble = fitted(looking(), be.SWAG(num_members=1, rank=2, draws=10), executor="loop")
    ensemble.predict(MANY, batch_size=50)
    Body.runs = 0
    ensemble.predict(MANY, batch_size=50)
    assert Body.runs == 400


class Turning(nn.Module):
    """Calls its frozen parts in another order for large rows."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        first, second = (self.one, self.other) if x.max() < 100 else (self.other, self.one)
        return self.head(first(x).tanh() + second(x))


def test_a_network_that_calls_its_parts_in_another_order_for_some_rows_is_run_as_it_is():
    task = be.Task(Turning(), be.Categorical(), start="fresh")
    ensemble = be.fit(task, be.DeepEnsemble(num_members=3), (X, Y), epochs=1, executor="loop", progress=False)
    large = MANY * 1000
    ensemble.predict(MANY, batch_size=50)
    assert torch.equal(ensemble.predict(large[:50]).member_probs, run_alone(ensemble, large[:50]))


class Steps(nn.Module):
    """Runs a frozen layer once for each step of a sequence."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = self.cell(state + x[:, step]).tanh() if x.max() < 100 else state
        return self.head(state)


def test_rows_of_other_shapes_go_through_each_network():
    task = be.Task(Steps(), be.Categorical(), start="fresh")
    rows, longer = MANY.reshape(-1, 2, 3), MANY[:399].reshape(-1, 3, 3)
    data = rows[:40], Y
    ensemble = be.fit(task, be.DeepEnsemble(num_members=3), data, epochs=1, executor="loop", progress=False)
    for _ in range(3):
        assert torch.equal(ensemble.predict(rows, batch_size=50).member_probs, run_alone(ensemble, rows))
    assert torch.equal(ensemble.predict(longer, batch_size=50).member_probs, run_alone(ensemble, longer))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_batch_whose_frozen_parts_are_called_otherwise_is_trained_on_as_it_is(executor):
    """The second batch has a sequence of one step, the first, which the frozen layer was found on, of two."""
    network, sequences = Steps(), MANY[:20].reshape(10, 2, 3)
    batches = [(sequences[:5], Y[:5]), (sequences[5:, :1], Y[5:10])]
    data = be.Stream(lambda: iter(batches), num_data=10, steps_per_epoch=2)
    found = [
        be.fit(
            be.Task(network, be.Categorical(), start="fresh", train_frozen=whole),
            be.DeepEnsemble(num_members=3, learning_rate=0.1),
            data,
            epochs=3,
            executor=executor,
            progress=False,
        )
        for whole in (False, True)
    ]
    for name, leaf in found[0].state.members.params.items():
        assert torch.allclose(leaf, found[1].state.members.params[name], atol=1e-5)
