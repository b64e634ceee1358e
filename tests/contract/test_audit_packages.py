"""What strangers come with from other packages, as the rest of the matrix of `test_audit.py`: each works or is refused.

Packages that are not there are passed over. Worker processes and figures belong here too.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.core.seeds import scoped
from bayesemble.metrics.curves import prediction_bands
from helpers import all_leaves, largest_difference, quick_fit, small_mlp, table

X, Y = table(48)
COLUMNS = {name: X[:, index].numpy() for index, name in enumerate("abcd")}


def task(model=small_mlp, likelihood=None, **options):
    return be.Task(model, likelihood or be.Categorical(), **options)


def polars_frame():
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def pandas_frame():
    return pytest.importorskip("pandas").DataFrame(COLUMNS)


# --- 2: adapters


class Block(nn.Module):
    """A network whose parts have names, as adapters of peft want them."""

    def __init__(self):
        super().__init__()
        self.query, self.value, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.value(torch.tanh(self.query(x)))))


ADAPTED = {
    "deep ensemble": be.DeepEnsemble(num_members=2),
    "repulsive": be.Repulsive(num_members=2),
    "SWAG": be.SWAG(start=0.5, snapshots=2, rank=2),
    "Laplace": be.Laplace(num_members=1, select="*lora*", structure="diag"),
    "SG-MCMC": be.CyclicalSGMCMC(cycles=1, samples_per_cycle=1),
}


def adapted(maker):
    """A pretrained network with low-rank adapters of either maker, and what it gave before."""
    with scoped(0):
        network = Block()
        before = network(X).detach()
        if maker == "bayesemble":
            return be.adapt(network, "lora", targets="query|value", rank=2), before
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["head"])
        return peft.get_peft_model(network, config), before


@pytest.mark.parametrize("maker", ["bayesemble", "peft"])
@pytest.mark.parametrize("name", ADAPTED)
def test_low_rank_adapters_on_a_shared_backbone(name, maker):
    network, _ = adapted(maker)
    found = quick_fit(task(network), (X, Y), ADAPTED[name])
    shared = found.state.members.shared
    assert any("query" in leaf and "lora" not in leaf for leaf in shared), "the backbone is one for all members"
    assert not any("lora" in leaf for leaf in shared)
    assert found.predict(X).probs.isfinite().all()


def test_networks_of_peft_begin_with_what_the_pretrained_network_gave():
    network, before = adapted("peft")
    members = task(network).bind(len(X), X)
    for number in range(3):
        outputs = members.forward(*members.new_member(seed=number), X)
        torch.testing.assert_close(outputs, before)


# --- 6, 7: frames, tables and worker processes


@pytest.mark.parametrize("make", [polars_frame, pandas_frame], ids=["polars", "pandas"])
def test_frames_are_the_arrays_they_hold(make):
    frame = make()
    targets = type(frame)({"y": Y.numpy()})["y"]  # a column by itself
    found, expected = quick_fit(task(), (frame, targets)), quick_fit(task(), (X, Y))
    assert largest_difference(all_leaves(found), all_leaves(expected)) == 0
    torch.testing.assert_close(found.predict(frame).probs, expected.predict(X).probs)
    assert found.evaluate((frame, targets)) == expected.evaluate((X, Y))


@pytest.mark.parametrize("make", [polars_frame, pandas_frame], ids=["polars", "pandas"])
def test_estimators_take_frames_with_weights_and_name_columns_of_words(make):
    from bayesemble.estimators import EnsembleClassifier

    frame, weights = make(), np.where(np.arange(48) % 3, 1.0, 2.0)
    quick = {"num_members": 2, "epochs": 2, "width": 4, "random_state": 0}
    found = EnsembleClassifier(**quick).fit(frame, Y.numpy(), sample_weight=weights)
    plain = EnsembleClassifier(**quick).fit(X.numpy(), Y.numpy(), sample_weight=weights)
    np.testing.assert_array_equal(found.predict_proba(frame), plain.predict_proba(X.numpy()))
    words = type(frame)(COLUMNS | {"town": ["x", "y"] * 24})
    with pytest.raises(DataError, match="town; encode them"):
        EnsembleClassifier(**quick).fit(words, Y.numpy())


@pytest.mark.parametrize("kind", ["table", "record batch"])
def test_tables_of_arrow_name_their_targets(kind):
    arrow = pytest.importorskip("pyarrow")
    columns = {"x": X.tolist(), "labels": Y.tolist()}
    data = arrow.table(columns) if kind == "table" else arrow.RecordBatch.from_pydict(columns)
    own = task(Named, targets="labels")
    found, expected = quick_fit(own, data), quick_fit(own, {"x": X, "labels": Y})
    assert largest_difference(all_leaves(found), all_leaves(expected)) == 0


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self):
        super().__init__()
        self.body = small_mlp()

    def forward(self, x):
        return self.body(x)


def test_batches_of_mappings_say_which_of_them_are_labels():
    loader = DataLoader([{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)], 16)
    found = quick_fit(task(Named, targets="labels"), loader, batch_size=None)
    assert math.isfinite(found.evaluate(loader)["nll"])
    torch.testing.assert_close(found.predict(loader).probs, found.predict({"x": X}).probs)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
def test_rows_from_worker_processes_are_those_of_one():
    """Rows are put into batches elsewhere; their order is drawn here."""
    rows = TensorDataset(X, Y)
    apart, alone = (
        quick_fit(task(), DataLoader(rows, 16, shuffle=True, num_workers=num), batch_size=None) for num in (2, 0)
    )
    assert largest_difference(all_leaves(apart), all_leaves(alone)) == 0


# --- 11: figures


def test_figures_of_what_was_predicted():
    pytest.importorskip("matplotlib")
    found = quick_fit(task(), (X, Y))
    known, ood = found.predict(X), found.predict(5 * X)
    given, twin = be.plots.plot_entropy(known, ood), be.plots.plot_entropy(known.entropy, ood.entropy)
    for one, other in zip(given.patches, twin.patches, strict=True):
        np.testing.assert_array_equal(one.get_data().values, other.get_data().values)
    line = X[:, :1].sort(0).values
    curve = quick_fit(task(lambda: nn.Linear(1, 1), be.Gaussian(0.3)), (line, line[:, 0]))
    assert be.plots.plot_bands(prediction_bands(curve.predict(line), line), data=(line, line)).lines
