"""Loaders and data sets are predicted in the order of their rows."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesemble as be
from bayesemble.core.errors import DataError, SettingError
from bayesemble.training.incoming.loaded_rows import is_loaded, joined, rows_at_hand
from helpers import dropout_mlp, quick_fit, small_mlp, table

X, Y = table()


class Inputs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index]


@pytest.fixture(scope="module")
def ensemble():
    return quick_fit(be.Task(small_mlp, be.Categorical()), (X, Y))


FORMS = {
    "inputs": Inputs(),
    "pairs": TensorDataset(X, Y),
    "a loader of inputs": DataLoader(Inputs(), batch_size=7),
    "a loader of pairs": DataLoader(TensorDataset(X, Y), batch_size=7),
    "a loader of whole batches": DataLoader([X[:30], X[30:]], batch_size=None),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("keep_members", [True, False])
def test_whatever_holds_the_rows_they_are_predicted_as_arrays_are(name, keep_members, ensemble):
    assert is_loaded(FORMS[name])
    expected = ensemble.predict(X, keep_members=keep_members)
    found = ensemble.predict(FORMS[name], keep_members=keep_members)
    torch.testing.assert_close(found.probs, expected.probs)
    torch.testing.assert_close(found.epistemic, expected.epistemic)


def test_rows_that_came_whole_become_tensors_of_the_network(ensemble):
    columns = be.Task(small_mlp, be.Categorical(), targets="y").bind(len(X), X)
    assert not is_loaded(X)
    assert rows_at_hand(X, ensemble.task) is X
    assert torch.equal(rows_at_hand(X.double(), ensemble.task), X)
    found = rows_at_hand({"x": X.numpy(), "y": Y}, columns)
    assert list(found) == ["x"]
    assert torch.equal(found["x"], X)


def test_foreign_rows_may_be_loaded_too(ensemble):
    loaded, given = (ensemble.evaluate((X, Y), ood=rows) for rows in (DataLoader(Inputs(), batch_size=7), X))
    assert loaded == pytest.approx(given, abs=0.01)


def test_batches_drop_units_of_their_own():
    ensemble = quick_fit(be.Task(dropout_mlp, be.Categorical()), (X, Y), be.MCDropout())
    again = DataLoader(torch.cat([X[:4], X[:4]]), batch_size=4)
    one, other = ensemble.predict(again).member_probs.split(4, dim=1)
    assert not torch.equal(one, other)


def test_rows_in_an_unknown_order_are_refused(ensemble):
    data = TensorDataset(X, Y)
    for loader in (DataLoader(data, shuffle=True), DataLoader(data, batch_sampler=[[3, 1], [0, 2]])):
        with pytest.raises(DataError, match="shuffles or groups its rows"):
            ensemble.predict(loader)
    with pytest.raises(SettingError, match="batch_size=9 cannot be honoured"):
        ensemble.predict(DataLoader(data, batch_size=7), batch_size=9)


def test_a_size_of_batches_that_cannot_be_honoured_is_refused_in_scores_too(ensemble):
    data = TensorDataset(X, Y)
    scores = ensemble.evaluate((X, Y))["nll"]
    for given, size in ((data, 5), (DataLoader(data, batch_size=7), 7), (be.Stream(DataLoader(data, batch_size=7)), 7)):
        assert ensemble.evaluate(given, batch_size=size)["nll"] == pytest.approx(scores)
    for given in (DataLoader(data, batch_size=7), be.Stream([(X, Y)]), be.Stream(DataLoader(data, batch_size=7))):
        with pytest.raises(SettingError, match="batch_size=9 cannot be honoured; leave batch_size out"):
            ensemble.evaluate(given, batch_size=9)
    with pytest.raises(SettingError, match="batch_size is at least one row, got 0"):
        ensemble.evaluate((X, Y), batch_size=0)


def test_predictions_of_one_shape_are_joined(ensemble):
    parts = [ensemble.predict(X[:20]), ensemble.predict(X[20:])]
    torch.testing.assert_close(joined(parts).probs, ensemble.predict(X).probs)
