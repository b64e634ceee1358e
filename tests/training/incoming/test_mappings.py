"""Data by name: columns, batches of a tokenizer, rows of a data set; token labels count unless they are ignored."""

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import bayesemble as be
from bayesemble.core.errors import DataError
from bayesemble.training.incoming.mappings import has_rows, inputs_of, stack_rows, with_targets
from helpers import all_leaves, largest_difference, quick_fit

PAD = -100


class Tagger(nn.Module):
    """Looks tokens up and, for a label of each row, averages over those that are no padding."""

    def __init__(self, each_token: bool = False) -> None:
        super().__init__()
        self.embedding, self.head, self.each_token = nn.Embedding(11, 6), nn.Linear(6, 3), each_token

    def forward(self, input_ids, attention_mask):
        found, mask = self.embedding(input_ids), attention_mask.unsqueeze(-1)
        if not self.each_token:
            found = (found * mask).sum(1) / mask.sum(1)
        return {"logits": self.head(found)}


def texts(num=24, longest=7, seed=0):
    """Rows of unequal length, with a label each and labels of their tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(num):
        ids = torch.randint(
            1, 11, (int(torch.randint(2, longest + 1, (1,), generator=generator)),), generator=generator
        )
        rows.append({"input_ids": ids.tolist(), "labels": int(ids.sum() % 3), "tags": (ids % 3).tolist()})
    return rows


def padded(rows, key="labels", length=None):
    """A batch as a tokenizer gives it, which is a mapping but no dict."""
    length = length or max(len(row["input_ids"]) for row in rows)

    def fill(values, with_):
        return values + [with_] * (length - len(values))

    batch = {
        "input_ids": torch.tensor([fill(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
    }
    labels = [row["labels"] if key == "labels" else fill(row[key], PAD) for row in rows]
    return UserDict(batch | {key: torch.tensor(labels)})


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Table:
    """What a `datasets.Dataset` looks like from outside: rows by number, columns by name."""

    def __init__(self, columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.columns.items()}


def task_of(each_token=False, key="labels", **settings):
    likelihood = be.Categorical(ignore_index=PAD) if each_token else be.Categorical()
    return be.Task(lambda: Tagger(each_token), likelihood, output="logits", targets=key, **settings)


def loader(rows, key="labels", **settings):
    return DataLoader(Rows(rows), **({"batch_size": 8} | settings), collate_fn=lambda some: padded(some, key))


def test_columns_rows_and_batches_by_name_train_the_same_network():
    batch = padded(texts())
    table = {name: values.tolist() for name, values in batch.items()}
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    expected = quick_fit(task_of(), (inputs, batch["labels"]), batch_size=None)
    for data in (batch, dict(batch), Table(table), Rows([Table(table)[index] for index in range(24)])):
        found = quick_fit(task_of(), data, batch_size=None)
        assert largest_difference(all_leaves(found), all_leaves(expected)) < 1e-6
        assert found.evaluate(data) == pytest.approx(expected.evaluate(batch))
    assert torch.equal(expected.predict(batch).probs, expected.predict(inputs).probs), "targets are left aside"


def test_batches_may_differ_in_length_in_training_evaluation_and_prediction():
    rows = texts()
    ensemble = quick_fit(task_of(), loader(rows), batch_size=None, validation=loader(rows))
    whole = ensemble.predict(padded(rows))
    torch.testing.assert_close(ensemble.predict(loader(rows)).probs, whole.probs)
    torch.testing.assert_close(ensemble.predict(Rows(_one_by_one(rows))).probs, whole.probs)
    assert ensemble.evaluate(loader(rows)) == pytest.approx(ensemble.evaluate(padded(rows)), rel=1e-5)


def _one_by_one(rows):
    batch = padded(rows)
    return [{name: values[index] for name, values in batch.items()} for index in range(len(rows))]


def test_saved_ensembles_know_the_key(tmp_path):
    ensemble = quick_fit(task_of(), padded(texts()))
    ensemble.save(tmp_path / "run")
    loaded = be.load(tmp_path / "run", Tagger)
    assert loaded.evaluate(padded(texts())) == ensemble.evaluate(padded(texts()))


def test_labels_that_are_ignored_add_nothing_to_gradient_and_score():
    """Rows that are longer by padding are the same rows."""
    rows = texts()
    fits = [
        quick_fit(task_of(True, "tags"), padded(rows, "tags", length), be.DeepEnsemble(num_members=2), batch_size=None)
        for length in (7, 12)
    ]
    assert largest_difference(all_leaves(fits[0]), all_leaves(fits[1])) < 1e-6
    scores = [fits[0].evaluate(padded(rows, "tags", length)) for length in (7, 12)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_the_log_joint_adds_up_the_labels_that_count():
    rows = texts()
    batch = padded(rows, "tags")
    task = task_of(True, "tags", prior=None)
    inputs, tags = with_targets(batch, "tags")
    bound = task.bind(len(rows), inputs)
    params, buffers = bound.new_member(seed=0)
    mean = bound.mean_log_likelihood(params, buffers, inputs, tags)
    logits = bound.forward(params, buffers, inputs)
    expected = -nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(bound.data_factor * mean, expected)


def test_scores_of_tokens_are_those_of_the_tokens_that_count():
    rows = texts()
    ensemble = quick_fit(task_of(True, "tags"), loader(rows, "tags"), batch_size=None)
    batch = padded(rows, "tags")
    predictive, tags = ensemble.predict(batch), batch["tags"]
    counts = tags != PAD
    probs, labels = predictive.probs[counts], tags[counts]
    plain = be.Predictive.from_probs(probs)
    assert be.metrics.accuracy(predictive, tags) == be.metrics.accuracy(plain, labels)
    assert be.metrics.brier(predictive, tags) == pytest.approx(be.metrics.brier(plain, labels))
    assert be.metrics.expected_calibration_error(predictive, tags) == pytest.approx(
        be.metrics.expected_calibration_error(plain, labels)
    )
    members = predictive.log_probs.gather(-1, tags.clamp_min(0).expand(3, -1, -1).unsqueeze(-1)).squeeze(-1)
    joint = (members * counts).sum(-1)
    assert be.metrics.nll(predictive, tags) == pytest.approx(
        -float((joint.logsumexp(0) - torch.tensor(3.0).log()).mean()), rel=1e-5
    )
    scores = ensemble.evaluate(loader(rows, "tags"))
    assert scores == pytest.approx(ensemble.evaluate(batch), rel=1e-5), "whatever batches tokens come in"
    assert scores["accuracy"] == pytest.approx(be.metrics.accuracy(predictive, tags))
    temperature = be.metrics.fit_temperature(predictive, tags)
    assert temperature.value == pytest.approx(be.metrics.fit_temperature(plain, labels).value, rel=1e-3)
    with pytest.raises(DataError, match=r"rows of some batches have outputs \(\d,\), of others"):
        ensemble.predict(loader(rows, "tags", batch_size=1))


def test_rows_without_a_label_that_counts_are_left_out():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, PAD, 1, PAD, 0])
    ensemble = quick_fit(be.Task(lambda: nn.Linear(4, 2), be.Categorical(ignore_index=PAD)), (x, y))
    kept = y != PAD
    assert ensemble.evaluate((x, y)) == pytest.approx(ensemble.evaluate((x[kept], y[kept])))
    assert quick_fit(ensemble.task, (x, y), validation=(x, y)).history[-1]["validation_loss"] == pytest.approx(
        quick_fit(ensemble.task, (x, y), validation=(x[kept], y[kept])).history[-1]["validation_loss"]
    )
    with pytest.raises(DataError, match="all are ignore_index=-100"):
        quick_fit(ensemble.task, (x, torch.full((6,), PAD)))
    with pytest.raises(DataError, match="nothing to score"):
        ensemble.evaluate((x, torch.full((6,), PAD)))
    with pytest.raises(DataError, match=r"a label in 0\.\.1"):
        quick_fit(ensemble.task, (x, y - 1))


def test_curvature_that_would_count_padding_is_refused():
    with pytest.raises(be.SettingError, match="leaves some out"):
        quick_fit(task_of(True, "tags"), padded(texts(), "tags"), be.Laplace(select="head.*"))


def test_a_mapping_is_split_at_its_key():
    batch = {"a": 1, "labels": 2}
    assert with_targets(batch, "labels") == ({"a": 1}, 2)
    assert inputs_of(batch, None) == batch
    for key, words in ((None, "say which of them"), ("tags", "but the task has targets='tags'")):
        with pytest.raises(DataError, match=words):
            with_targets(batch, key)
    with pytest.raises(DataError, match=r"a mapping with 'input_ids'.*targets=\"labels\""):
        quick_fit(task_of(key=None), padded(texts()))


def test_rows_are_stacked_by_name_or_refused():
    assert torch.equal(stack_rows([{"a": [1, 2]}, {"a": [3, 4]}])["a"], torch.tensor([[1, 2], [3, 4]]))
    assert torch.equal(stack_rows([(torch.zeros(2), 1)] * 2)[1], torch.tensor([1, 1]))
    with pytest.raises(DataError, match=r"column 'text' holds 'hello', which is no number.*remove_columns"):
        stack_rows([{"text": "hello"}])
    with pytest.raises(DataError, match=r"rows of 'a' have the shapes \(2,\) and \(3,\).*collate_fn pads"):
        stack_rows([{"a": [1, 2]}, {"a": [3, 4, 5]}])
    assert has_rows(Table({"a": [1]}))
    assert not has_rows({"a": [1]})
    assert not has_rows([1, 2])
