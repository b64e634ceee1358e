"""A run goes on with the rows that it began with."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import bayesemble as be
from bayesemble.training.batches import as_source
from bayesemble.training.run_folders.fingerprint import check_same, hash_arrays
from helpers import quick_fit, small_mlp, table

TASK = be.Task(small_mlp, be.Categorical())
X, Y = table()


class Rows(Dataset):
    """Rows one by one, perhaps with noise on them."""

    def __init__(self, x, y, noise=lambda: 0.0):
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise(), self.y[index]


def fingerprint(data, **options):
    return as_source(data, torch.float32, **options).fingerprint()


def same(saved, here):
    check_same({"training": saved}, {"training": here})


def changed(rows, *place):
    """One number of them is another by the smallest step there is."""
    other = rows.clone()
    other[place] = torch.nextafter(other[place], torch.tensor(9.0)) if rows.is_floating_point() else 1 - other[place]
    return other


DATA = {
    "array": ((X, Y), [(changed(X, 47, 3), Y), (X, changed(Y, 20)), (X.flip(0), Y.flip(0)), (X[:-1], Y[:-1])]),
    "tuple": (((X, X), Y), [((X, changed(X, 0, 0)), Y), ((changed(X, 0, 0), X), Y)]),
    "dict": (({"a": X, "b": 2 * X}, Y), [({"a": 2 * X, "b": X}, Y), ({"a": X, "c": 2 * X}, Y)]),
    "per member": (
        be.PerMember(X.reshape(3, 16, 4), Y.reshape(3, 16)),
        [
            be.PerMember(changed(X, 47, 3).reshape(3, 16, 4), Y.reshape(3, 16)),
            be.PerMember(X.reshape(2, 24, 4), Y.reshape(2, 24)),
            (X, Y),
        ],
    ),
    "dataset": (Rows(X, Y), [Rows(changed(X, 0, 0), Y), Rows(X, changed(Y, 47)), Rows(X[:-1], Y[:-1])]),
    "loader": (
        DataLoader(Rows(X, Y), batch_size=16, shuffle=True),
        [DataLoader(Rows(X.flip(0), Y.flip(0)), batch_size=16, shuffle=True)],
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_other_rows_have_another_fingerprint_and_the_same_rows_the_same(kind):
    data, others = DATA[kind]
    same(fingerprint(data), fingerprint(data))
    for other in others:
        with pytest.raises(be.CheckpointError, match=r"rows then|other contents or another order"):
            same(fingerprint(data), fingerprint(other))


def test_it_is_that_of_the_numbers_not_of_how_they_lie_in_memory():
    wide = torch.stack([X, X + 1], 2)[:, :, 0]
    assert not wide.is_contiguous()
    for same in (wide, X.numpy(), X.numpy().astype(np.float64), X.tolist()):
        assert fingerprint((same, Y)) == fingerprint((X, Y))
    assert fingerprint(({"b": X, "a": Y}, Y)) == fingerprint(({"a": Y, "b": X}, Y))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.int64])
def test_every_number_type_is_told_from_the_others(kind):
    rows = torch.tensor([[0, 1], [1, 0]]).to(kind)
    assert hash_arrays({"x": rows}) == hash_arrays({"x": rows.clone()})
    assert hash_arrays({"x": rows}) != hash_arrays({"x": rows.flip(1)})
    assert hash_arrays({"x": rows}) != hash_arrays({"x": rows.float()})


def test_rows_of_no_columns_and_rows_larger_than_a_block():
    assert hash_arrays({"x": torch.zeros(3, 0)}) != hash_arrays({"x": torch.zeros(4, 0)})
    large = torch.zeros(3, 300_000)
    assert hash_arrays({"x": large}) != hash_arrays({"x": changed(large, 2, 299_999)})


@pytest.mark.parametrize(("block", "sizes"), [(3 * 16, [48, 48, 16]), (3 * 16 - 1, [32, 32, 32, 16]), (1, [16] * 7)])
def test_as_many_rows_are_hashed_at_a_time_as_fit_into_a_block(block, sizes, monkeypatch):
    updates = []

    class Recorded:
        def update(self, part):
            updates.append(len(part))

        def hexdigest(self):
            return ""

    monkeypatch.setattr("bayesemble.training.run_folders.fingerprint.hashlib.sha256", Recorded)
    monkeypatch.setattr("bayesemble.training.run_folders.fingerprint._BLOCK", block)
    hash_arrays({"x": X[:7]})
    assert updates[1:] == sizes


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_read_only_file_is_hashed_where_it_lies(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert hash_arrays({"x": mapped}) == hash_arrays({"x": X})


@pytest.mark.parametrize("noise", [lambda: torch.rand(()), lambda: float(np.random.rand()), random.random])
def test_augmentation_by_the_usual_generators_is_the_same_each_time(noise):
    python, legacy = random.getstate(), np.random.get_state()[1].copy()
    assert fingerprint(Rows(X, Y, noise))["contents"] == fingerprint(Rows(X, Y, noise))["contents"] is not None
    assert random.getstate() == python
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)


def test_rows_that_differ_each_time_are_known_by_their_number_alone():
    own = random.Random(0)
    found = fingerprint(Rows(X, Y, own.random))
    assert found == {"rows": 48, "contents": None}
    same(found, fingerprint(Rows(X, Y)))
    for saved, here, words in ((found, Rows(X[1:], Y[1:]), "48 rows then, 47 now"), (3, Rows(X, Y), "None rows then")):
        with pytest.raises(be.CheckpointError, match=words):
            same(saved, fingerprint(here))


@pytest.mark.parametrize("kind", ["array", "dataset", "loader"])
def test_a_run_does_not_go_on_with_other_data_of_the_same_size(tmp_path, kind):
    data, (other, *_) = DATA[kind]
    options = {"checkpoint": tmp_path, "batch_size": None if kind == "loader" else 16}
    quick_fit(TASK, data, **options)
    with pytest.raises(be.CheckpointError, match="the training data are not those that the run began with"):
        quick_fit(TASK, other, resume=True, epochs=3, **options)
    assert len(quick_fit(TASK, data, resume=True, epochs=3, **options).history) == 3


def test_nor_with_other_validation_rows(tmp_path):
    def train(epochs, validation=None, resume=True):
        quick_fit(TASK, (X, Y), epochs=epochs, validation=validation, checkpoint=tmp_path, resume=resume)

    train(1, (X[:8], Y[:8]), resume=False)
    train(2)  # without any, they are not forgotten
    with pytest.raises(be.CheckpointError, match="the validation data are not those that the run began with"):
        train(3, (X[8:16], Y[8:16]))
    train(3, (X[:8], Y[:8]))
