import numpy as np
import pytest
from scipy import ndimage

from bayesemble.core.errors import SettingError
from bayesemble.data import image_filters


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(count: int = 3, height: int = 12, width: int = 10, channels: int = 1) -> np.ndarray:
    return random().uniform(size=(count, height, width, channels))


def point(size: int = 15) -> np.ndarray:
    images = np.zeros((1, size, size, 1))
    images[0, size // 2, size // 2] = 1
    return images


def smooth_colours() -> np.ndarray:
    rows, columns = np.mgrid[0:1:32j, 0:1:24j]
    return np.stack([rows, columns, (rows + columns) / 2], axis=-1)[None]


def moments(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean place of the brightness from the middle, and its variance along each axis."""
    places = np.mgrid[: image.shape[0], : image.shape[1]] - (np.array(image.shape[:2]) // 2)[:, None, None]
    means = (places * image[..., 0]).sum(axis=(1, 2)) / image.sum()
    return means, (places**2 * image[..., 0]).sum(axis=(1, 2)) / image.sum() - means**2


# --- blurs ---


def test_gray_weighs_colours_as_the_eye_does_and_leaves_gray_alone() -> None:
    images = noise(channels=3)
    expected = 0.299 * images[..., 0] + 0.587 * images[..., 1] + 0.114 * images[..., 2]
    np.testing.assert_allclose(image_filters.gray(images)[..., 0], expected)
    np.testing.assert_allclose(image_filters.gray(images[..., :1]), images[..., :1])


every_blur = pytest.mark.parametrize(
    "blur",
    [
        lambda images: image_filters.softened(images, 1.3),
        lambda images: image_filters.defocused(images, 2.2),
        lambda images: image_filters.trailed(images, np.full(len(images), 30.0), 5.0, 2.0, 1.0),
        lambda images: image_filters.enlarged(images, 1.2),
        lambda images: image_filters.pixelated(images, 1.7),
    ],
)


@every_blur
def test_blurs_leave_a_plain_image_plain(blur) -> None:
    plain = np.full((2, 9, 12, 3), 0.7)
    np.testing.assert_allclose(blur(plain), plain)


@every_blur
def test_blurs_mix_neither_images_nor_channels(blur) -> None:
    images = noise(count=2, channels=2)
    alone = [[blur(images[i : i + 1, ..., c : c + 1]) for c in range(2)] for i in range(2)]
    np.testing.assert_allclose(blur(images), np.concatenate([np.concatenate(one, -1) for one in alone]))


@pytest.mark.parametrize("radius", [2.0, 3.5, 5.0])
def test_a_point_out_of_focus_becomes_a_disk(radius: float) -> None:
    """A disk has variance r^2/4 along each axis; sharing between pixels adds no more than a sixth and a bit."""
    image = image_filters.defocused(point(), radius)[0]
    means, variances = moments(image)
    assert image.sum() == pytest.approx(1)
    np.testing.assert_allclose(means, 0, atol=1e-9)
    np.testing.assert_allclose(variances, radius**2 / 4 + 1 / 6, atol=0.06 * radius)
    np.testing.assert_allclose(image, np.rot90(image), atol=1e-12)


def test_a_radius_far_below_a_pixel_still_blurs_a_little() -> None:
    spread = [1 - image_filters.defocused(point(), radius)[0, 7, 7, 0] for radius in (0.05, 0.1, 0.2, 0.4)]
    assert 0 < spread[0] < spread[1] < spread[2] < spread[3] < 0.4


@pytest.mark.parametrize(("degrees", "row", "column"), [(0, 0, 1), (-90, 1, 0), (90, -1, 0), (180, 0, -1)])
def test_a_point_leaves_a_trail_in_the_direction_of_its_angle(degrees: float, row: int, column: int) -> None:
    image = image_filters.trailed(point(), np.array([float(degrees)]), 5.0, 2.0, 1.0)[0]
    weights = np.exp(-0.5 * (np.arange(6) / 2.0) ** 2)
    along = [image[7 + step * row, 7 + step * column, 0] for step in range(6)]
    np.testing.assert_allclose(along, weights / weights.sum(), atol=1e-9)
    assert image.sum() == pytest.approx(1)


def test_every_image_has_a_trail_of_its_own() -> None:
    images = image_filters.trailed(np.concatenate([point(), point()]), np.array([0.0, -90.0]), 5.0, 2.0, 1.0)
    np.testing.assert_allclose(images[0, :, :, 0], images[1, :, :, 0].T, atol=1e-12)


def test_a_trail_is_the_convolution_of_scipy() -> None:
    images = noise()
    kernel = image_filters.trailed(point(), np.array([-20.0]), 4.0, 1.5, 0.5)[0, :, :, 0]
    expected = [ndimage.convolve(image[..., 0], kernel, mode="nearest") for image in images]
    actual = image_filters.trailed(images, np.full(len(images), -20.0), 4.0, 1.5, 0.5)
    np.testing.assert_allclose(actual[..., 0], expected, atol=1e-12)


# --- where pixels come from ---


def test_enlarging_by_1_changes_nothing_and_by_3_samples_between_pixels() -> None:
    images = noise()
    np.testing.assert_allclose(image_filters.enlarged(images, 1.0), images)
    places = np.meshgrid(5.5 + (np.arange(12) - 5.5) / 3, 4.5 + (np.arange(10) - 4.5) / 3, indexing="ij")
    expected = ndimage.map_coordinates(images[0, ..., 0], places, order=1)
    np.testing.assert_allclose(image_filters.enlarged(images, 3.0)[0, ..., 0], expected)


def test_blocks_of_whole_pixels_become_their_means() -> None:
    images = noise(height=12, width=8)
    means = images.reshape(3, 3, 4, 2, 4).mean(axis=(2, 4))
    np.testing.assert_allclose(image_filters.pixelated(images, 4.0)[..., 0], means.repeat(4, axis=1).repeat(4, axis=2))


def test_blocks_share_the_pixels_that_they_cut() -> None:
    """Blocks of 1.5 in a row of 3: pixel 1 belongs by halves to both, its middle to the second."""
    row = np.array([0.0, 1.0, 4.0])[None, None, :, None].repeat(3, axis=1)
    np.testing.assert_allclose(image_filters.pixelated(row, 1.5)[0, 0, :, 0], [1 / 3, 3, 3])


@pytest.mark.parametrize("reach", [0.3, 1.0, 1.6, 3.0])
def test_shuffling_keeps_every_pixel_whole(reach: float) -> None:
    images = noise(channels=3)
    shuffled = image_filters.shuffled_nearby(images, reach, 2, random())
    for image, other in zip(images.reshape(3, -1, 3), shuffled.reshape(3, -1, 3), strict=True):
        np.testing.assert_array_equal(np.sort(image, axis=0), np.sort(other, axis=0))
    assert not np.array_equal(images, shuffled)


def test_a_longer_reach_and_more_rounds_move_more_pixels() -> None:
    images = random().uniform(size=(20, 16, 16, 1))

    def moved(reach: float, rounds: int) -> float:
        return float((image_filters.shuffled_nearby(images, reach, rounds, random()) != images).mean())

    assert moved(0.1, 1) < moved(0.4, 1) < moved(1.0, 1) < moved(1.0, 3)


def test_shuffling_is_a_loop_of_swaps() -> None:
    """The naive twin of one image: the same draws, one swap after another."""
    images = noise(count=1, height=6, width=5)
    generator = random(4)
    reaches = np.floor(1.5 + generator.uniform(size=(6, 5, 1, 1)))
    moves = np.floor(reaches * generator.uniform(-1, 1, (6, 5, 2, 1))).astype(int)
    expected = images[0].copy()
    for row in range(4, 1, -1):
        for column in range(3, 1, -1):
            other = row + moves[row, column, 0, 0], column + moves[row, column, 1, 0]
            expected[row, column], expected[other] = expected[other].copy(), expected[row, column].copy()
    np.testing.assert_array_equal(image_filters.shuffled_nearby(images, 1.5, 1, random(4))[0], expected)


def test_stretching_by_nothing_changes_nothing() -> None:
    images = noise(channels=2)
    np.testing.assert_allclose(image_filters.stretched(images, 0.0, 0.0, 1.0, random()), images)


def test_three_points_around_the_middle_go_where_they_are_sent_and_the_rest_follows() -> None:
    """A third of the shorter side away from the middle (3, 6): the map is affine, so second differences are zero."""
    places = image_filters._moved_affinely(2, 6, 12, 1.5, np.random.default_rng(0))
    shifts = np.random.default_rng(0).uniform(-1.5, 1.5, (2, 3, 2))
    for number, (row, column) in enumerate([(5, 8), (1, 8), (1, 4)]):
        np.testing.assert_allclose(places[:, row, column], [row, column] + shifts[:, number], atol=1e-12)
    for axis in (1, 2):
        np.testing.assert_allclose(np.diff(places, 2, axis=axis), 0, atol=1e-12)


def test_stretching_moves_a_ramp_by_about_as_much_as_asked() -> None:
    """On an image that grows by 1 with each column, differences are the shifts themselves."""
    ramp = np.broadcast_to(np.arange(40.0)[:, None], (50, 40, 40, 1))
    inner = np.s_[:, 8:-8, 8:-8]
    shifts = (image_filters.stretched(ramp, 0.0, 0.5, 2.0, random()) - ramp)[inner]
    assert shifts.std() == pytest.approx(0.5, rel=0.05)
    tilted = (image_filters.stretched(ramp, 2.0, 0.0, 2.0, random()) - ramp)[inner]
    assert 0.3 < tilted.std() < 2.0
    np.testing.assert_allclose(np.diff(tilted, n=2, axis=1), 0, atol=1e-9)  # an affine map bends nothing


# --- textures ---


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 33, 20)])
def test_clouds_reach_from_0_to_1_in_every_image(shape: tuple[int, ...]) -> None:
    clouds = image_filters.plasma(shape, 2.0, random())
    assert clouds.shape == shape
    np.testing.assert_allclose(clouds.min(axis=(1, 2)), 0)
    np.testing.assert_allclose(clouds.max(axis=(1, 2)), 1)


def test_clouds_with_a_larger_decay_are_smoother() -> None:
    rough, smooth = (image_filters.plasma((8, 32, 32), decay, random()) for decay in (1.4, 3.0))
    assert np.abs(np.diff(smooth)).mean() < 0.7 * np.abs(np.diff(rough)).mean()


def test_halving_the_length_of_a_wave_divides_its_amplitude_by_the_decay_and_by_2() -> None:
    """In two dimensions an octave holds four times as many waves, which gives the 2 back in the sum."""
    clouds = image_filters.plasma((400, 64, 64), 2.0, random())
    # Scaling to [0, 1] multiplies all waves of an image alike, so ratios within images stay.
    amplitude = np.abs(np.fft.rfft2(clouds))[:, 0, 1:]
    amplitude /= amplitude[:, :1]
    logs = np.log2(np.median(amplitude, axis=0))
    assert logs[7] - logs[1] == pytest.approx(-2 * 2, abs=0.3)


# --- JPEG ---


def test_quality_100_is_nearly_the_identity() -> None:
    for height, width in ((24, 17), (13, 8)):
        gray = random().integers(0, 256, (3, height, width, 1)) / 255
        assert np.abs(image_filters.through_jpeg(gray, 100) - gray).max() < 2.5 / 255
    colours = smooth_colours()
    assert np.abs(image_filters.through_jpeg(colours, 100) - colours).max() < 0.03


@pytest.mark.parametrize("images", [noise(), smooth_colours()], ids=["gray", "colour"])
def test_lower_quality_loses_more(images: np.ndarray) -> None:
    losses = [np.abs(image_filters.through_jpeg(images, quality) - images).mean() for quality in (100, 80, 50, 20, 5)]
    assert losses == sorted(losses)


def test_the_mean_of_a_block_is_a_multiple_of_its_step_at_quality_50() -> None:
    """At quality 50 the tables are the standard's own: the mean of a block has step 16, which is 2 in its pixels."""
    image = np.full((1, 8, 8, 1), 93 / 255)
    np.testing.assert_allclose(image_filters.through_jpeg(image, 50) * 255, 128 + 2 * np.rint((93 - 128) / 2))


@pytest.mark.parametrize("colour", [(200, 50, 30), (20, 90, 230)])
def test_a_plain_colour_is_rounded_in_brightness_and_in_what_red_and_blue_have_beyond_it(
    colour: tuple[int, ...],
) -> None:
    """By the coefficients of the standard; at quality 50 the steps of a plain block are 16 / 8 and 17 / 8."""
    luma = np.dot([0.299, 0.587, 0.114], colour)
    kept = 128 + 2 * np.rint((luma - 128) / 2)
    cr, cb = (17 / 8 * np.rint(8 / 17 * (colour[i] - luma) / span) for i, span in ((0, 1.402), (2, 1.772)))
    expected = [kept + 1.402 * cr, kept - 0.714136 * cr - 0.344136 * cb, kept + 1.772 * cb]
    found = image_filters.through_jpeg(np.tile(np.divide(colour, 255), (1, 16, 16, 1)), 50)
    np.testing.assert_allclose(255 * found, np.broadcast_to(expected, found.shape), atol=1e-3)


def test_one_cosine_wave_is_kept_or_lost_by_its_own_step() -> None:
    """The wave (0, 1) has step 11 at quality 50: amplitude 4 is below half of it, amplitude 10 rounds to 11."""
    wave = np.cos((2 * np.arange(8) + 1) * np.pi / 16) / np.sqrt(4 * 8)  # of unit length over 8 x 8 pixels

    def left(amplitude: float) -> np.ndarray:
        # Pixels are rounded to bytes first; many blocks of the same wave would not average that out, so go around it.
        values = np.broadcast_to(128 + amplitude * wave, (1, 8, 8))[..., None]
        return image_filters._quantised(values, image_filters._LUMINANCE_STEPS, 50)[0, 0, :, 0] - 128

    np.testing.assert_allclose(left(4.0), 0, atol=1e-9)
    np.testing.assert_allclose(left(10.0), 11 * wave, atol=1e-9)


def test_blocks_do_not_see_one_another() -> None:
    images = noise(count=1, height=16, width=16)
    changed = images.copy()
    changed[:, :8, :8] = 0.5
    np.testing.assert_array_equal(
        image_filters.through_jpeg(images, 30)[:, 8:], image_filters.through_jpeg(changed, 30)[:, 8:]
    )


def test_gray_in_three_channels_stays_gray_and_is_treated_as_gray() -> None:
    gray = random().integers(0, 256, (2, 16, 16, 1)) / 255
    coloured = image_filters.through_jpeg(gray.repeat(3, axis=-1), 40)
    np.testing.assert_allclose(coloured, image_filters.through_jpeg(gray, 40).repeat(3, axis=-1), atol=1e-9)


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_out_of_range_is_refused(quality: int) -> None:
    with pytest.raises(SettingError, match=f"quality is a number from 1 to 100, got {quality}"):
        image_filters.through_jpeg(noise(), quality)


def test_clouds_of_a_single_pixel_are_zero() -> None:
    assert not image_filters.plasma((3, 1, 1), 2.0, random()).any()
