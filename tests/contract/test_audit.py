"""What strangers come with, as a matrix: networks, data, training; each works or is refused with what to do.

One small case for each row of an audit from outside. Closed forms and twins are with the parts themselves.
"""

import copy
import logging
import math
import re
import signal
from collections import UserDict
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import bayesemble as be
from bayesemble.core.errors import BayesembleError, DataError, ModelError, SettingError, TrainingError
from bayesemble.core.seeds import scoped
from bayesemble.methods import method_class
from helpers import all_leaves, largest_difference, norm_mlp, quick_fit, small_mlp, table, tempered_mlp

X, Y = table(48)
TOKENS = torch.randint(1, 9, (24, 5), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(5) < 2 + torch.arange(24)[:, None] % 4).long()
TEXTS = {"input_ids": TOKENS * MASK, "attention_mask": MASK}
TOPICS = (TOKENS[:, 0] > 4).long()
METHODS = {
    "deep ensemble": be.DeepEnsemble(num_members=2),
    "repulsive": be.Repulsive(num_members=2),
    "ECMP": be.ECMP(),
    "EMP": be.EMP(),
    "SWAG": be.SWAG(start=0.5, snapshots=2, rank=2),
    "Laplace": be.Laplace(num_members=1),
}


@pytest.fixture(autouse=True)
def _seeded():
    """Networks that tests make draw from a state of their own."""
    with scoped(0):
        yield


def task(model=small_mlp, likelihood=None, **options):
    return be.Task(model, likelihood or be.Categorical(), **options)


class Encoder(nn.Module):
    """What a classifier of texts looks like: mappings in, an object with logits out; attention and dropout."""

    def __init__(self, dropout=0.1, recompute=False):
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.dropout, self.recompute = nn.Dropout(dropout), recompute

    def block(self, x, mask):
        seen = F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, :].bool())
        return self.dropout(torch.tanh(self.mix(seen)))

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        run = (lambda *a: checkpoint(self.block, *a, use_reentrant=False)) if self.recompute else self.block
        return SimpleNamespace(logits=self.head(run(x, attention_mask)[:, 0]), loss=None)


# --- 1: networks for texts


@pytest.mark.parametrize("name", METHODS)
def test_networks_for_texts(name):
    found = quick_fit(task(Encoder, output="logits"), (TEXTS, TOPICS), METHODS[name])
    assert found.predict(TEXTS).probs.shape == (24, 2)


def test_what_such_a_network_returns_has_to_be_named():
    with pytest.raises(ModelError, match="output="):
        quick_fit(task(Encoder), (TEXTS, TOPICS))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_mc_dropout_around_fused_attention(executor):
    found = quick_fit(task(Encoder, output="logits"), (TEXTS, TOPICS), be.MCDropout(), executor=executor)
    assert found.predict(TEXTS, num_draws=5).epistemic.max() > 0


def test_activation_checkpointing_has_the_gradients_of_none():
    def trained(dropout, recompute):
        return quick_fit(task(lambda: Encoder(dropout, recompute), output="logits"), (TEXTS, TOPICS), batch_size=None)

    assert largest_difference(all_leaves(trained(0.0, False)), all_leaves(trained(0.0, True))) < 1e-6
    with pytest.raises(ModelError, match="turn off one of the two"):
        trained(0.1, True)


def test_batches_of_a_tokenizer_are_mappings_but_no_dicts():
    found = quick_fit(task(Encoder, output="logits", targets="labels"), UserDict(TEXTS, labels=TOPICS))
    torch.testing.assert_close(found.predict(UserDict(TEXTS)).probs, found.predict(TEXTS).probs)


# --- 2: trained and frozen networks


class Backbone(nn.Sequential):
    calls = 0

    def forward(self, x):
        Backbone.calls += 1
        return super().forward(x)


class OnBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


def test_a_frozen_backbone_stands_still_is_shared_and_runs_once_a_batch():
    apart, Backbone.calls = task(OnBackbone(), start="given", fresh="head.*"), 0
    found = quick_fit(apart, (X, Y), be.DeepEnsemble(num_members=5), epochs=4)
    assert Backbone.calls <= 4 * 3 + 10, "12 steps of five members, and looks at the first rows"
    members = found.state.members
    assert "backbone.0.weight" in members.shared
    assert torch.equal(members.split()[0][1]["backbone.1.running_mean"], torch.zeros(6))


def trained_network():
    network = small_mlp()
    optimizer = torch.optim.Adam(network.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(network(X), Y).backward()
        optimizer.step()
    return network


def test_a_trained_network_is_neither_reset_nor_copied_into_clones_without_a_word():
    network = trained_network()
    with pytest.raises(ModelError, match="looks trained"):
        quick_fit(task(network), (X, Y))
    with pytest.raises(TrainingError, match="began with equal weights"):
        quick_fit(task(lambda: copy.deepcopy(network)), (X, Y))
    after = be.fit(task(network, start="given"), be.Laplace(num_members=1), (X, Y), epochs=0, progress=False)
    assert after.evaluate((X, Y))["accuracy"] == 1
    assert be.Ensemble.from_modules([network, trained_network()], be.Categorical()).predict(X).probs.shape == (48, 2)
    prior = be.NormalPrior(center="start")
    assert quick_fit(task(network, prior=prior, start="given"), (X, Y), be.Laplace(num_members=1)).num_members == 1
    with pytest.raises(SettingError, match="start is an ensemble, or a list of modules or state dicts"):
        quick_fit(task(), (X, Y), start=network.state_dict())


# --- 3: sequences


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


@pytest.mark.parametrize("method", [be.DeepEnsemble(num_members=2), be.Laplace(num_members=1)], ids=str)
def test_packed_sequences_and_their_last_layer(method):
    rows = torch.randn(20, 5, 4)
    found = quick_fit(task(Packed), ((rows, torch.arange(20) % 5 + 1), Y[:20]), method)
    assert found.predict((rows, torch.full((20,), 5))).epistemic.shape == (20,)


def test_forecasts_of_several_steps_need_no_axis_of_one():
    steps = X[:, :3]
    forecasts = lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))  # noqa: E731
    found = quick_fit(task(forecasts, be.HeteroscedasticGaussian()), (X, steps))
    assert math.isfinite(found.evaluate((X, steps))["nll"])


def test_padded_tags_do_not_count():
    tags = torch.where(MASK.bool(), TOKENS % 2, -100)
    model = lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))  # noqa: E731
    found = quick_fit(task(model, be.Categorical(ignore_index=-100)), (TOKENS, tags))
    other = torch.where(MASK.bool(), TOKENS, 0)  # padding of another kind
    again = quick_fit(task(model, be.Categorical(ignore_index=-100)), (other, tags))
    assert largest_difference(all_leaves(found), all_leaves(again)) < 1e-6


# --- 4: segmentation


def test_classes_of_pixels_on_axis_1():
    pictures, labels = torch.randn(6, 1, 4, 4), torch.randint(3, (6, 4, 4))
    with pytest.raises(DataError, match=r"output=lambda out: out.movedim\(1, -1\)"):
        quick_fit(task(lambda: nn.Conv2d(1, 3, 1)), (pictures, labels))
    segments = task(lambda: nn.Conv2d(1, 3, 1), output=lambda out: out.movedim(1, -1))
    for method in (be.DeepEnsemble(num_members=2), be.Laplace(num_members=1)):
        found = quick_fit(segments, (pictures, labels), method)
        assert found.predict(pictures).probs.shape == (6, 4, 4, 3)
        scores = found.evaluate((pictures, labels))
        assert scores["nll"] == pytest.approx(16 * scores["nll_per_label"])


# --- 5: odd modules


class Double(torch.autograd.Function):
    """Of the old style: it says nothing of forward derivatives."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(Double.apply(self.body(x)))


@pytest.mark.parametrize("model", [tempered_mlp, Doubled], ids=["no axes", "autograd function"])
@pytest.mark.parametrize("name", ["ECMP", "EMP", "Laplace"])
def test_parameters_without_axes_and_functions_without_forward_derivatives(name, model):
    assert quick_fit(task(model), (X, Y), METHODS[name]).predict(X).probs.isfinite().all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_scripted_networks_are_refused_as_what_they_are():
    with pytest.raises(ModelError, match="pass the eager module"):
        quick_fit(task(torch.jit.script(small_mlp())), (X, Y))


# --- 6: targets


def test_weights_smoothing_and_soft_labels():
    quick_fit(task(likelihood=be.Categorical(class_weights=(1.0, 3.0), label_smoothing=0.1)), (X, Y))
    hard, soft = (quick_fit(task(), (X, targets)) for targets in (Y, F.one_hot(Y, 2).float()))
    assert largest_difference(all_leaves(hard), all_leaves(soft)) < 1e-6
    weighted = quick_fit(task(), (X, Y, torch.full((48,), 2.0)), batch_size=None)
    twice = quick_fit(task(), (X.repeat(2, 1), Y.repeat(2)), batch_size=None)
    assert largest_difference(all_leaves(weighted), all_leaves(twice)) < 1e-5


@dataclass(frozen=True)
class Loose(be.Gaussian):
    """A likelihood of one's own."""


def test_a_likelihood_of_ones_own_is_saved_and_loaded(tmp_path):
    found = quick_fit(task(lambda: nn.Linear(4, 1), Loose(0.5)), (X, X[:, 0]), checkpoint=tmp_path / "run")
    assert be.load(tmp_path / "run", lambda: nn.Linear(4, 1)).task.likelihood == found.task.likelihood


def test_targets_far_from_unit_scale():
    with pytest.warns(UserWarning, match=r"targets are about .* in size"):
        quick_fit(task(lambda: nn.Linear(4, 1), be.Gaussian()), (X, 1e4 * X[:, 0]))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (be.Gaussian(0.5), 3, X[:, :3]),
        (be.HeteroscedasticGaussian(), 6, X[:, :3]),
        (be.Bernoulli(), 3, (X[:, :3] > 0).float()),
        (be.Poisson(), 1, torch.arange(48) % 5),
        (be.NegativeBinomial(), 2, torch.arange(48) % 5),
    ],
    ids=["several numbers", "each with its noise", "several labels", "counts", "scattered counts"],
)
def test_several_outputs_labels_and_counts(likelihood, outputs, targets):
    found = quick_fit(task(lambda: nn.Linear(4, outputs), likelihood), (X, targets))
    assert math.isfinite(found.evaluate((X, targets))["nll"])
    assert found.predict(X).epistemic.shape == targets.shape


# --- 7: data


class Pairs(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return X[index], Y[index]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def frame():
    return pytest.importorskip("pandas").DataFrame(X.numpy(), columns=list("abcd"))


DATA = {
    "TensorDataset": lambda: TensorDataset(X, Y),
    "Dataset": Pairs,
    "loader": lambda: DataLoader(Pairs(), batch_size=10, shuffle=True),
    "weighted sampler": lambda: DataLoader(Pairs(), 8, sampler=WeightedRandomSampler(torch.ones(48), 24)),
    "Subset": lambda: torch.utils.data.Subset(Pairs(), range(20)),
    "DataFrame": lambda: (frame(), Y.tolist()),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "IterableDataset": lambda: be.Stream(DataLoader(Endless(), 12), num_data=48, steps_per_epoch=4),
    "dicts": lambda: DataLoader([{"x": x, "y": y} for x, y in Pairs()], 16),
    "triples": lambda: DataLoader([(x[:2], x[2:], y) for x, y in Pairs()], 16),
}


def unpack(batch):
    if isinstance(batch, dict):
        return batch["x"], batch["y"]
    return (torch.cat(batch[:2], 1), batch[2]) if len(batch) == 3 else batch


@pytest.mark.parametrize("form", DATA)
def test_data_of_every_form(form):
    data = DATA[form]()
    found = quick_fit(task(unpack=unpack), data, batch_size=None)
    assert math.isfinite(found.history[-1]["loss"][0])
    if form != "loader" and form != "weighted sampler":  # which have another order
        rows = data[0] if isinstance(data, tuple) else data
        count = 20 if form == "Subset" else 48
        torch.testing.assert_close(found.predict(rows).probs, found.predict(X[:count]).probs)
    if not isinstance(data, tuple):
        assert math.isfinite(found.evaluate(data)["nll"])


def test_data_that_say_too_little_are_refused():
    for data, words in (
        (Endless(), "be.Stream"),
        (DATA["dicts"](), "say which of them are the targets"),
        (DATA["triples"](), "3 items; if the third are weights"),
        (DataLoader([(x, y, x, y) for x, y in Pairs()], 16), "4 items; say by Task"),
    ):
        with pytest.raises(DataError, match=words):
            quick_fit(task(), data, batch_size=None)
    with pytest.raises(DataError, match="drop_last=True"):
        quick_fit(task(norm_mlp), DataLoader(TensorDataset(X[:33], Y[:33]), 16), batch_size=None)


def own_memory():
    """Megabytes that are no mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("mapped", ["load", "memmap"])
def test_a_read_only_map_is_not_copied_whole(tmp_path, mapped):
    rows, path = 300_000, tmp_path / "x.npy"
    np.lib.format.open_memmap(path, "w+", np.float32, (rows, 60))[::1000, 0] = 1
    x, seen = np.load(path, mmap_mode="r"), []
    if mapped == "memmap":
        x = np.memmap(path, np.float32, "r", offset=x.offset, shape=x.shape)
    y, network = torch.arange(rows) % 2, task(lambda: nn.Linear(60, 2))
    options = {"epochs": 1, "batch_size": 20_000, "on_epoch": lambda *_: seen.append(own_memory())}
    quick_fit(network, (x[:1000], y[:1000]), **(options | {"on_epoch": None}))
    before = own_memory()
    found = quick_fit(network, (x, y), be.DeepEnsemble(num_members=1), **options)
    assert seen[0] - before < 45, f"the rows are {x.nbytes >> 20} MB"
    parts = found.predict_iter(x, batch_size=20_000, keep_members=False)
    assert max(own_memory() for _ in parts) - before < 45


# --- 8: training


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda:77"}, "device='cuda:77' cannot be used here"),
        ({"device": "mps:7"}, "device='mps:7' cannot be used here: [^;]{1,120}; leave it out for the CPU$"),
        ({"method": "deep_ensemble"}, "method must be one such as be.DeepEnsemble"),
        ({"method": be.DeepEnsemble}, "got the class DeepEnsemble; call it"),
        ({"seed": None}, "seed must be a whole number, got None"),
    ],
    ids=["device", "mps", "name", "class", "seed"],
)
def test_what_training_cannot_take_is_refused_in_a_sentence(options, words):
    with pytest.raises(SettingError, match=words):
        quick_fit(task(), (X, Y), **options)


def test_autocast_stays_inside_the_network():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SettingError, match="inside the network's forward"):
        quick_fit(task(), (X, Y))


def test_optimisers_accumulation_warm_up_and_numbers_of_numpy():
    method = be.DeepEnsemble(num_members=np.int64(2), optimizer=torch.optim.RMSprop, schedule=be.schedules.Warmup(0.5))
    found = quick_fit(task(), (X, Y), method, epochs=np.int32(2), batch_size=np.int64(16), max_batch=8)
    assert len(found.history) == 2
    with pytest.raises(SettingError, match="Muon"):
        quick_fit(task(), (X, Y), be.DeepEnsemble(optimizer=torch.optim.Muon))


def test_rates_of_members_and_leaves_and_sixteen_bits():
    for rate in ((1e-4, 1e-2), {"0.*": 1e-2, "*": 1e-3}):
        quick_fit(task(), (X, Y), be.DeepEnsemble(num_members=2, learning_rate=rate), epochs=1)
    found = quick_fit(task(), (X, Y), precision="bf16")
    assert found.predict(X).probs.dtype == torch.float32
    assert math.isfinite(found.evaluate((X, Y))["nll"])


def test_what_was_learned_is_the_prior_of_further_rows_and_says_which_to_label():
    first = quick_fit(task(), (X[:24], Y[:24]))
    later = quick_fit(task(), (X[24:], Y[24:]), start=first, prior=first.as_prior())
    assert later.num_members == 3
    assert be.acquire(later, X, num=4).unique().shape == (4,)


def test_ctrl_c_hands_back_what_there_is_and_training_goes_on_from_it():
    with pytest.raises(be.Interrupted) as stopped:
        quick_fit(task(), (X, Y), on_epoch=lambda *_: signal.raise_signal(signal.SIGINT))
    assert quick_fit(task(), (X, Y), start=stopped.value.ensemble).num_members == 3


def interrupt(*_):
    raise KeyboardInterrupt


class InterruptedRows(Pairs):
    """Rows that raise a `KeyboardInterrupt` once so many more were asked for."""

    left = math.inf

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("event", "epochs"), [("on_start", 0), ("on_step", 0), ("on_epoch", 1), ("on_end", 3)], ids=lambda one: str(one)
)
def test_a_callback_that_interrupts_counts_as_ctrl_c(event, epochs):
    with pytest.raises(be.Interrupted) as stopped:
        quick_fit(task(), (X, Y), epochs=3, callbacks=[SimpleNamespace(**{event: interrupt})])
    assert len(stopped.value.ensemble.history) == epochs
    assert stopped.value.ensemble.predict(X).probs.shape == (48, 2)


@pytest.mark.parametrize("rows_left", [0, 20])
def test_rows_that_interrupt_count_as_ctrl_c_and_training_resumes_bitwise(tmp_path, rows_left):
    rows = InterruptedRows()
    stop = lambda *_: setattr(rows, "left", rows_left)  # noqa: E731
    with pytest.raises(be.Interrupted, match="resume=True goes on"):
        quick_fit(task(), rows, epochs=3, batch_size=16, checkpoint=tmp_path, on_epoch=stop)
    again = quick_fit(task(), Pairs(), epochs=3, batch_size=16, checkpoint=tmp_path, resume=True)
    whole = quick_fit(task(), Pairs(), epochs=3, batch_size=16)
    assert largest_difference(all_leaves(again), all_leaves(whole)) == 0


@pytest.mark.parametrize("name", be.METHODS)
def test_schedule_free_steps_are_taken_or_refused_in_a_sentence(name):
    made = method_class(name)
    if "optimizer" not in {field.name for field in fields(made)}:
        return
    if name in ("deep_ensemble", "map", "mc_dropout", "laplace"):
        made(optimizer="schedule_free_adamw")
        return
    with pytest.raises(SettingError, match="DeepEnsemble, MCDropout and Laplace take it"):
        made(optimizer="schedule_free_adamw")


def test_there_is_a_line_for_every_epoch_without_a_terminal(caplog):
    with caplog.at_level(logging.INFO, "bayesemble"):
        quick_fit(task(), (X, Y), epochs=2)
    assert len([line for line in caplog.messages if re.search(r"epoch [12]", line)]) == 2


# --- 9, 11, 12: predictions, Laplace, limits


def test_predictions_of_a_data_set_are_those_of_its_rows():
    found = quick_fit(task(), (X, Y))
    for rows in (Pairs(), DataLoader(Pairs(), 7)):
        torch.testing.assert_close(found.predict(rows).probs, found.predict(X).probs)


@pytest.mark.parametrize("form", ["triples", "dicts"])
def test_what_a_data_set_yields_beside_inputs_is_refused_in_predictions(form):
    found = quick_fit(task(), (X, Y))
    with pytest.raises(DataError, match="say by Task"):
        found.predict(DATA[form]())


@pytest.mark.parametrize("name", ["EnsembleClassifier", "EnsembleRegressor"])
def test_columns_of_words_are_named_by_the_estimators(name):
    import bayesemble.estimators

    table, pandas = frame(), pytest.importorskip("pandas")
    table["town"], table["size"] = ["x", "y"] * 24, pandas.Categorical(["s", "m"] * 24)
    with pytest.raises(DataError, match="town, size; encode them"):
        getattr(bayesemble.estimators, name)().fit(table, Y.numpy())


def test_last_layer_laplace_of_numbers_is_exact():
    found = quick_fit(task(lambda: nn.Linear(4, 1), be.Gaussian(0.5)), (X, X[:, 0]), be.Laplace(num_members=1))
    assert torch.equal(found.predict(X, seed=1).variance, found.predict(X, seed=2).variance), "nothing is drawn"


@pytest.mark.parametrize("name", METHODS)
def test_five_rows_and_batches_larger_than_all_rows(name):
    found = quick_fit(task(), (X[:5], torch.tensor([0, 1, 0, 1, 1])), METHODS[name], epochs=4)
    assert found.predict(X[:1]).probs.shape == (1, 2)


@pytest.mark.parametrize(
    ("rows", "targets", "words"),
    [
        (X, torch.zeros(48).long(), "training needs at least two classes"),
        (X[:, 0], Y, r"add one, as x\[:, None\]"),
        (X[:0], Y[:0], "at least one is needed"),
    ],
    ids=["one class", "one axis", "no rows"],
)
def test_rows_that_nothing_is_learned_from(rows, targets, words):
    with pytest.raises(BayesembleError, match=words):
        quick_fit(task(), (rows, targets))


def test_laplace_of_many_classes_and_a_softmax_too_many():
    many = task(lambda: nn.Linear(4, 100))
    assert quick_fit(many, (X, torch.arange(48)), be.Laplace(num_members=1)).predict(X).probs.shape == (48, 100)
    with pytest.warns(UserWarning, match="seems to end in a softmax"):
        quick_fit(task(lambda: nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))), (X, Y))
    with pytest.warns(UserWarning, match="seems to end in a sigmoid"):
        quick_fit(task(lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), be.Bernoulli()), (X, Y))
