import numpy as np
import pytest
import torch

from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.seeds import scoped
from bayesemble.data.image_sets.picture_folder import MEAN, STD, PictureFolder, Pictures

Image = pytest.importorskip("PIL.Image")


def write(folder, sizes: dict[str, list[tuple[int, int]]]) -> dict[str, list[np.ndarray]]:
    """Pictures of smooth colours, of these heights and widths."""
    made = {}
    for name, found in sizes.items():
        (folder / name).mkdir(parents=True)
        made[name] = []
        for index, (height, width) in enumerate(found):
            down, right = np.linspace(0, 200, height)[:, None], np.linspace(0, 50, width)[None]
            pixels = np.stack([down + right, down + 0 * right, 0 * down + right], -1).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
            made[name].append(pixels)
    return made


def test_pictures_are_standardised_by_colour_and_classes_numbered_by_name(tmp_path):
    made = write(tmp_path, {"b": [(8, 8)], "a": [(8, 8), (8, 8)]})
    folder = PictureFolder(tmp_path, size=8)
    assert (folder.classes, len(folder), folder.targets.tolist()) == (["a", "b"], 3, [0, 0, 1])
    x, y = folder[2]
    expected = (torch.tensor(made["b"][0]) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(x, expected.permute(2, 0, 1), rtol=0, atol=1e-5)
    assert y == 1
    np.testing.assert_array_equal(Pictures(folder)[1:3], np.stack([made["a"][1], made["b"][0]]))


def test_the_middle_of_a_larger_picture_is_cut_out(tmp_path):
    """Of 256 x 300 pixels, the middle 224 x 224: no pixel is resized."""
    made = write(tmp_path, {"a": [(256, 300)], "b": [(256, 256)]})
    folder = PictureFolder(tmp_path, size=224)
    np.testing.assert_array_equal(folder.pixels(0), made["a"][0][16:240, 38:262])
    np.testing.assert_array_equal(folder.pixels(1), made["b"][0][16:240, 16:240])


def test_random_parts_are_inside_have_their_share_and_every_other_is_mirrored(tmp_path):
    write(tmp_path, {"a": [(60, 80)]})
    folder = PictureFolder(tmp_path, size=8, augment=True)
    with scoped(0):
        parts = [folder._random_part(80, 60) for _ in range(400)]
        assert not np.array_equal(folder.pixels(0), folder.pixels(0))
    boxes = np.array([box for box, _ in parts])
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 80
    assert boxes[:, 3].max() <= 60
    wide, tall = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert ((wide * tall / 4800 > 0.0799) & (wide * tall / 4800 <= 1)).all()
    assert ((wide / tall > 0.749) & (wide / tall < 1.334)).all()
    assert abs(np.mean([mirrored for _, mirrored in parts]) - 0.5) < 4 * 0.5 / 20


def test_classes_may_be_those_of_another_folder(tmp_path):
    write(tmp_path, {"cat": [(4, 4)], "dog": [(4, 4)]})
    assert PictureFolder(tmp_path, 4, classes=["ant", "cat", "dog"]).targets.tolist() == [1, 2]
    with pytest.raises(DataError, match="has a class 'dog' that is not among the 1 known"):
        PictureFolder(tmp_path, 4, classes=["cat"])


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no pictures"):
        PictureFolder(tmp_path)
    write(tmp_path, {"a": [(4, 4)]})
    with pytest.raises(SettingError, match="size is a number of pixels from 1, got 0"):
        PictureFolder(tmp_path, size=0)
    (tmp_path / "a" / "0.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"0\.png cannot be read as a picture"):
        PictureFolder(tmp_path)[0]
