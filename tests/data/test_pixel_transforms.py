from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.pixel_transforms import CHANGES, RandAugment


def image(height=20, width=30, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def draws(count=40):
    return [np.random.default_rng(seed) for seed in range(count)]


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_keeps_the_shape_and_changes_something(name):
    from PIL import Image

    whole = np.random.default_rng(0).integers(20, 230, (24, 24, 3)).astype(np.uint8)
    for mode, fill in (("RGB", (1, 2, 3)), ("L", 5)):
        before = Image.fromarray(whole if mode == "RGB" else whole[:, :, 0])
        strong = {np.asarray(CHANGES[name](before, 0.9, sign, fill)).tobytes() for sign in (-1.0, 1.0)}
        for pixels in strong:
            assert len(pixels) == len(before.tobytes())
        assert (mode == "L" and name == "colour") or strong != {before.tobytes()}


def test_directions_and_strengths_of_changes():
    from PIL import Image

    whole = np.zeros((20, 20), np.uint8)
    whole[:, 10] = 255
    picture = Image.fromarray(whole)
    for sign in (-1.0, 1.0):
        moved = np.asarray(CHANGES["shift_x"](picture, 1.0, sign, 7))
        assert moved[10].argmax() == 10 - sign * 9
        assert (moved[:, 0 if sign < 0 else -1] == 7).all()
    assert np.asarray(CHANGES["solarize"](picture, 1.0, 1.0, 0))[0, 0] == 255
    assert np.asarray(CHANGES["solarize_add"](picture, 0.5, 1.0, 0))[0, 0] == 55
    assert np.asarray(CHANGES["brightness"](Image.fromarray(whole + 0), 1.0, -1.0, 0)).max() == 25


def test_rand_augment_draws_every_change():
    whole = image(16, 16)
    found = {RandAugment(count=1, rate=1.0)(whole, generator).tobytes() for generator in draws(60)}
    assert len(found) > 30
    assert {RandAugment(rate=0.0)(whole, generator).tobytes() for generator in draws(5)} == {whole.tobytes()}
    gray = RandAugment(fill=(0,))(image(channels=1), np.random.default_rng(0))
    assert gray.shape == (20, 30, 1)
    with pytest.raises(DataError, match="rand_augment: fill has 3 values, images have 1 channels"):
        RandAugment()(image(channels=1), np.random.default_rng(0))
