import numpy as np
import pytest

from bayesemble.core.errors import DataError
from bayesemble.data.image_sets.corrupted import cifar_c, imagenet_c
from bayesemble.metrics import mean_corruption_error, published_corruption_table, relative_mean_corruption_error
from bayesemble.predictive import Predictive


def write_cifar_c(folder, names=("gaussian_noise", "fog")) -> np.ndarray:
    """Two images a severity, whose first pixel says the class as it is seen: wrong from severity 3 or 5 on."""
    folder.mkdir()
    labels = np.tile([1, 2], 5)
    for name, wrong_from in zip(names, (3, 5), strict=True):
        images = np.zeros((10, 4, 4, 3), np.uint8)
        for row, label in enumerate(labels):
            images[row, 0, 0, 0] = label if row // 2 + 1 < wrong_from else 0
        np.save(folder / f"{name}.npy", images)
    np.save(folder / "labels.npy", labels)
    return labels


def predict(images: np.ndarray) -> Predictive:
    return Predictive.from_probs(np.eye(3)[images[:, 0, 0, 0]][None] * 0.97 + 0.01)


def test_errors_of_published_arrays_are_those_counted_by_hand(tmp_path):
    write_cifar_c(tmp_path / "C")
    table = published_corruption_table(predict, cifar_c(tmp_path / "C"), batch_size=1)
    assert table.severities == (1, 2, 3, 4, 5)
    assert table.errors == {"gaussian_noise": [0, 0, 1, 1, 1], "fog": [0, 0, 0, 0, 1]}
    base = {"gaussian_noise": [1.0] * 5, "fog": [0.5] * 5}
    assert mean_corruption_error(table.errors, base) == pytest.approx((100 * 3 / 5 + 100 * 1 / 2.5) / 2)
    assert relative_mean_corruption_error(table.errors, 0.0, base, 0.5 - 1e-3) > 0


def test_a_choice_of_corruptions_and_labels_of_one_severity(tmp_path):
    labels = write_cifar_c(tmp_path / "C")
    np.save(tmp_path / "C" / "labels.npy", labels[:2])
    parts = list(cifar_c(tmp_path / "C", ("fog",)))
    assert [(part.corruption, part.severity, part.targets.tolist()) for part in parts] == [
        ("fog", severity, [1, 2]) for severity in range(1, 6)
    ]


def test_folders_of_pictures_by_severity(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for severity in range(1, 6):
        for number, name in enumerate(("ant", "bee")):
            place = tmp_path / "noise" / "gaussian_noise" / str(severity) / name
            place.mkdir(parents=True)
            pixels = np.full((6, 6, 3), number + 1 if severity < 4 else 0, np.uint8)
            image.fromarray(pixels).save(place / "x.png")
    table = published_corruption_table(predict, imagenet_c(tmp_path, ["ape", "ant", "bee"], size=6))
    assert table.errors == {"gaussian_noise": [0, 0, 0, 1, 1]}
    with pytest.raises(DataError, match="has no folder fog"):
        list(imagenet_c(tmp_path, ["ant", "bee"], corruptions=("fog",)))


def test_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"labels\.npy cannot be read as an array"):
        list(cifar_c(tmp_path))
    np.save(tmp_path / "labels.npy", np.zeros(10))
    with pytest.raises(DataError, match="has none of the corruptions"):
        list(cifar_c(tmp_path))
    np.save(tmp_path / "fog.npy", np.zeros((9, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="5 severities in a row"):
        list(cifar_c(tmp_path))
    np.save(tmp_path / "fog.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as an array"):
        list(cifar_c(tmp_path))


def test_severities_must_be_the_same():
    images = np.zeros((1, 2, 2, 3), np.uint8)
    with pytest.raises(DataError, match=r"fog has the severities \[2\], snow has \[1\]"):
        published_corruption_table(predict, [("snow", 1, images, [0]), ("fog", 2, images, [0])])
    with pytest.raises(DataError, match="snow, severity 1, has 1 images and 2 targets"):
        published_corruption_table(predict, [("snow", 1, images, [0, 1])])
