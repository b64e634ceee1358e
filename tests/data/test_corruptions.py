import colorsys
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bayesemble.core.errors import DataError, SettingError
from bayesemble.data import corruptions, image_filters
from bayesemble.data.array_files import find_reader
from bayesemble.data.corruptions import CORRUPTIONS, ROTATIONS, corrupt, rotated, turned_and_flipped
from conftest import REAL_DATA

SEVERITIES = (1, 2, 3, 4, 5)
# Published steps that do not lead away from the clean image every time, at every size.
UNEVEN = {"glass_blur", "motion_blur", "frost", "pixelate", "fog", "snow"}

every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@cache
def samples(kind: str) -> np.ndarray:
    """Images of several sizes: digits are real, the others smooth random fields with edges."""
    if kind == "digits":
        return (load_digits().images[:60, ..., None] / 16).astype(np.float32)
    count, size, channels = {"gray": (12, 28, 1), "colour": (12, 32, 3), "large": (3, 96, 3)}[kind]
    fields = image_filters.plasma((count * channels, size, size), 2.5, random(1))
    edges = fields + 0.4 * (image_filters.plasma((count * channels, size, size), 3.0, random(2)) > 0.5) - 0.2
    return edges.clip(0, 1).reshape(count, channels, size, size).transpose(0, 2, 3, 1).astype(np.float32)


def distances(images: np.ndarray, name: str) -> list[float]:
    """Root mean squared distance from the clean images for each severity, under the same draws."""
    changes = (corrupt(images, name, severity, random()) - images for severity in SEVERITIES)
    return [float(np.sqrt((change**2).mean(axis=(1, 2, 3))).mean()) for change in changes]


# --- what all have in common ---


def test_there_are_the_fifteen_in_their_customary_order() -> None:
    assert ", ".join(CORRUPTIONS) == (
        "gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, "
        "fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression"
    )
    assert all(function.__name__ == name for name, function in CORRUPTIONS.items())
    for table in (corruptions._SMALL, corruptions._LARGE):
        assert {name: len(strengths) for name, strengths in table.items()} == dict.fromkeys(CORRUPTIONS, 5)


def test_listing_them_imports_neither_scipy_nor_torch() -> None:
    code = (
        "import sys; from bayesemble.data.corruptions import CORRUPTIONS; "
        "assert not {'scipy', 'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@every_corruption
@pytest.mark.parametrize("kind", ["digits", "gray", "colour", "large"])
def test_shape_range_and_number_type_stay_and_images_change(name: str, kind: str) -> None:
    images = samples(kind)[:3]
    before = images.copy()
    for severity in (1, 5):
        result = corrupt(images, name, severity, random())
        assert result.shape == images.shape
        assert result.dtype == images.dtype
        assert result.min() >= 0
        assert result.max() <= 1
        assert not np.allclose(result, images, atol=1e-4)
    np.testing.assert_array_equal(images, before)


@every_corruption
def test_images_need_not_be_square_nor_have_one_or_three_channels(name: str) -> None:
    images = random(3).uniform(size=(2, 11, 19, 2))
    result = corrupt(images, name, 3, random())
    assert result.shape == images.shape
    assert result.dtype == np.float64


@every_corruption
def test_the_same_generator_gives_the_same_images(name: str) -> None:
    images = samples("colour")[:3]
    np.testing.assert_array_equal(corrupt(images, name, 3, random()), corrupt(images, name, 3, random()))


@pytest.mark.parametrize(
    "name", [n for n in CORRUPTIONS if n not in "defocus_blur zoom_blur brightness contrast pixelate jpeg_compression"]
)
def test_what_is_random_differs_between_generators_and_between_images(name: str) -> None:
    images = samples("colour")[:1].repeat(2, axis=0)
    one, other = (corrupt(images, name, 3, random(seed)) for seed in (0, 1))
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], one[1])


@every_corruption
@pytest.mark.parametrize("kind", ["digits", "gray", "colour", "large"])
def test_the_distance_from_the_clean_image_grows_with_severity(name: str, kind: str) -> None:
    found = distances(samples(kind), name)
    assert found[4] > found[0]
    assert np.polyfit(SEVERITIES, found, 1)[0] > 0
    if name not in UNEVEN:
        assert found == sorted(set(found))


@pytest.mark.parametrize("kind", ["digits", "gray", "colour", "large"])
def test_averaged_over_corruptions_every_step_leads_away(kind: str) -> None:
    means = np.mean([distances(samples(kind)[:12], name) for name in CORRUPTIONS], axis=0)
    assert (np.diff(means) > 0).all()


@every_corruption
def test_black_and_white_images_stay_finite(name: str) -> None:
    for value in (0.0, 1.0):
        result = corrupt(np.full((2, 8, 8, 3), value), name, 5, random())
        assert np.isfinite(result).all()


@every_corruption
@pytest.mark.parametrize("severity", [0, 6, 2.5, "3"])
def test_other_severities_are_refused(name: str, severity: object) -> None:
    with pytest.raises(SettingError, match="severity is a whole number from 1 to 5, got"):
        corrupt(samples("digits"), name, severity, random())  # type: ignore[arg-type]


def test_unknown_corruptions_are_refused() -> None:
    with pytest.raises(SettingError, match="unknown corruption 'rain'; choose one of gaussian_noise, shot_noise, "):
        corrupt(samples("digits"), "rain", 1, random())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8)), r"got float64 \(2, 8, 8\); divide bytes by 255, and give gray images a channel"),
        (np.zeros((2, 8, 8, 1), np.uint8), r"got uint8 \(2, 8, 8, 1\)"),
        (np.zeros((0, 8, 8, 1)), r"got float64 \(0, 8, 8, 1\)"),
        (np.full((1, 8, 8, 1), 255.0), r"images must lie in \[0, 1\], got 255\.\.255; scale them after corrupting"),
        (np.linspace(-0.5, 0.5, 64).reshape(1, 8, 8, 1), r"images must lie in \[0, 1\], got -0\.5\.\.0\.5"),
        (np.linspace(0.5, 1.5, 64).reshape(1, 8, 8, 1), r"images must lie in \[0, 1\], got 0\.5\.\.1\.5"),
        (np.full((1, 8, 8, 1), np.nan), r"images must lie in \[0, 1\], got nan"),
    ],
)
def test_other_images_are_refused(images: np.ndarray, message: str) -> None:
    for attempt in (lambda: corrupt(images, "fog", 1, random()), lambda: rotated(images, 30)):
        with pytest.raises(DataError, match=message):
            attempt()


# --- each by itself ---


@pytest.mark.parametrize(("size", "expected"), [(32, 0.06), (8, 0.06), (64, 0.06), (65, 0.12), (224, 0.12)])
def test_noise_takes_the_table_of_its_size_and_is_not_scaled(size: int, expected: float) -> None:
    gray = np.full((-(-40000 // size**2), size, size, 1), 0.5)
    assert (corrupt(gray, "gaussian_noise", 2, random()) - gray).std() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("size", "radius"), [(32, 1.5), (16, 0.75), (64, 3.0), (224, 10.0), (112, 5.0)])
@pytest.mark.parametrize("longer", [0, 40])
def test_lengths_are_scaled_to_the_shorter_side_of_the_image(size: int, radius: float, longer: int) -> None:
    image = np.zeros((1, size, size + longer, 1))
    image[0, size // 2, size // 2] = 1
    np.testing.assert_allclose(
        corrupt(image, "defocus_blur", 5, random()), image_filters.defocused(image, radius).clip(0, 1)
    )


def test_counts_of_light_have_the_variance_of_poisson() -> None:
    gray = np.full((40, 32, 32, 1), 0.3)
    noise = corrupt(gray, "shot_noise", 3, random()) - gray
    assert noise.mean() == pytest.approx(0, abs=0.002)
    assert noise.var() == pytest.approx(0.3 / 100, rel=0.03)


def test_impulses_hit_the_given_share_half_black_and_half_white() -> None:
    gray = np.full((40, 32, 32, 1), 0.3)
    noisy = corrupt(gray, "impulse_noise", 5, random())
    assert (noisy == 0).mean() == pytest.approx(0.035, rel=0.06)
    assert (noisy == 1).mean() == pytest.approx(0.035, rel=0.06)
    assert (noisy == 0.3).mean() == pytest.approx(0.93, rel=0.01)


def test_brightness_adds_to_the_value_and_keeps_hue_and_saturation() -> None:
    images = samples("colour").astype(float)[:2] * 0.6 + 0.05
    bright = corrupt(images, "brightness", 3, random())
    clean, bright = (
        np.array([colorsys.rgb_to_hsv(*pixel) for pixel in colours.reshape(-1, 3)]) for colours in (images, bright)
    )
    np.testing.assert_allclose(bright[..., 2], clean[..., 2] + 0.15)
    np.testing.assert_allclose(bright[..., :2], clean[..., :2], atol=1e-9)


def test_brightness_turns_black_gray() -> None:
    np.testing.assert_allclose(corrupt(np.zeros((1, 8, 8, 3)), "brightness", 4, random()), 0.2)


def test_contrast_shrinks_towards_the_mean_of_each_channel() -> None:
    images = samples("colour").astype(float)
    result = corrupt(images, "contrast", 2, random())
    np.testing.assert_allclose(result.mean(axis=(1, 2)), images.mean(axis=(1, 2)))
    np.testing.assert_allclose(result.std(axis=(1, 2)), 0.5 * images.std(axis=(1, 2)))


def test_zoom_blur_leaves_the_middle_and_smears_the_edge() -> None:
    images = random().uniform(size=(20, 33, 33, 1))
    change = np.abs(corrupt(images, "zoom_blur", 5, random()) - images)
    assert change[:, 16, 16].max() < 1e-9
    assert change[:, 15:18, 15:18].mean() < 0.5 * change[:, [0, -1]].mean()


@pytest.mark.parametrize(("severity", "largest"), [(1, 1.05), (4, 1.2)])
def test_zoom_blur_flattens_a_ramp_by_the_mean_of_one_over_the_factors(severity: int, largest: float) -> None:
    ramp = np.linspace(0.1, 0.9, 20)[None, :, None, None] * np.ones((1, 20, 20, 1))
    factors = [1.0, *np.arange(1.0, largest + 0.005, 0.01)]  # the image itself, and its enlargements
    expected = 0.5 + (ramp - 0.5) * np.mean(np.reciprocal(factors))
    np.testing.assert_allclose(corrupt(ramp, "zoom_blur", severity, random()), expected)


def test_blurs_and_stretches_of_half_the_customary_size_have_half_the_lengths() -> None:
    images, angles = random(3).uniform(size=(3, 16, 16, 2)), random().uniform(-45, 45, 3)
    soft = image_filters.softened(images, 0.2)
    twins = {
        "motion_blur": image_filters.trailed(images, angles, 9.0, 1.25, step=0.5),
        "glass_blur": image_filters.softened(image_filters.shuffled_nearby(soft, 0.5, 2, random()), 0.2),
        "elastic_transform": image_filters.stretched(images, 0.05 * 16, 0.03 * 16, 0.04 * 16, random()),
        "pixelate": image_filters.pixelated(images, 1 / 0.65),
    }
    for name, expected in twins.items():
        np.testing.assert_allclose(corrupt(images, name, 5, random()), expected.clip(0, 1), err_msg=name)


def test_fog_keeps_the_brightest_value_within_its_old_bound_and_black_black() -> None:
    images = 0.6 * samples("gray")
    foggy = corrupt(images, "fog", 4, random())
    assert (foggy.max(axis=(1, 2, 3)) <= images.max(axis=(1, 2, 3)) + 1e-6).all()
    assert not corrupt(np.zeros((1, 8, 8, 1)), "fog", 4, random()).any()


def test_snow_and_frost_lay_brightness_over_black() -> None:
    black = np.zeros((4, 32, 32, 3))
    for name in ("snow", "frost"):
        result = corrupt(black, name, 5, random())
        assert result.mean() > 0.05
        np.testing.assert_allclose(result, result[..., :1].repeat(3, axis=-1))  # white, not coloured


def test_fog_adds_clouds_and_dims_the_whole() -> None:
    images = random(3).uniform(0, 0.6, size=(2, 16, 16, 3))
    clouds = image_filters.plasma((2, 16, 16), 3.0, random())[..., None]
    brightest = images.max((1, 2, 3), keepdims=True)
    expected = (images + 0.5 * clouds) * brightest / (brightest + 0.5)
    np.testing.assert_allclose(corrupt(images, "fog", 2, random()), expected)


def test_frost_adds_veins_to_what_it_keeps_of_the_image() -> None:
    images, black = np.full((3, 32, 32, 1), 0.5), np.zeros((3, 32, 32, 1))
    veins = corrupt(black, "frost", 5, random())
    heights = image_filters.plasma((3, 32, 32), 1.7, random())[..., None]
    np.testing.assert_allclose(veins, 0.45 * (1 - 2 * np.abs(heights - 0.5)) ** 4, atol=1e-12)  # bright half-way up
    np.testing.assert_allclose(corrupt(images, "frost", 5, random()), 0.75 * images + veins)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_snow_whitens_the_image_and_adds_flakes_that_are_alike_when_turned(size: int) -> None:
    """Of black 0.5 * (1 - colour) is left; of gray g the whitened image is 1.5 g + 0.5."""
    black, gray = np.zeros((4, size, size, 1)), np.full((4, size, size, 1), 0.1)
    flakes = corrupt(black, "snow", 2, random()) - 0.1 * 0.5
    np.testing.assert_allclose(flakes, flakes[:, ::-1, ::-1], atol=1e-12)
    assert flakes.min() == pytest.approx(0, abs=1e-9)
    assert flakes.max() > 0.1
    inside = flakes < 0.5
    np.testing.assert_allclose(
        corrupt(gray, "snow", 2, random())[inside], (flakes + 0.9 * 0.1 + 0.1 * (1.5 * 0.1 + 0.5))[inside]
    )


def test_jpeg_takes_the_published_qualities() -> None:
    images = samples("colour")
    for severity, quality in zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True):
        expected = image_filters.through_jpeg(images, quality).clip(0, 1)
        np.testing.assert_allclose(corrupt(images, "jpeg_compression", severity, random()), expected, atol=1e-6)


# --- rotations ---


def test_quarter_turns_are_exact_and_counter_clockwise() -> None:
    images = samples("colour")
    np.testing.assert_allclose(rotated(images, 90), np.rot90(images, axes=(1, 2)), atol=1e-5)
    np.testing.assert_allclose(rotated(images, 180), images[:, ::-1, ::-1], atol=1e-5)
    np.testing.assert_allclose(rotated(images, 0), images, atol=1e-6)


def test_turning_takes_each_value_between_four_pixels_linearly() -> None:
    image = np.zeros((1, 9, 9, 1))
    image[0, 2, 5] = 1
    down, right = np.mgrid[-4:5, -4:5]
    cos, sin = np.cos(np.deg2rad(30)), np.sin(np.deg2rad(30))
    row, column = 4 + down * cos + right * sin, 4 + right * cos - down * sin  # where a pixel came from
    expected = (1 - np.abs(row - 2)).clip(0) * (1 - np.abs(column - 5)).clip(0)
    np.testing.assert_allclose(rotated(image, 30)[0, ..., 0], expected, atol=1e-9)


def test_turning_there_and_back_restores_the_middle() -> None:
    images = image_filters.softened(samples("gray"), 1.5)
    back = rotated(rotated(images, 30), -30)
    middle = np.s_[:, 9:19, 9:19]
    np.testing.assert_allclose(back[middle], images[middle], atol=0.06)


def test_corners_become_black_and_shape_and_type_stay() -> None:
    white = np.ones((2, 28, 28, 1), np.float32)
    for degrees in ROTATIONS:
        turned = rotated(white, degrees)
        assert turned.shape == white.shape
        assert turned.dtype == white.dtype
        if degrees % 90:
            assert turned[:, 0, 0].max() == 0
    assert ROTATIONS[0] == 15
    assert ROTATIONS[-1] == 180


# --- real images ---


@pytest.mark.skipif(not (REAL_DATA / "cifar10").is_dir(), reason="the folder with CIFAR-10 is not here")
def test_cifar_images_lose_more_with_severity() -> None:
    path = REAL_DATA / "cifar10" / "cifar10_test5k.npz"
    _check_growth(find_reader(path).inputs(path)[:40].astype(np.float32) / 255)


@pytest.mark.skipif(not (REAL_DATA / "fashion-mnist").is_dir(), reason="the folder with Fashion-MNIST is not here")
def test_fashion_images_lose_more_with_severity() -> None:
    path = REAL_DATA / "fashion-mnist"
    _check_growth(find_reader(path).inputs(path)[:40, ..., None].astype(np.float32) / 255)


def _check_growth(images: np.ndarray) -> None:
    for name in CORRUPTIONS:
        found = distances(images, name)
        assert found[4] > found[0], name
        assert np.polyfit(SEVERITIES, found, 1)[0] > 0, name
        assert name in UNEVEN or found == sorted(set(found)), name


def test_each_image_is_turned_by_an_angle_of_its_own_and_every_other_mirrored():
    images = np.random.default_rng(0).random((60, 9, 9, 1)).astype(np.float32)
    found = turned_and_flipped(images, np.random.default_rng(3), degrees=40.0)
    generator = np.random.default_rng(3)
    angles, mirrored = generator.uniform(-40, 40, 60), generator.random(60) < 0.5
    for image, angle, flip, out in zip(images, angles, mirrored, found, strict=True):
        turned = rotated(image[None], float(angle))[0]
        np.testing.assert_array_equal(out, turned[:, ::-1] if flip else turned)
    assert 15 < mirrored.sum() < 45
    still = turned_and_flipped(images, np.random.default_rng(3), degrees=0.0)
    assert all(np.allclose(out, a) or np.allclose(out, a[:, ::-1]) for out, a in zip(still, images, strict=True))
