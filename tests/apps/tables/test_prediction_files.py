import gzip

import numpy as np
import pytest
import torch

import bayesemble as be
from bayesemble.apps.tables.prediction_files import read_predictions
from bayesemble.metrics import Summary

CLASSES = "id,p_cat,p_dog,target\n1,0.9,0.1,cat\n2,0.3,0.7,dog\n3,0.6,0.4,dog\n"
REALS = "mean,std,target\n1.0,0.5,1.2\n2.0,0.25,1.9\n"


def scores(parts) -> dict[str, float]:
    summary = Summary()
    for predictive, targets in parts:
        summary.update(predictive, targets)
    return summary.compute()


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_class_probabilities_of_a_csv_in_parts_of_any_size(tmp_path, rows):
    path = tmp_path / "predictions.csv"
    path.write_text(CLASSES)
    found = scores(read_predictions(path, rows=rows))
    predictive, targets = be.Predictive.from_probs([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]]), [0, 1, 1]
    assert found == pytest.approx(be.metrics.summarise(predictive, targets))
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_means_and_deviations_of_a_csv(tmp_path):
    path = tmp_path / "predictions.csv"
    path.write_text(REALS.replace("target", "price"))
    found = scores(read_predictions(path, target="price"))
    assert found == pytest.approx(be.metrics.summarise(be.Predictive.from_normal([1.0, 2.0], [0.5, 0.25]), [1.2, 1.9]))


@pytest.mark.parametrize("members", [None, 3])
def test_probabilities_of_an_npz_with_and_without_members(tmp_path, members):
    shape = (50, 4) if members is None else (members, 50, 4)
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(4), shape[:-1])
    targets = generator.integers(4, size=50)
    np.savez(tmp_path / "p.npz", probs=probs, targets=targets)
    expected = be.metrics.summarise(be.Predictive.from_probs(probs), targets)
    assert scores(read_predictions(tmp_path / "p.npz", rows=7)) == pytest.approx(expected)


def test_means_of_an_npz(tmp_path):
    mean, std, targets = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).double().numpy()
    np.savez(tmp_path / "p.npz", mean=mean, std=np.exp(std), targets=targets)
    expected = be.metrics.summarise(be.Predictive.from_normal(mean, np.exp(std)), targets)
    assert scores(read_predictions(tmp_path / "p.npz", rows=9)) == pytest.approx(expected)


def test_a_table_is_read_as_tables_are(tmp_path):
    """Packed, with other delimiters, and with the numbers of rows that pandas writes in a column without a name."""
    (tmp_path / "packed.csv").write_bytes(gzip.compress(CLASSES.replace(",", ";").encode()))
    (tmp_path / "pandas.csv").write_text(CLASSES.replace("id,", ","))
    (tmp_path / "plain.csv").write_text(CLASSES)
    plain, *others = (scores(read_predictions(tmp_path / f"{name}.csv")) for name in ("plain", "packed", "pandas"))
    assert others == [plain, plain]
    (tmp_path / "two.csv").write_text(CLASSES.replace("id,", ",,").replace("\n", "\n0,", 3))
    with pytest.raises(be.DataError, match="each column needs a name; those without are number 1, 2"):
        list(read_predictions(tmp_path / "two.csv"))


def test_classes_may_be_called_what_elsewhere_means_missing(tmp_path):
    (tmp_path / "p.csv").write_text("p_none,p_some,target\n0.9,0.1,none\n0.2,0.8, some\n")
    ((_, targets),) = read_predictions(tmp_path / "p.csv")
    assert targets.tolist() == [0, 1]


def test_foreign_predictions_need_no_targets(tmp_path):
    (tmp_path / "p.csv").write_text("p_a,p_b\n0.5,0.5\n0.9,0.1\n")
    np.savez(tmp_path / "p.npz", probs=np.array([[0.5, 0.5], [0.9, 0.1]]))
    for name in ("p.csv", "p.npz"):
        ((predictive, targets),) = read_predictions(tmp_path / name, target=None)
        assert targets is None
        assert predictive.probs[1].tolist() == pytest.approx([0.9, 0.1])


BAD = {
    "no file": (None, "is not a file"),
    "empty": ("", "is empty; a row with column names"),
    "no rows": ("p_a,p_b,target\n", "column names but no rows"),
    "no target": ("p_a,p_b\n1,0\n", "has no column 'target'; its columns are 'p_a', 'p_b'"),
    "no prediction": ("x,target\n1,0\n", "needs two or more columns p_LABEL, or mean and std"),
    "one probability": ("p_a,target\n1,a\n", "needs two or more columns p_LABEL"),
    "twice": ("p_a,p_a,target\n1,0,a\n", "each column needs a name of its own; repeated are 'p_a'"),
    "short line": ("p_a,p_b,target\n0.5,0.5,a\n0.5,a\n", "row 3: 3 cells were needed, got 2"),
    "a word": ("p_a,p_b,target\n0.5,half,a\n", "row 2, column 'p_b': a number like .* was needed, got 'half'"),
    "nothing": ("p_a,p_b,target\n0.5,,a\n", "row 2, column 'p_b': a number was needed, got ''"),
    "infinite": ("p_a,p_b,target\n0.5,inf,a\n", "row 2, column 'p_b': .*of at most .* was needed, got 'inf'"),
    "foreign label": (
        "p_a,p_b,target\n0.5,0.5,c\n",
        "row 2, column 'target': 'c' has no column p_c; there are 'a', 'b'",
    ),
    "no probabilities": ("p_a,p_b,target\n0.9,0.9,a\n", "sum to one"),
    "negative std": ("mean,std,target\n1,-1,1\n", "standard deviations must be positive"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_csv_is_named_with_its_row(name, tmp_path):
    content, message = BAD[name]
    path = tmp_path / "predictions.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(be.DataError, match=message):
        list(read_predictions(path))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"p_a\x00p_b")
    (tmp_path / "p.npz").write_bytes(b"not a zip")
    for name in ("p.csv", "p.npz"):
        with pytest.raises(be.DataError, match="cannot be read"):
            list(read_predictions(tmp_path / name))


def test_arrays_of_objects_are_not_unpacked(tmp_path):
    np.savez(tmp_path / "p.npz", probs=np.array([{"a": 1}], dtype=object), targets=np.zeros(1))
    with pytest.raises(be.DataError, match="plain arrays"):
        list(read_predictions(tmp_path / "p.npz"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"probs": np.ones((2, 2)) / 2}, "needs targets and probs"),
        ({"probs": np.ones((2, 2)) / 2, "targets": np.zeros(3)}, "differ in their rows"),
        ({"probs": np.ones((0, 2)), "targets": np.zeros(0)}, "has no rows"),
        ({"mean": np.zeros(2), "targets": np.zeros(2)}, "targets, mean and std; it holds mean, targets"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(be.DataError, match=message):
        list(read_predictions(tmp_path / "p.npz"))
