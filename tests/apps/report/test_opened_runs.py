"""What figures show: runs opened again predict what was scored, and examples are those the members differ on."""

import shutil

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble import metrics
from bayesemble.apps.compare.results import Comparison
from bayesemble.apps.report.opened_runs import Shown, examples, member_diversity, open_methods
from comparisons import tiny


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    return folder, tiny(folder, methods="map,deep_ensemble", seeds=1)


def test_opened_runs_give_the_scores_of_the_results(compared):
    folder, comparison = compared
    shown, missing = open_methods(folder, comparison)
    assert missing == []
    assert [one.label for one in shown] == ["map", "deep_ensemble"]
    assert shown[0].split is shown[1].split  # the rows are kept once
    for one in shown:
        (result,) = comparison.of(one.label)
        assert metrics.nll(one.predictive, one.targets) == pytest.approx(result.scores["nll"], rel=1e-6)
        assert metrics.ood_auroc(one.predictive, one.ood) == pytest.approx(result.scores["ood_auroc"], rel=1e-6)
    assert [one.several for one in shown] == [False, True]


def test_numbers_are_in_their_original_units(tmp_path):
    comparison = tiny(tmp_path, "sine_gap", "deep_ensemble", seeds=1)
    (one,), _ = open_methods(tmp_path, comparison)
    (result,) = comparison.of(one.label)
    assert metrics.rmse(one.numbers, one.targets) == pytest.approx(result.scores["rmse"], rel=1e-5)
    agree, disagree = examples(one, None)
    spread = one.numbers.epistemic
    assert spread[agree[0].row] == spread.min()
    assert spread[disagree[0].row] == spread.max()
    place = disagree[0].row
    low, high = one.numbers.member_mean[:, place].aminmax()
    assert f"({float(low):.2f} to {float(high):.2f})" in disagree[0].answers
    assert disagree[0].truth == f"{float(one.targets[place]):.2f}"


def test_a_run_that_cannot_be_opened_is_named(compared, tmp_path):
    folder, _ = compared
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "runs" / "map")
    max((copy / "runs" / "deep_ensemble").rglob("state.safetensors")).write_bytes(b"broken")  # of the newest checkpoint
    shown, missing = open_methods(copy, Comparison.read(copy))
    assert shown == []
    assert "figures of map: its run runs/map/seed-0 could not be opened" in missing[0]
    assert "deep_ensemble" in missing[1]
    assert "damaged" in missing[1]


def with_votes(choices, targets, inputs):
    """A method whose members are sure of these classes, `(member, row)`; nothing else of it is needed."""
    probs = torch.nn.functional.one_hot(torch.tensor(choices), 3).double() * 0.94 + 0.02
    split = type("Rows", (), {"x_test": inputs})
    return Shown("one", 0, None, split, torch.tensor(targets), be.Predictive.from_probs(probs), None)


VOTES = [[0, 1, 2, 0], [0, 1, 1, 1], [0, 2, 0, 0]]
TRUTH = [0, 1, 1, 0]


def test_diversity_of_members_is_that_of_a_plain_count():
    one = with_votes(VOTES, TRUTH, np.zeros((4, 2)))
    found = member_diversity(one)
    assert found.reference_accuracy == 0.75
    assert found.accuracy["member"].tolist() == [0.75, 0.5]
    assert found.disagreement["member"].tolist() == [0.5, 0.5]
    assert found.num_classes == 3


def test_examples_name_the_votes():
    inputs = np.arange(16.0).reshape(4, 4)
    agree, disagree = examples(with_votes(VOTES, TRUTH, inputs), [2, 2], count=1)
    assert (agree[0].row, agree[0].truth, agree[0].answers) == (0, "0", "0 (3)")
    assert (disagree[0].row, disagree[0].truth, disagree[0].answers) == (2, "1", "0 (1), 1 (1), 2 (1)")
    assert disagree[0].image.tolist() == [[8, 9], [10, 11]]
    assert disagree[0].inputs == ["8.00", "9.00", "10.00", "11.00"]


@pytest.mark.parametrize(
    ("truth", "answers"),
    [([1.0, -99.9], ("1.00", "2.00 (1.00 to 3.00)")), ([1.0, -100.0], ("1", "2 (1 to 3)"))],
)
def test_examples_of_numbers_have_digits_unless_the_largest_is_large(truth, answers):
    predictive = be.Predictive.from_normal([[1.0, 0.0], [3.0, 7.0]], 1.0)
    split = type("Rows", (), {"x_test": np.zeros((2, 1))})
    agree, disagree = examples(Shown("one", 0, None, split, torch.tensor(truth), predictive, None), None)
    assert (agree[0].truth, agree[0].answers) == answers
    assert [one.row for one in (*agree, *disagree)] == [0, 1]


def test_rows_that_are_coloured_images_are_shown_so():
    inputs = np.arange(48.0).reshape(4, 12)
    agree, _ = examples(with_votes(VOTES, TRUTH, inputs), [2, 2, 3], count=1)
    assert np.array_equal(agree[0].image, inputs[0].reshape(2, 2, 3))
