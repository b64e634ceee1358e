"""Batches of any form are read by a function, with the numbers of pairs: in training, validation and prediction."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.training.incoming.mappings import columns_of, has_rows
from bayesemble.training.incoming.unpacking import Unpacking
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

X, Y = table(40)
W = torch.arange(40).float() % 3 + 1
ROWS = [{"left": x[:2], "right": x[2:], "label": y, "weight": w} for x, y, w in zip(X, Y, W, strict=True)]


class Rows(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index]


class Pairs(Rows):
    def __getitem__(self, index):
        return X[index], Y[index]


def as_objects(rows):
    """Batches of a form that no library could guess."""
    columns = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return SimpleNamespace(columns=columns, made_by="someone")


def unpack(batch):
    columns = batch if isinstance(batch, dict) else batch.columns
    return torch.cat([columns["left"], columns["right"]], 1), columns.get("label")


def task(**options):
    return be.Task(small_mlp, be.Categorical(), **options)


def batches():
    return [as_objects(ROWS[start : start + 8]) for start in range(0, 40, 8)]


FORMS = {
    "a loader": lambda: DataLoader(Rows(), batch_size=8, collate_fn=as_objects),
    "a data set": Rows,
    "a stream": lambda: be.Stream(batches, num_data=40, steps_per_epoch=5),
}


@pytest.fixture(scope="module")
def plain():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    return quick_fit(task(), loader, batch_size=None, validation=loader)


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_any_form_train_validate_and_predict_as_pairs_do(form, plain, tmp_path):
    size, expected = (8, None) if form == "a data set" else (None, plain)
    if expected is None:  # whose rows are shuffled, as the same rows in pairs are
        expected = quick_fit(task(), Pairs(), batch_size=8, validation=Pairs())
    found = quick_fit(task(unpack=unpack), FORMS[form](), batch_size=size, validation=FORMS[form]())
    assert largest_difference(all_leaves(found), all_leaves(expected)) == 0
    assert found.history[-1]["validation_loss"] == pytest.approx(expected.history[-1]["validation_loss"], rel=1e-6)
    torch.testing.assert_close(found.predict(FORMS[form]()).probs, expected.predict(X).probs)
    assert found.evaluate(FORMS[form]())["nll"] == pytest.approx(expected.evaluate((X, Y))["nll"], rel=1e-5)
    torch.testing.assert_close(found.predict(X).probs, expected.predict(X).probs)  # arrays are as they are

    found.save(tmp_path)
    loaded = be.load(tmp_path, small_mlp, unpack=unpack)
    torch.testing.assert_close(loaded.predict(FORMS[form]()).probs, expected.predict(X).probs)
    without = be.load(tmp_path, small_mlp)
    torch.testing.assert_close(without.predict(X).probs, expected.predict(X).probs)
    with pytest.raises(DataError, match=r"give it again as load\(..., unpack=...\)"):
        without.predict(FORMS[form]())


def test_the_third_that_it_gives_are_weights():
    def triple(batch):
        return *unpack(batch), batch.columns.get("weight")

    full = [as_objects(ROWS)]
    expected = quick_fit(task(), (X, Y, W), batch_size=None)
    stream = be.Stream(full, num_data=int(W.sum()), steps_per_epoch=1)  # which says the sum: the task need not
    found = quick_fit(task(unpack=triple), stream, batch_size=None, weights=True)
    assert found.task.num_data == expected.task.num_data == W.sum()
    assert largest_difference(all_leaves(found), all_leaves(expected)) < 1e-6
    torch.testing.assert_close(found.predict(iter(full)).probs, found.predict(X).probs)
    with pytest.raises(DataError, match="it gave 3 items; if the third are weights of rows, fit takes them"):
        found.evaluate(be.Stream(full))
    for row in full:
        del row.columns["weight"]  # then it gives None, and all rows count alike
    assert found.evaluate(be.Stream(full)) == pytest.approx(found.evaluate((X, Y)))
    with pytest.raises(DataError, match="unpack must give triples"):
        quick_fit(task(unpack=triple), stream, batch_size=None, weights=True)


def test_a_network_trained_elsewhere_takes_such_batches_too():
    with scoped(0):
        networks = [small_mlp(), small_mlp()]
    found = be.Ensemble.from_modules(networks, be.Categorical(), data=FORMS["a loader"](), unpack=unpack)
    assert found.task.num_data == 40
    torch.testing.assert_close(found.predict(FORMS["a stream"]()).probs, found.predict(X).probs)


def test_what_cannot_be_unpacked_is_refused_in_a_sentence():
    with pytest.raises(SettingError, match=r"unpack is a function that gives .* got 'label'"):
        task(unpack="label")
    with pytest.raises(SettingError, match="got it beside targets='label'"):
        task(unpack=unpack, targets="label")
    for function, words in {
        id: "unpack must give pairs .* it gave int",
        (lambda batch: (1, 2, 3, 4)): "it gave 4 items",
        (lambda batch: batch.missing): r"could not read a batch \(SimpleNamespace\): AttributeError: .*missing",
    }.items():
        with pytest.raises(DataError, match=words):
            quick_fit(task(unpack=function), FORMS["a loader"](), batch_size=None)
    with pytest.raises(DataError, match="say which of them are the targets"):
        quick_fit(task(unpack=unpack), {"left": X[:, :2], "right": X[:, 2:], "label": Y})
    with pytest.raises(DataError, match=r"unpack must give pairs .* it gave int"):
        Unpacking(function=len).inputs([1])
    with pytest.raises(DataError, match="which of the columns are weights"):
        Unpacking("label").parts({"label": Y, "x": X}, weighted=True)


class Sum(nn.Module):
    """A network that takes columns by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, one, pair):
        return self.layer(torch.cat([one[:, None], pair], 1))


class Column:
    """What a column of Arrow looks like: it becomes an array that is read-only, and one of lists an array of arrays."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        array = np.asarray(self.values)
        array.flags.writeable = False
        return array


class Table:
    """What a table or a record batch of Arrow looks like."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def column(self, name):
        return Column(self.columns[name])

    __getitem__ = column

    def to_pydict(self):
        return self.columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __array__(self, dtype=None, copy=None):
        return np.stack([self.columns[name] for name in self.column_names], 1)


def lists(values):
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


def stand_in(rows):
    x = X[rows].numpy()
    return Table(one=x[:, 0].copy(), pair=lists(x[:, 1:3]), y=Y[rows].numpy())


def of_arrow(rows):
    arrow = pytest.importorskip("pyarrow")
    x = X[rows].numpy()
    pairs = arrow.FixedSizeListArray.from_arrays(arrow.array(x[:, 1:3].ravel()), 2)
    return arrow.RecordBatch.from_arrays(
        [arrow.array(x[:, 0]), pairs, arrow.array(Y[rows].numpy())], ["one", "pair", "y"]
    )


@pytest.mark.parametrize("make", [stand_in, of_arrow])
def test_tables_and_batches_of_arrow_are_columns_by_name(make):
    named = be.Task(Sum, be.Categorical(), targets="y")
    parts = [make(slice(start, start + 8)) for start in range(0, 40, 8)]
    arrays = {"one": X[:, 0], "pair": X[:, 1:3]}
    expected = quick_fit(named, DataLoader(Named(arrays), batch_size=8), batch_size=None)
    found = quick_fit(named, be.Stream(parts, num_data=40, steps_per_epoch=5), batch_size=None)
    assert largest_difference(all_leaves(found), all_leaves(expected)) == 0
    whole, probs = make(slice(None)), expected.predict(arrays).probs
    assert not has_rows(whole)
    assert list(columns_of(whole)) == ["one", "pair", "y"]
    for rows in (whole, iter(parts), be.Stream(parts)):
        torch.testing.assert_close(found.predict(rows).probs, probs)
    at_once = quick_fit(named, whole, batch_size=None)
    assert (
        largest_difference(all_leaves(at_once), all_leaves(quick_fit(named, arrays | {"y": Y}, batch_size=None))) == 0
    )
    assert found.evaluate(whole)["nll"] == pytest.approx(expected.evaluate(arrays | {"y": Y})["nll"])


class Named(Rows):
    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()} | {"y": Y[index]}


@pytest.mark.parametrize("arrow", [False, True], ids=["stand-in", "pyarrow"])
def test_a_matrix_is_made_of_columns_by_a_function(arrow, plain):
    names = "abcd"
    columns = {name: X[:, place].numpy() for place, name in enumerate(names)} | {"y": Y.numpy()}
    make = pytest.importorskip("pyarrow").table if arrow else lambda given: Table(**given)
    parts = [make({name: column[i : i + 8].copy() for name, column in columns.items()}) for i in range(0, 40, 8)]

    def matrix(batch):
        return np.stack([batch[name] for name in names], 1), batch["y"]

    stream = be.Stream(lambda: iter(parts), num_data=40, steps_per_epoch=5)
    found = quick_fit(task(unpack=matrix), stream, batch_size=None)
    assert largest_difference(all_leaves(found), all_leaves(plain)) == 0
    torch.testing.assert_close(found.predict(stream).probs, plain.predict(X).probs)
    with pytest.raises(DataError, match=r"came whole; pass be.Stream\(\[table\]\)"):
        found.predict(parts[0])
    del columns["y"]
    torch.testing.assert_close(plain.predict(make(columns)).probs, plain.predict(X).probs)  # as of a data frame
