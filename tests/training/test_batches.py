import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from bayesemble.core.errors import DataError, SettingError
from bayesemble.task.likelihoods import Categorical, Gaussian
from bayesemble.task.task import Task
from bayesemble.training.batches import ArraySource, LoaderSource, PerMember, as_source

FLOAT = torch.float32


def numbered(num_rows, columns=2):
    """Rows that carry their own number, so that a batch shows which rows it holds."""
    targets = np.arange(num_rows, dtype=np.float64)
    return np.repeat(targets[:, None], columns, axis=1), targets


class Rows(Dataset):
    """A dataset that is not made of tensors; row i holds i."""

    def __init__(self, num_rows=10, targets=None):
        self.targets = list(range(num_rows)) if targets is None else targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.tensor([float(index)]), self.targets[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0)] * 3)


def seen(batches):
    return [int(row) for batch in batches for row in batch.targets]


def sizes(batches):
    return [len(batch.targets) for batch in batches]


def task_with(likelihood, output_shape):
    facts = {"num_data": 6, "num_rows": 6, "output_shape": output_shape, "stochastic": False}
    return Task(lambda: nn.Linear(1, 1), likelihood).rebind(facts)


# --- batches of rows in memory ---


@pytest.mark.parametrize("batch_size", [None, 1, 3, 4, 7, 20, 100])
def test_an_epoch_holds_every_row_once_whatever_the_batch_size(batch_size):
    source = as_source(numbered(20), FLOAT)
    batches = list(source.epoch(0, batch_size, seed=1))
    assert sorted(seen(batches)) == list(range(20))
    assert len(batches) == source.steps(batch_size)


def test_inputs_targets_and_row_numbers_stay_together():
    for batch in as_source(numbered(20), FLOAT).epoch(0, 6, seed=1):
        assert torch.equal(batch.inputs[:, 0], batch.targets)
        assert torch.equal(batch.rows.float(), batch.targets)


def test_the_order_depends_on_seed_and_epoch_and_not_on_the_batch_size():
    source = as_source(numbered(50), FLOAT)
    order = seen(source.epoch(0, 10, seed=1))
    assert order == seen(source.epoch(0, 10, seed=1)) == seen(source.epoch(0, 7, seed=1))
    assert order != seen(source.epoch(1, 10, seed=1))
    assert order != seen(source.epoch(0, 10, seed=2))
    assert order != list(range(50))


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "expected"),
    [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (9, 4, [4, 5]), (5, 4, [5]), (1, 4, [1]), (3, None, [3])],
)
def test_a_last_row_alone_joins_the_batch_before_it(num_rows, batch_size, expected):
    source = as_source(numbered(num_rows), FLOAT)
    assert sizes(source.epoch(0, batch_size, seed=0)) == expected
    assert source.steps(batch_size) == len(expected)


def test_batches_of_one_row_stay_so_when_that_is_asked_for():
    source = as_source(numbered(3), FLOAT)
    assert sizes(source.epoch(0, 1, seed=0)) == [1, 1, 1]
    assert source.steps(1) == 3


@pytest.mark.parametrize(("batch_size", "expected"), [(4, [4, 5]), (3, [3, 3, 3]), (None, [9]), (100, [9])])
def test_in_order_gives_the_rows_as_they_stand(batch_size, expected):
    batches = list(as_source(numbered(9), FLOAT).in_order(batch_size))
    assert seen(batches) == list(range(9))
    assert sizes(batches) == expected


def test_a_bootstrap_gives_each_member_the_rows_that_were_drawn_for_it_in_the_order_of_the_epoch():
    rows = torch.tensor([[0, 0, 3, 5, 5, 5], [1, 2, 3, 4, 5, 0]])
    source = as_source(numbered(6), FLOAT)
    batches = list(source.epoch(0, 4, seed=0, rows=rows))
    for batch in batches:
        assert batch.inputs_per_member
        assert batch.targets_per_member
        assert torch.equal(batch.inputs[..., 0], batch.targets)
        assert torch.equal(batch.rows.float(), batch.targets)
    order = torch.cat([batch.rows for batch in source.epoch(0, 4, seed=0)])
    assert torch.equal(torch.cat([batch.rows for batch in batches], dim=1), rows[:, order])


def test_members_with_data_of_their_own_see_the_same_places_of_it():
    x = torch.arange(12.0).reshape(2, 6, 1)
    source = as_source(PerMember(x, x[..., 0]), FLOAT)
    assert source.num_data == 6
    assert torch.equal(source.example(3), x[0, :3])
    batches = list(source.epoch(0, 4, seed=0))
    assert all(torch.equal(batch.inputs_of(m)[:, 0], batch.targets_of(m)) for batch in batches for m in (0, 1))
    joined = torch.cat([batch.targets for batch in batches], dim=1)
    assert torch.equal(joined[1], joined[0] + 6)
    assert sorted(joined[0].tolist()) == list(range(6))


def test_data_per_member_cannot_be_bootstrapped_as_well():
    source = as_source(PerMember(torch.zeros(2, 6, 1), torch.zeros(2, 6)), FLOAT)
    with pytest.raises(SettingError, match="cannot be resampled per member as well; turn bootstrap and own_order off"):
        list(source.epoch(0, 4, seed=0, rows=torch.zeros(2, 6, dtype=torch.long)))


@pytest.mark.parametrize("wrap", [tuple, lambda pair: dict(zip("ab", pair, strict=True))], ids=["tuple", "dict"])
def test_inputs_of_several_tensors_are_cut_alike(wrap):
    x, y = numbered(10)
    source = as_source((wrap((x, x[:, 0].astype(np.int64))), y), FLOAT)
    for batch in source.epoch(0, 3, seed=0):
        first, second = batch.inputs.values() if isinstance(batch.inputs, dict) else batch.inputs
        assert torch.equal(first[:, 0], batch.targets)
        assert torch.equal(second.float(), batch.targets)


def test_a_source_moves_to_a_device():
    moved = as_source((((torch.zeros(2, 1)), torch.zeros(2, 3)), torch.zeros(2)), FLOAT).to(torch.device("meta"))
    assert {leaf.device.type for leaf in (*moved.inputs, moved.targets)} == {"meta"}


# --- what counts as data ---


def test_arrays_lists_tensors_and_tensor_datasets_are_the_same_data():
    x, y = [[0.0, 1.0], [2.0, 3.0]], [1.0, 2.0]
    forms = [
        (x, y),
        [np.array(x), np.array(y)],
        (torch.tensor(x), torch.tensor(y)),
        (np.array(x, dtype=object), np.array(["1", "2"])),
        TensorDataset(torch.tensor(x), torch.tensor(y)),
    ]
    for form in forms:
        source = as_source(form, FLOAT)
        assert source.inputs.tolist() == x
        assert source.targets.tolist() == y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_source_has_the_number_type_of_the_network(dtype):
    source = as_source((np.full((1, 1), 1 / 3), np.full(1, 1 / 3)), dtype)
    assert source.inputs.dtype == source.targets.dtype == dtype
    assert source.targets.item() == torch.tensor(1 / 3, dtype=dtype).item()


def test_a_source_and_a_loader_stand_for_themselves():
    source, loader = as_source(numbered(3), FLOAT), DataLoader(Rows())
    assert as_source(source, FLOAT) is source
    assert as_source(loader, FLOAT).loader is loader


def test_a_tensor_dataset_of_three_tensors_has_two_inputs():
    source = as_source(TensorDataset(torch.zeros(4, 1), torch.ones(4, 2), torch.arange(4)), FLOAT)
    assert [tuple(leaf.shape) for leaf in source.inputs] == [(4, 1), (4, 2)]
    assert source.targets.tolist() == [0, 1, 2, 3]


def test_an_example_is_the_first_few_rows():
    source = as_source(numbered(10), FLOAT)
    assert source.example(3)[:, 0].tolist() == [0, 1, 2]
    assert isinstance(source, ArraySource)


# --- targets as the likelihood wants them ---


def test_checked_targets_have_the_shape_of_the_outputs():
    source = as_source((np.zeros((3, 1)), np.array([0.0, 1.0, 2.0])), FLOAT)
    assert source.checked(task_with(Gaussian(), (1,)), training=True).targets.shape == (3, 1)
    labels = source.checked(task_with(Categorical(), (3,)), training=True).targets
    assert labels.dtype == torch.int64


def test_checked_targets_keep_their_member_axis():
    source = as_source(PerMember(torch.zeros(2, 3, 1), torch.tensor([[0.0, 1, 2], [2, 1, 0]])), FLOAT)
    assert source.checked(task_with(Gaussian(), (1,)), training=True).targets.shape == (2, 3, 1)
    assert source.checked(task_with(Categorical(), (3,)), True).targets.tolist() == [[0, 1, 2], [2, 1, 0]]


def test_one_class_is_refused_for_training_only():
    source = as_source((np.zeros((3, 1)), np.ones(3, dtype=int)), FLOAT)
    task = task_with(Categorical(), (2,))
    assert source.checked(task, training=False).targets.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="at least two classes; all 3 rows have 1"):
        source.checked(task, training=True)


def test_labels_out_of_range_are_refused_before_training():
    source = as_source((np.zeros((3, 1)), np.array([0, 1, 2])), FLOAT)
    with pytest.raises(DataError, match=r"a label in 0\.\.1.*row 2 has 2"):
        source.checked(task_with(Categorical(), (2,)), training=True)


# --- refusals ---


BAD_DATA = {
    "cell": ((np.array([[0.0], [math.nan]]), np.zeros(2)), "inputs must be finite numbers; row 1, column 0 holds nan"),
    "target": ((np.zeros((2, 1)), [0.0, math.inf]), "targets must be finite numbers; row 1 holds inf"),
    "text": ((np.zeros((2, 1)), ["0", "cat"]), "targets must be numbers; row 1 holds 'cat'"),
    "lengths": ((np.zeros((3, 2)), np.zeros(4)), "the same number of rows, got inputs 3, targets 4"),
    "no rows": ((np.zeros((0, 2)), np.zeros(0)), "the data has no rows"),
    "no inputs": (TensorDataset(torch.zeros(3)), "there are no inputs"),
    "no targets": (PerMember(torch.zeros(2, 3, 1)), r"no targets; a pair \(inputs, targets\) was needed"),
    "cell of a member": (
        PerMember([[[0.0], [math.nan]]] * 2, np.zeros((2, 2))),
        "inputs must be finite numbers; member 0, row 1, column 0 holds nan",
    ),
    "lengths of members": (
        PerMember(torch.zeros(2, 3, 1), torch.zeros(2, 4)),
        "the same number of rows, got inputs 3, targets 4",
    ),
    "numbers of members": (
        PerMember(torch.zeros(2, 3, 1), torch.zeros(5, 3)),
        "the same number of members, got inputs 2, targets 5",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_is_checked_where_it_comes_in(name):
    data, message = BAD_DATA[name]
    with pytest.raises(DataError, match=message):
        as_source(data, FLOAT)


@pytest.mark.parametrize(
    "data", [np.zeros((3, 2)), (1, 2, 3, 4), None, "file.csv"], ids=["array", "four", "none", "text"]
)
def test_what_is_no_data_is_refused_by_its_type(data):
    with pytest.raises(DataError, match=rf"a pair \(x, y\), .*, a Dataset, a DataLoader.*got {type(data).__name__}"):
        as_source(data, FLOAT)


# --- loaders ---


def test_a_loader_is_shuffled_by_seed_and_epoch_alone():
    source = as_source(DataLoader(Rows(30), batch_size=7, shuffle=True), FLOAT)
    order = seen(source.epoch(0, None, seed=1))
    assert sorted(order) == list(range(30))
    assert order == seen(source.epoch(0, None, seed=1))
    assert order != seen(source.epoch(1, None, seed=1))
    assert order != seen(source.epoch(0, None, seed=2))


def test_a_loader_that_does_not_shuffle_keeps_its_order():
    source = as_source(DataLoader(Rows(10), batch_size=4), FLOAT)
    assert seen(source.in_order(None)) == seen(source.epoch(3, None, seed=9)) == list(range(10))


@pytest.mark.parametrize(("drop_last", "num_data", "steps"), [(False, 10, 3), (True, 8, 2)])
def test_the_rows_and_steps_of_a_loader_are_those_it_yields(drop_last, num_data, steps):
    source = as_source(DataLoader(Rows(10), batch_size=4, drop_last=drop_last), FLOAT)
    batches = list(source.epoch(0, None, seed=0))
    assert source.num_data == num_data == len(seen(batches))
    assert source.steps(None) == source.steps(4) == steps == len(batches)


def test_a_dataset_is_loaded_in_batches_of_the_size_asked_for():
    source = as_source(Rows(10), FLOAT, batch_size=4)
    assert isinstance(source, LoaderSource)
    batches = list(source.epoch(0, 4, seed=0))
    assert sizes(batches) == [4, 4, 2]
    assert sorted(seen(batches)) == list(range(10))
    assert sizes(as_source(Rows(10), FLOAT).epoch(0, None, seed=0)) == [10]


def test_a_dataset_keeps_its_order_where_shuffling_is_turned_off():
    source = as_source(Rows(30), FLOAT, batch_size=7, shuffle=False)
    assert seen(source.in_order(None)) == seen(source.epoch(0, 7, seed=1)) == list(range(30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_of_a_loader_are_as_precise_as_the_network(dtype):
    (batch,) = as_source(DataLoader(Rows(targets=[0.1, 1 / 3]), batch_size=2), dtype).in_order(None)
    assert torch.equal(batch.targets, torch.tensor([0.1, 1 / 3], dtype=dtype))


def test_batches_of_a_loader_take_the_number_type_and_the_device_asked_for():
    source = as_source(DataLoader(Rows(4), batch_size=4), torch.float64)
    assert source.example(2).dtype == torch.float64
    assert source.example(2).tolist() == [[0], [1]]
    (batch,) = source.to(torch.device("meta")).in_order(None)
    assert (batch.inputs.device.type, batch.targets.device.type) == ("meta", "meta")


def test_targets_of_a_loader_are_checked_batch_by_batch():
    source = as_source(DataLoader(Rows(targets=[0, 1, 1, 5]), batch_size=2), FLOAT)
    checked = source.checked(task_with(Categorical(), (2,)), training=True)
    batches = checked.in_order(None)
    assert next(batches).targets.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"a label in 0\.\.1.*row 1 has 5"):
        next(batches)


def test_a_loader_that_yields_nan_is_refused():
    with pytest.raises(DataError, match="targets must be finite numbers; row 2 holds nan"):
        list(as_source(DataLoader(Rows(targets=[0.0, 1.0, math.nan]), batch_size=3), FLOAT).in_order(None))


def test_a_loader_must_yield_pairs():
    loader = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
    with pytest.raises(DataError, match=r"must yield pairs \(inputs, targets\), it yielded 1 items"):
        list(as_source(loader, FLOAT).epoch(0, None, seed=0))


def test_a_batch_size_other_than_the_loaders_is_refused():
    with pytest.raises(SettingError, match="has batches of 4, batch_size=5 cannot be honoured"):
        as_source(DataLoader(Rows(), batch_size=4), FLOAT).steps(5)


def test_a_loader_cannot_be_bootstrapped():
    with pytest.raises(SettingError, match="bootstrap and own_order need rows that can be taken by index"):
        list(as_source(DataLoader(Rows()), FLOAT).epoch(0, None, 0, rows=torch.zeros(2, 10, dtype=torch.long)))


@pytest.mark.parametrize("wrap", [lambda stream: stream, DataLoader], ids=["alone", "in a loader"])
def test_a_stream_is_refused(wrap):
    with pytest.raises(DataError, match="a stream does not say how many rows there are"):
        as_source(wrap(Stream()), FLOAT)


def test_a_loader_without_a_length_is_refused():
    class Endless(Sampler):
        def __iter__(self):
            return itertools.repeat(0)

    with pytest.raises(DataError, match="needs a length to train on; give its sampler a __len__"):
        _ = as_source(DataLoader(Rows(), sampler=Endless()), FLOAT).num_data


def test_only_a_loader_without_a_generator_of_its_own_can_be_resumed():
    as_source(DataLoader(Rows(), shuffle=True), FLOAT).check_resumable()
    own = DataLoader(Rows(), shuffle=True, generator=torch.Generator())
    with pytest.raises(SettingError, match="a generator of its own cannot be resumed exactly"):
        as_source(own, FLOAT).check_resumable()
