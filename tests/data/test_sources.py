"""Data by one text: embedded sets, tables, arrays, folders; foreign data; fewer rows."""

import gzip
import os

import numpy as np
import pytest

from bayesemble.core.errors import DataError, SettingError
from bayesemble.data import load_split
from bayesemble.data.sources import (
    _split,
    data_fingerprint,
    data_name,
    data_stamp,
    load_data,
    resolve_data,
    usual_epochs,
)
from conftest import REAL_DATA

FIELDS = ("x_train", "y_train", "x_test", "y_test", "x_ood")


@pytest.fixture
def generator():
    return np.random.default_rng(0)


@pytest.fixture
def houses(tmp_path, generator):
    """A table of two numbers, a category and a price, and the columns as they should come out."""
    size, age = generator.normal(100, 20, 50), generator.integers(0, 80, 50)
    town = generator.choice(["Bonn", "Cologne", "Trier"], 50)
    price = 3 * size - age + 10.0 * (town == "Cologne")
    rows = [f"{a},{b},{c},{d}" for a, b, c, d in zip(size, age, town, price, strict=True)]
    path = tmp_path / "houses.csv"
    path.write_text("size,age,town,price\n" + "\n".join(rows) + "\n")
    matrix = np.stack([size, age, town == "Bonn", town == "Cologne", town == "Trier"], axis=1).astype(float)
    return path, matrix, price


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_embedded_sets_are_those_of_the_catalogue(name):
    expected, found = load_split(name, 3), load_data(name, 3)
    for field in FIELDS:
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    assert found.num_classes == expected.num_classes
    assert found.image_shape == ((8, 8) if name == "digits" else None)
    assert (found.target_shift, found.target_scale) == (expected.target_shift, expected.target_scale)


def test_a_table_becomes_numbers_and_a_column_for_each_category(houses):
    path, matrix, price = houses
    split = load_data(f"{path}:price", seed=1)
    assert (split.kind, split.num_classes) == ("regression", None)
    assert (len(split.x_train), len(split.x_test)) == (40, 10)
    # Rows are known by their prices: so each of them can be found again, and scaled by the training part by hand.
    places = [
        [int(np.abs(price - (split.target_shift + split.target_scale * y)).argmin()) for y in part]
        for part in (split.y_train, split.y_test)
    ]
    assert sorted(places[0] + places[1]) == list(range(50))
    mean, deviation = matrix[places[0]].mean(0), matrix[places[0]].std(0)
    assert np.allclose(split.x_train, (matrix[places[0]] - mean) / deviation, atol=1e-4)
    assert np.allclose(split.x_test, (matrix[places[1]] - mean) / deviation, atol=1e-4)


def test_a_packed_table_gives_the_same_rows_and_the_seed_decides_the_split(houses):
    path, _, _ = houses
    packed = path.with_name("houses.csv.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    one, same, other = (load_data(f"{p}:price", s) for p, s in ((path, 1), (packed, 1), (path, 2)))
    assert np.array_equal(one.x_train, same.x_train)
    assert not np.array_equal(one.x_train, other.x_train)


def test_texts_and_few_whole_numbers_are_classes(houses):
    path, _, _ = houses
    split = load_data(f"{path}:town")
    assert (split.kind, split.num_classes) == ("classification", 3)
    assert set(split.y_test) == {0, 1, 2}, "all classes are in the test part, in proportion"
    for seed in range(4):
        assert load_data(f"{path}:town", seed, rows=2).num_classes == 3, "also where not all are in the training part"


def test_the_target_of_a_table_has_to_be_named(houses):
    path, _, _ = houses
    with pytest.raises(DataError, match=r"which column of .*houses.csv.*with one of 'size', 'age', 'town', 'price'"):
        load_data(str(path))
    with pytest.raises(DataError, match=r"has no column 'rent'; its columns are 'size', 'age'"):
        load_data(f"{path}:rent")


def test_foreign_rows_of_a_table_go_through_the_same_columns(houses):
    path, _, _ = houses
    other = path.with_name("other.csv")
    other.write_text("town,age,size\nBonn,3,1000\nRome,3,1000\n")
    split = load_data(f"{path}:price", ood=str(other))
    assert split.x_ood.shape == (2, 5)
    towns = split.x_ood[:, 2:]
    assert towns[0, 0] > 0 > towns[1, 0], "an unknown category is none of the known ones"
    assert np.array_equal(split.x_ood[0, :2], split.x_ood[1, :2])
    assert split.x_ood[0, 0] > 10, "in units of the training part, 1000 is far away"


def test_arrays_with_real_targets_are_for_regression(tmp_path, generator):
    x, y = generator.normal(5, 3, (30, 4)), generator.normal(100, 7, 30)
    np.savez(tmp_path / "a.npz", x=x, y=y[:, None])
    split = load_data(str(tmp_path / "a.npz"))
    assert split.kind == "regression"
    assert split.x_train.shape == (24, 4)
    assert split.image_shape is None
    assert np.allclose(split.x_train.mean(0), 0, atol=1e-5)
    found = split.target_shift + split.target_scale * np.concatenate([split.y_train, split.y_test])
    assert np.allclose(np.sort(found), np.sort(y), rtol=1e-5)


def test_arrays_with_a_test_part_keep_it(tmp_path, generator):
    x, y = generator.integers(0, 256, (12, 3, 6, 5), dtype=np.uint8), np.repeat([3, 5, 9], 4)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    split = load_data(str(tmp_path / "a.npz"), seed=4)
    assert split.image_shape == (6, 5, 3)
    assert split.num_classes == 3
    assert split.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4, "classes are numbered in their order"
    pixels = np.moveaxis(x, 1, 3).reshape(12, -1) / 255
    assert np.allclose(split.x_train, (pixels - pixels.mean()) / pixels.std(), atol=1e-5)
    assert np.allclose(split.x_test, split.x_train[:5])


@pytest.mark.parametrize("lonely", [1, 2])
def test_classes_are_split_in_proportion_unless_one_of_them_has_a_single_row(tmp_path, generator, lonely):
    y = np.array([0] * 10 + [1] * 10 + [2] * lonely)
    np.savez(tmp_path / "a.npz", x=generator.normal(size=(len(y), 3)), y=y)
    tests = [np.bincount(load_data(str(tmp_path / "a.npz"), seed).y_test, minlength=3) for seed in range(8)]
    assert {int(counts.sum()) for counts in tests} == {5}
    even = all(counts[0] == counts[1] == 2 for counts in tests)
    assert even == (lonely == 2)


def test_five_rows_are_enough_and_as_many_classes_as_test_rows_are_split_in_proportion():
    parts = _split(np.arange(5.0)[:, None], np.arange(5.0), 0, classes=False)
    assert (len(parts.x_train), len(parts.x_test)) == (4, 1)
    with pytest.raises(DataError, match=r"at least 5 rows are needed .* got 4"):
        _split(np.arange(4.0)[:, None], np.arange(4.0), 0, classes=False)
    labels = np.repeat([0, 1], 5)
    for seed in range(10):
        assert sorted(_split(np.arange(10.0)[:, None], labels, seed, classes=True).y_test) == [0, 1]


def test_rows_are_drawn_by_the_seed(tmp_path, generator):
    whole = load_data("digits", 0)
    one, same, other = (load_data("digits", seed, rows=200) for seed in (0, 0, 1))
    assert len(one.x_train) == 200
    assert np.array_equal(one.x_train, same.x_train)
    assert not np.array_equal(one.x_train, other.x_train)
    assert np.array_equal(one.y_test, whole.y_test)
    assert load_data("digits", 0, rows=5).num_classes == 10, "also where not all of them are in the training part"
    assert abs(float(one.x_train.mean())) < 1e-5, "scaled by the rows that are left"
    with pytest.raises(SettingError, match="digits has 1437 training rows, so rows can be 2 to 1437, got 2000"):
        load_data("digits", rows=2000)


def test_foreign_data_of_any_kind_with_as_many_columns(tmp_path, generator):
    np.savez(tmp_path / "noise.npz", x=generator.uniform(0, 16, (7, 8, 8)))
    split = load_data("digits", ood=str(tmp_path / "noise.npz"))
    assert split.x_ood.shape == (7, 64)
    own = load_data("digits", ood="digits")
    assert np.array_equal(own.x_ood, own.x_test)
    with pytest.raises(DataError, match="foreign rows must have the columns of the data: wine has 13, digits has 64"):
        load_data("digits", ood="wine")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((9, 2)), "y": np.zeros(8)}, "x has 9 rows, y has 8"),
        ({"x": np.zeros(9), "y": np.zeros(9)}, r"x must be numbers .* got float64 of shape \(9,\)"),
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9)}, "x holds numbers that are not finite"),
        ({"x": np.zeros((9, 2)), "y": np.full(9, np.inf)}, "y holds targets that are not finite"),
        ({"x": np.zeros((9, 2)), "y": np.zeros((9, 2))}, r"y must be one target for each row, .*\(9, 2\)"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(9, dtype=int)}, "2 to 1000 of them, got 1"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "at least 5 rows are needed .* got 3"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_a_sentence(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(str(tmp_path / "a.npz"))


def test_training_and_test_rows_of_different_shape_are_refused(tmp_path):
    np.savez(
        tmp_path / "a.npz", x_train=np.zeros((9, 2)), y_train=np.zeros(9), x_test=np.zeros((4, 3)), y_test=np.zeros(4)
    )
    with pytest.raises(DataError, match=r"must be of one shape, got \(9, 2\) and \(4, 3\)"):
        load_data(str(tmp_path / "a.npz"))


def test_texts_that_mean_nothing_are_refused(tmp_path, houses):
    with pytest.raises(DataError, match=r"unknown data set 'mars'; choose one of digits.*, or a file or folder"):
        load_data("mars")
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.zeros(9))
    with pytest.raises(DataError, match=r"a.npz is no table, so it has no columns to name; leave out ':y'"):
        load_data(f"{tmp_path / 'a.npz'}:y")
    with pytest.raises(DataError, match=r"need data that is a table too; digits is not"):
        load_data("digits", ood=str(houses[0]))


def test_paths_are_kept_whole_and_sets_have_short_names(houses, monkeypatch):
    path, _, _ = houses
    monkeypatch.chdir(path.parent)
    assert resolve_data("houses.csv:price") == f"{path.resolve()}:price"
    assert resolve_data("digits") == data_name("digits") == "digits"
    assert data_name("houses.csv:price") == "houses.csv"
    assert data_name(".") == path.parent.name
    assert data_stamp("digits") == 0
    os.utime(path, ns=(0, 5))
    assert data_stamp("houses.csv:price") == 5
    assert data_stamp(".") > 5, "of a folder, the latest of what it holds"


def test_the_files_of_a_set_are_known_by_what_they_hold(houses, tmp_path):
    path = houses[0]
    assert data_fingerprint("digits") is None
    before = data_fingerprint(f"{path}:price")
    os.utime(path, ns=(0, 5))
    assert data_fingerprint(f"{path}:price") == before
    path.write_text(path.read_text().replace("1", "2", 1))
    assert data_fingerprint(f"{path}:price") != before
    for name in ("cats/1.png", "dogs/1.png", "train-images-idx3-ubyte", "notes.txt", "out/results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"0")
    found = data_fingerprint(str(tmp_path))
    for name, counts in (("notes.txt", False), ("out/results.json", False), ("cats/1.png", True)):
        (tmp_path / name).write_bytes(b"1")
        assert (data_fingerprint(str(tmp_path)) != found) == counts, "what is not read does not matter"
        found = data_fingerprint(str(tmp_path))
    (tmp_path / "cats/1.png").rename(tmp_path / "dogs/0.png")
    assert data_fingerprint(str(tmp_path)) != found
    os.utime(tmp_path / "dogs/1.png", ns=(0, 1 << 62))
    assert data_stamp(str(tmp_path)) == 1 << 62, "a picture that is replaced in place is seen"


def test_epochs_suit_the_number_of_rows():
    assert usual_epochs("digits", 1437) == 20
    assert [usual_epochs("x.csv:y", rows) for rows in (100, 1000, 60_000)] == [100, 40, 10]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the real data sets are not here")
def test_real_sets_of_images():
    split = load_data(str(REAL_DATA / "mnist"), rows=1000, ood=str(REAL_DATA / "kmnist" / "kmnist_test_first105.npz"))
    assert split.x_train.shape == (1000, 784)
    assert split.x_test.shape == (10_000, 784)
    assert split.x_ood.shape == (105, 784)
    assert (split.image_shape, split.num_classes) == ((28, 28), 10)
