"""What augmentation does, by its properties: shapes, ranges, determinism, label mass."""

import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.core.serialize import from_data, to_data
from headjax.data.augmentation import Augmentation
from headjax.data.forms.images import AugmentedImages, ImageForm
from tests.closeness import assert_close
from tests.data.making import MIXED


def image(height=20, width=30, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def draws(count=40):
    return [np.random.default_rng(seed) for seed in range(count)]


def images(augmentation, count=6, classes=4):
    names = tuple(map(str, range(classes)))
    form = ImageForm(size=16, stored=20, mean=(0.5,) * 3, deviation=(0.25,) * 3, classes=names)
    records = [
        {"image": image(20, 20, seed=number), "labels": np.asarray([number % classes], np.int32)}
        for number in range(count)
    ]
    return AugmentedImages(records, form, augmentation)


@pytest.mark.parametrize("crop", [Augmentation(area=None, margin=2), Augmentation()])
def test_crops_are_squares_of_the_image(crop):
    whole = image()
    found = [crop.square(whole, 12, generator) for generator in draws()]
    assert {(square.shape, square.dtype) for square in found} == {((12, 12, 3), np.dtype(np.uint8))}
    assert len({square.tobytes() for square in found}) > 30
    flat = np.full((20, 30, 1), 77, np.uint8)
    assert (Augmentation().square(flat, 12, np.random.default_rng(0)) == 77).all()


def test_rectangles_have_their_area_and_ratio():
    crop = Augmentation(area=(0.2, 0.6), ratio=(0.5, 2.0))
    found = [crop.rectangle(100, 150, generator) for generator in draws(200)]
    for top, left, height, width in found:
        assert 0 <= top <= 100 - height
        assert 0 <= left <= 150 - width
        assert 0.19 <= height * width / 15_000 <= 0.61
        assert 0.48 <= width / height <= 2.06
    shares = np.asarray([height * width / 15_000 for _, _, height, width in found])
    assert shares.mean() == pytest.approx(0.4, abs=0.04)
    # Nothing fits into a strip of one pixel but its middle.
    assert crop.rectangle(1, 100, np.random.default_rng(0)) == (0, 49, 1, 2)


def test_mixtures_hold_the_share_of_their_label():
    first, second = np.zeros((3, 20, 20), np.float32), np.ones((3, 20, 20), np.float32)
    cut = Augmentation(cutmix=1.0)
    for one in (Augmentation(mixup=0.8), cut, MIXED):
        for generator in draws():
            values, share = one.mix(first, second, generator)
            assert 0.0 <= share <= 1.0
            assert_close(values.mean(), 1.0 - share, sums=3 * 20 * 20, scale=1.0)
    assert not first.any()
    assert {len(np.unique(cut.mix(first, second, generator)[0])) for generator in draws()} <= {1, 2}


def test_augmented_examples_have_shares_of_two_labels():
    source = images(MIXED)
    drawn = [source.draw(index % 6, np.random.default_rng(index)) for index in range(18)]
    assert {(one["pixel_values"].shape, one["pixel_values"].dtype) for one in drawn} == {
        ((3, 16, 16), np.dtype(np.float32))
    }
    labels = np.stack([one["labels"] for one in drawn])
    assert labels.shape == (18, 4)
    assert labels.dtype == np.float32
    assert_close(labels.sum(1), np.ones(len(labels)), sums=16)
    assert ((labels > 0).sum(1) == 2).any()


def test_an_augmentation_is_a_value():
    assert from_data(Augmentation, to_data(MIXED)) == MIXED


@pytest.mark.parametrize("fields", [
    {"area": (0.0, 1.0)}, {"ratio": (2.0, 1.0)}, {"flip": 2.0}, {"cutmix": -1.0}
])  # fmt: skip
def test_bad_values(fields):
    with pytest.raises(ConfigError, match=f"^{next(iter(fields))}"):
        Augmentation(**fields)
