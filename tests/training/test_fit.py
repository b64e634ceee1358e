import json
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bayesemble as be
from bayesemble.training.batches import as_source
from bayesemble.training.run_folders import checkpoint
from helpers import all_leaves, dropout_mlp, largest_difference, norm_mlp, quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())


class Rows(Dataset):
    """A plain dataset that is not made of tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def test_arrays_tensors_lists_and_tensor_datasets_are_the_same_data():
    x, y = table()
    expected = quick_fit(TASK, (x, y)).state.members.params
    as_double = x.numpy().astype(np.float64)
    for data in [(as_double, y.numpy()), (x.tolist(), y.tolist()), TensorDataset(x, y), [x, y.double()]]:
        assert largest_difference(expected, quick_fit(TASK, data).state.members.params) == 0


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_datasets_and_loaders_train_and_repeat_by_the_seed(executor):
    data = Rows(*table())
    first, again, other = (quick_fit(TASK, data, executor=executor, seed=seed) for seed in (1, 1, 2))
    assert largest_difference(all_leaves(first), all_leaves(again)) == 0
    assert largest_difference(all_leaves(first), all_leaves(other)) > 0
    loader = DataLoader(data, batch_size=12, shuffle=True)
    fitted = quick_fit(TASK, loader, executor=executor, batch_size=None)
    assert fitted.task.num_data == 48
    assert set(fitted.evaluate(loader)) == {"nll", "accuracy", "ece", "brier", "overconfidence"}


def test_an_unshuffled_loader_is_the_same_as_its_arrays_in_one_batch():
    x, y = table(16)
    loader = DataLoader(Rows(x, y), batch_size=16)
    by_loader = quick_fit(TASK, loader, batch_size=None, epochs=5)
    by_array = quick_fit(TASK, (x, y), batch_size=None, epochs=5)
    assert largest_difference(by_loader.state.members.params, by_array.state.members.params) < 1e-6


def test_the_history_has_a_row_per_epoch_and_a_loss_per_member():
    rows = quick_fit(TASK, table(), epochs=3, validation=table(seed=1)).history
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all(len(row["loss"]) == 3 for row in rows)
    assert json.loads(json.dumps(rows)) == rows


def test_the_validation_loss_is_that_of_the_averaged_prediction():
    x, y = table(seed=1)
    fitted = quick_fit(TASK, table(), validation=(x, y))
    assert fitted.history[-1]["validation_loss"] == pytest.approx(be.metrics.nll(fitted.predict(x), y))


def test_validation_changes_nothing_in_batch_norm_and_dropout_networks():
    for make in (norm_mlp, dropout_mlp):
        task = be.Task(make, be.Categorical())
        plain, validated = quick_fit(task, table()), quick_fit(task, table(), validation=table(seed=1))
        assert largest_difference(all_leaves(plain), all_leaves(validated)) == 0


def overfit(**options):
    """Few rows, a large step, labels that are noise: the validation loss soon rises."""
    x, y = table(16)
    noisy = torch.arange(16) % 2
    method = be.DeepEnsemble(num_members=2, learning_rate=0.05)
    return quick_fit(TASK, (x, noisy), method, validation=(x.flip(0), y), **options)


def test_keep_best_returns_the_state_with_the_lowest_validation_loss():
    states = []
    fitted = overfit(epochs=25, keep_best=True, on_epoch=lambda state, row: states.append(state.clone()))
    losses = [row["validation_loss"] for row in fitted.history]
    best = losses.index(min(losses))
    assert best < 20
    assert largest_difference(fitted.state.members.params, states[best].members.params) == 0


def test_loading_a_run_that_kept_its_best_state_brings_back_that_state(tmp_path):
    x, y = table()
    options = {"validation": table(30, seed=1), "patience": 2, "epochs": 40, "checkpoint": tmp_path}
    ensemble = quick_fit(be.Task(small_mlp, be.Categorical()), (x, y), be.DeepEnsemble(learning_rate=0.3), **options)
    assert ensemble.history[-1]["validation_loss"] > min(row["validation_loss"] for row in ensemble.history)
    assert torch.equal(be.load(tmp_path, small_mlp).predict(x).probs, ensemble.predict(x).probs)


def test_early_stopping_waits_as_long_as_patience_says_and_returns_the_best():
    fitted, full = overfit(epochs=60, patience=4), overfit(epochs=60, keep_best=True)
    losses = [row["validation_loss"] for row in full.history]
    stop = next(i for i in range(60) if losses.index(min(losses[: i + 1])) == i - 4)
    assert len(fitted.history) == stop + 1 < 60
    again = overfit(epochs=60, keep_best=True, on_epoch=lambda state, row: row["epoch"] == stop + 1)
    assert largest_difference(fitted.state.members.params, again.state.members.params) == 0


def test_a_loss_that_stays_the_same_is_no_better_and_patience_ends():
    method = be.DeepEnsemble(num_members=2, learning_rate=1e-30)
    options = {"validation": table(30, seed=1), "patience": 2, "epochs": 10}
    fitted = quick_fit(be.Task(small_mlp, be.Categorical()), table(), method, **options)
    assert len({row["validation_loss"] for row in fitted.history}) == 1
    assert len(fitted.history) == 3


def test_the_validation_loss_is_a_mean_over_all_rows_whatever_their_batches():
    x, y = table(1500, seed=1)
    fitted = quick_fit(be.Task(small_mlp, be.Categorical()), table(), validation=(x, y), epochs=1)
    expected = -float(fitted.predict(x).log_prob(y).double().mean())
    assert fitted.history[-1]["validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_on_epoch_can_stop_training():
    assert len(quick_fit(TASK, table(), epochs=9, on_epoch=lambda state, row: row["epoch"] == 2).history) == 2


def interrupt_at(epoch):
    def on_epoch(state, row):
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return on_epoch


@pytest.mark.parametrize("executor", ["loop", "vmap", be.Loop(channels_last=True)], ids=repr)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(tmp_path, executor, optimizer):
    from helpers import images, norm_convnet

    task = be.Task(norm_convnet, be.Categorical())
    method = be.DeepEnsemble(num_members=2, optimizer=optimizer, schedule="cosine", learning_rate=0.01)
    options = {"epochs": 5, "executor": executor, "validation": images(12), "keep_best": True}
    expected = quick_fit(task, images(), method, **options)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(task, images(), method, checkpoint=tmp_path, on_epoch=interrupt_at(4), **options)
    resumed = quick_fit(task, images(), method, checkpoint=tmp_path, resume=True, **options)
    assert largest_difference(all_leaves(expected), all_leaves(resumed)) == 0
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in expected.history]


def test_resuming_a_finished_run_gives_it_back_and_more_epochs_go_on(tmp_path):
    first = quick_fit(TASK, table(), checkpoint=tmp_path, epochs=2)
    again = quick_fit(TASK, table(), checkpoint=tmp_path, epochs=2, resume=True)
    assert largest_difference(all_leaves(first), all_leaves(again)) == 0
    longer = quick_fit(TASK, table(), checkpoint=tmp_path, epochs=4, resume=True)
    assert largest_difference(all_leaves(longer), all_leaves(quick_fit(TASK, table(), epochs=4))) == 0


def test_checkpoint_every_saves_that_often_and_at_the_end(tmp_path):
    seen = []

    def look(state, row):
        seen.append(checkpoint.read(tmp_path).run["progress"]["epoch"] if checkpoint.exists(tmp_path) else 0)

    quick_fit(TASK, table(), checkpoint=tmp_path, checkpoint_every=3, epochs=7, on_epoch=look)
    assert seen == [0, 0, 0, 3, 3, 3, 6]
    assert checkpoint.read(tmp_path).run["progress"]["epoch"] == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 3}, "made with seed 0, now it is 3"),
        ({"batch_size": 8}, "made with batch_size 16, now it is 8"),
        ({"method": be.DeepEnsemble(num_members=3, learning_rate=0.5)}, "made with method"),
        ({"task": be.Task(small_mlp, be.Categorical(), prior=None)}, "made with task"),
        ({"data": table(40)}, "48 rows then, 40 now"),
        ({"executor": "vmap"}, "made with executor loop; ask for that or auto"),
        ({"epochs": 1}, "at epoch 2 already, epochs=1 are over"),
    ],
)
def test_resuming_under_other_settings_is_refused(tmp_path, change, message):
    settings = {
        "task": TASK,
        "data": table(),
        "method": be.DeepEnsemble(num_members=3),
        "checkpoint": tmp_path,
    }
    quick_fit(**settings)
    with pytest.raises(be.CheckpointError, match=message):
        quick_fit(**(settings | change), resume=True)


def test_whole_numbers_of_numpy_are_those_of_python(tmp_path):
    counts = {"epochs": 2, "batch_size": 16, "seed": 3, "checkpoint_every": 1, "keep_checkpoints": 1, "patience": 5}
    counts |= {"validation": table()}
    plain = quick_fit(TASK, table(), checkpoint=tmp_path / "plain", **counts)
    theirs = {name: np.int64(value) if isinstance(value, int) else value for name, value in counts.items()}
    found = quick_fit(TASK, table(), checkpoint=tmp_path / "numpy", **theirs)
    for name, leaf in plain.state.members.params.items():
        assert torch.equal(found.state.members.params[name], leaf)
    quick_fit(TASK, table(), checkpoint=tmp_path / "numpy", resume=True, **counts)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "seed", "checkpoint_every", "keep_checkpoints", "patience"])
@pytest.mark.parametrize("value", [1.5, "2", [1]])
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(be.SettingError, match=rf"{name} must be a whole number.*got {re.escape(repr(value))}"):
        quick_fit(TASK, table(), **{"validation": table(), name: value})


def test_a_seed_is_always_needed():
    with pytest.raises(be.SettingError, match="seed must be a whole number, got None"):
        quick_fit(TASK, table(), seed=None)


def test_an_existing_run_is_not_overwritten_by_accident(tmp_path):
    quick_fit(TASK, table(), checkpoint=tmp_path)
    with pytest.raises(be.CheckpointError, match="already holds a run; pass resume=True"):
        quick_fit(TASK, table(), checkpoint=tmp_path)


def test_a_saved_ensemble_is_no_run_to_resume(tmp_path):
    quick_fit(TASK, table()).save(tmp_path)
    with pytest.raises(be.CheckpointError, match="not a run that can be resumed"):
        quick_fit(TASK, table(), checkpoint=tmp_path, resume=True)


def test_a_loader_with_its_own_generator_cannot_be_resumed(tmp_path, generator):
    loader = DataLoader(Rows(*table()), batch_size=16, shuffle=True, generator=generator)
    quick_fit(TASK, loader, checkpoint=tmp_path, batch_size=None)
    with pytest.raises(be.SettingError, match="generator of its own cannot be resumed exactly"):
        quick_fit(TASK, loader, checkpoint=tmp_path, batch_size=None, resume=True, epochs=4)


def test_a_loss_that_blows_up_names_member_epoch_and_step_and_leaves_the_checkpoint(tmp_path):
    x, y = torch.linspace(-1, 1, 32)[:, None], torch.linspace(-1, 1, 32)
    task = be.Task(lambda: nn.Linear(1, 1), be.Gaussian(noise=1e-3), prior=None)
    method = be.DeepEnsemble(num_members=2, optimizer="sgd", learning_rate=0.1)
    with pytest.raises(be.TrainingError, match=r"loss of member \d became (inf|nan) in epoch \d+, step \d"):
        quick_fit(task, (x, y), method, checkpoint=tmp_path, epochs=50, batch_size=16)
    loaded = be.load(tmp_path, lambda: nn.Linear(1, 1))
    assert all(leaf.isfinite().all() for leaf in loaded.state.members.params.values())


X, Y = table()
NAN, INFINITE = X.clone(), X.clone()
NAN[7, 2], INFINITE[3, 1] = torch.nan, torch.inf
BAD_DATA = {
    "NaN": ((NAN, Y), "inputs must be finite numbers; row 7, column 2 holds nan"),
    "infinity": ((INFINITE, Y), "row 3, column 1 holds inf"),
    "NaN in the targets": (
        (X, torch.full((48,), torch.nan)),
        "targets must be finite numbers; row 0 holds nan",
    ),
    "wrong width": ((X[:, :3], Y), r"cannot run on inputs of shape \[\(4, 3\)\]"),
    "whole numbers": ((X.long(), Y), "the inputs are whole numbers: unless they are indices, make them real"),
    "label too large": (
        (X, Y + 1),
        r"a label in 0\.\.1, as the network has that many outputs; row \d+ has 2",
    ),
    "negative label": ((X, Y - 1), r"a label in 0\.\.1.*has -1"),
    "fractional label": ((X, Y + 0.5), r"must be a whole label; row 0 has"),
    "single class": ((X, torch.ones(48)), "at least two classes; all 48 rows have 1"),
    "empty": ((X[:0], Y[:0]), "has no rows"),
    "strings": (
        (np.array([["1", "2", "x", "4"]] * 4), Y[:4]),
        "inputs must be numbers; row 0, column 2 holds 'x'",
    ),
    "words as labels": ((X, np.array(["cat", "dog"] * 24)), "targets must be numbers; row 0 holds 'cat'"),
    "mismatched lengths": ((X, Y[:-1]), "same number of rows, got inputs 48, targets 47"),
    "ragged rows": (([[1.0, 2.0], [3.0]], [0, 1]), "with rows of equal length"),
    "dates": ((X, np.full(48, "2020-01-01", dtype="datetime64[D]")), r"must be real numbers, got datetime64"),
    "no targets": (X, "a pair \\(x, y\\), .*, a Dataset, a DataLoader"),
    "NaN of a member": (
        be.PerMember(NAN.reshape(8, 6, 4), Y.reshape(8, 6)),
        "inputs must be finite numbers; member 1, row 1, column 2 holds nan",
    ),
    "targets of too few members": (
        be.PerMember(X.reshape(3, 16, 4), Y[:32].reshape(2, 16)),
        "same number of members, got inputs 3, targets 2",
    ),
    "two-column labels": ((X, torch.stack([Y, Y], 1)), "a label, or probabilities of the classes .* sum to 1"),
    "three-column labels": ((X, torch.stack([Y, Y, Y], 1)), r"targets of shape \(48, 3\) do not fit"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused_before_training_with_its_place(name):
    data, message = BAD_DATA[name]
    with pytest.raises(be.DataError, match=message):
        quick_fit(TASK, data, on_epoch=lambda *_: pytest.fail("training began"))


BAD_SETTINGS = {
    "negative epochs": ({"epochs": -3}, "epochs must be a whole number from 0, got -3"),
    "no epochs": ({"epochs": 0}, "epochs=0 trains nothing"),
    "part of an epoch": ({"epochs": 1.5}, "got 1.5"),
    "empty batches": ({"batch_size": 0}, "batch_size must be a whole number from 1"),
    "patience without validation": ({"patience": 3}, "go by the validation loss"),
    "keep_best without validation": ({"keep_best": True}, "go by the validation loss"),
    "resume without folder": ({"resume": True}, "pass checkpoint="),
    "no patience": ({"patience": 0, "validation": table()}, "must be a whole number of epochs from 1, got 0"),
    "never a checkpoint": ({"checkpoint_every": 0}, "must be a whole number of epochs from 1, .* got 0"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_settings_that_make_no_sense_are_refused(name):
    options, message = BAD_SETTINGS[name]
    with pytest.raises(be.SettingError, match=message):
        quick_fit(TASK, table(), **options)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_data_of_another_number_of_members_than_the_method_has_is_refused(count):
    data = be.PerMember(X.reshape(count, -1, 4), Y.reshape(count, -1))
    with pytest.raises(be.DataError, match=f"that of {count} members, but there are 3"):
        quick_fit(TASK, data, be.DeepEnsemble(num_members=3))


def test_validation_data_of_another_number_of_members_is_refused_before_training():
    data = be.PerMember(X.reshape(2, -1, 4), Y.reshape(2, -1))
    with pytest.raises(be.DataError, match="that of 2 members, but there are 3"):
        quick_fit(TASK, table(), validation=data, on_epoch=lambda *_: pytest.fail("training began"))


def test_a_dataset_with_a_last_row_alone_trains_batch_norm():
    fitted = quick_fit(be.Task(norm_mlp, be.Categorical()), Rows(*table(33)), batch_size=16, epochs=1)
    assert fitted.state.members.buffers["1.num_batches_tracked"].tolist() == [2, 2, 2]


def test_an_empty_dataset_is_refused():
    with pytest.raises(be.DataError, match="has no rows"):
        quick_fit(TASK, Rows(X[:0], Y[:0]))


def test_a_numpy_seed_is_a_seed():
    fitted = quick_fit(TASK, table(), seed=np.int64(3))
    assert largest_difference(all_leaves(fitted), all_leaves(quick_fit(TASK, table(), seed=3))) == 0


def test_a_stream_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    with pytest.raises(be.DataError, match="a stream does not say how many rows there are"):
        quick_fit(TASK, DataLoader(Stream(), batch_size=16))


def test_bad_validation_data_is_refused_before_training():
    with pytest.raises(be.DataError, match="a label in 0"):
        quick_fit(TASK, table(), validation=(X, Y + 7))


def test_a_batch_size_beside_a_loader_of_another_is_refused():
    with pytest.raises(be.SettingError, match="batches of 12, batch_size=16 cannot be honoured"):
        quick_fit(TASK, DataLoader(Rows(*table()), batch_size=12), batch_size=16)


def test_batches_of_one_row_are_trained_on_where_that_is_asked_for():
    """Five plain gradient steps, written out; the prior is flat."""
    x, y = torch.arange(5.0)[:, None], torch.tensor([1.0, 0.0, 2.0, 1.0, 3.0])
    task = be.Task(lambda: nn.Linear(1, 1, bias=False), be.Gaussian(), prior=None)
    method = be.DeepEnsemble(num_members=1, optimizer="sgd", momentum=0.0, learning_rate=0.01)
    weight = task.new_members(1, seed=0).params["weight"].item()
    for row in torch.cat([batch.rows for batch in as_source((x, y), torch.float32).epoch(0, 1, seed=0)]).tolist():
        weight += 0.01 * (y[row].item() - weight * row) * row
    fitted = quick_fit(task, (x, y), method, epochs=1, batch_size=1)
    assert fitted.state.members.params["weight"].item() == pytest.approx(weight, rel=1e-5)


def test_a_last_row_alone_joins_the_batch_before_it():
    fitted = quick_fit(be.Task(norm_mlp, be.Categorical()), table(33), batch_size=16, epochs=1)
    assert fitted.state.members.buffers["1.num_batches_tracked"].tolist() == [2, 2, 2]


class SteepAtZero(nn.Module):
    """Its outputs are those of a small network, but the gradient of what it adds, 0 * sqrt(0), is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x) + 0 * (x[:, :1] * 0 * self.inner.weight.sum()).abs().sqrt()


def test_weights_that_are_not_finite_are_neither_saved_nor_returned(tmp_path):
    """The loss is finite in the first epoch, its gradient is not."""
    task = be.Task(SteepAtZero, be.Categorical())
    with pytest.raises(be.TrainingError, match=r"inner.weight of member 0 is no longer finite after epoch 1, though"):
        quick_fit(task, table(), batch_size=None, epochs=1, checkpoint=tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))


MISTAKES = {
    "a name for a method": ({"method": "deep_ensemble"}, "method must be one such as .* got 'deep_ensemble'"),
    "a class for a method": ({"method": be.DeepEnsemble}, "got the class DeepEnsemble; call it"),
    "no such device": ({"device": "nonsense"}, "device='nonsense' cannot be used here"),
}
if not torch.cuda.is_available():
    MISTAKES["a device that is not there"] = ({"device": "cuda"}, "device='cuda' cannot be used here.*leave it out")


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_a_sentence(name):
    options, message = MISTAKES[name]
    with pytest.raises(be.SettingError, match=message):
        quick_fit(TASK, table(), **options)


def test_autocast_around_training_is_refused():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(be.SettingError, match="cannot run inside torch"):
        quick_fit(TASK, table())


def small_task(**options):
    return be.Task(small_mlp, be.Categorical(), **options)


@pytest.mark.parametrize(
    "method", [be.DeepEnsemble(num_members=2), be.Laplace(select="all", structure="full")], ids=["ensemble", "laplace"]
)
def test_a_prior_beside_the_data_stands_in_place_of_the_tasks(tmp_path, method):
    before = quick_fit(small_task(), table(), method)
    prior = before.as_prior()
    expected = quick_fit(small_task(prior=prior), table(seed=1), method, epochs=4, start=before)
    options = {"start": before, "prior": prior, "checkpoint": tmp_path}
    quick_fit(small_task(), table(seed=1), method, epochs=2, **options)
    found = quick_fit(small_task(), table(seed=1), method, epochs=4, resume=True, **options)
    assert largest_difference(all_leaves(found), all_leaves(expected)) == 0
    assert be.load(tmp_path, small_mlp).task.prior == prior
    with pytest.raises(
        be.CheckpointError, match=r"with task prior=.*PosteriorPrior.*now it is prior=.*Vague"
    ) as refused:
        quick_fit(small_task(), table(seed=1), method, epochs=5, checkpoint=tmp_path, resume=True)
    assert len(str(refused.value)) < 400, "the numbers of a prior are no reading"


def test_fits_side_by_side_take_a_prior_too():
    prior, method = be.NormalPrior(0.1), be.DeepEnsemble(num_members=2)
    expected = quick_fit(small_task(prior=prior), table(), method)
    found = be.fit_side_by_side(TASK, method, [table()], prior=prior, epochs=2, batch_size=16, progress=False)
    assert largest_difference(all_leaves(found[0]), all_leaves(expected)) < 1e-6


def test_an_ensemble_is_no_prior_but_has_one():
    ensemble = quick_fit(TASK, table())
    for prior, words in (
        (ensemble, r"got an Ensemble; its posterior is ensemble.as_prior\(\)"),
        ("normal", "got 'normal'"),
    ):
        with pytest.raises(be.SettingError, match=words):
            quick_fit(TASK, table(), prior=prior)


def test_the_task_of_an_ensemble_counts_the_rows_that_it_meets_anew(tmp_path):
    weights = torch.full((48,), 0.5)
    for task, data, counted in ((TASK, table(20), 48), (small_task(num_data=7), table(20), 7)):
        ensemble = quick_fit(task, data)
        ensemble.save(tmp_path / str(counted))
        for met in (ensemble.task, be.load(tmp_path / str(counted), small_mlp).task):
            assert quick_fit(met, table()).task.num_data == counted
    weighted = quick_fit(TASK, (*table(), weights))
    assert weighted.task.num_data == 24
    assert quick_fit(weighted.task, table()).task.num_data == 48
