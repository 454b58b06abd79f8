"""Changes of an image's pixels that keep its size."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from headjax.core.errors import DataError, require, require_positive
from headjax.core.serialize import kind

if TYPE_CHECKING:
    from PIL.Image import Image


class PixelTransform(abc.ABC):
    """Changes an image before its pixels become the numbers that a model reads."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """An image uint8 `[height, width, channels]`, changed; the input stays as it is."""


@kind("flip")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flip(PixelTransform):
    """Left and right exchanged.

    Attributes:
        rate: how often.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        require(0.0 <= self.rate <= 1.0, "rate", f"must be within [0, 1], got {self.rate}")

    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return image[:, ::-1] if generator.random() < self.rate else image


@kind("rand_augment")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugment(PixelTransform):
    """Some of fifteen changes, drawn with replacement (Cubuk et al. 2020), each done `rate` of the time.

    How strong each is, is drawn from a normal distribution and cut to [0, `STRONGEST`]; directions are drawn too. All
    grow with their strength, as in DeiT's recipe (`rand-m9-mstd0.5-inc1`): see `CHANGES`.

    Attributes:
        count: changes of an image.
        strength: mean of their strengths.
        deviation: of their strengths.
        rate: how often a change that is drawn is done.
        fill: colour of what comes into the image from outside, for each channel.
    """

    count: int = 2
    strength: float = 9.0
    deviation: float = 0.5
    rate: float = 0.5
    fill: tuple[int, ...] = (124, 116, 104)

    def __post_init__(self) -> None:
        require_positive(self, "count")
        require(0.0 <= self.strength <= STRONGEST, "strength", f"must be within [0, {STRONGEST}], got {self.strength}")
        require(self.deviation >= 0.0, "deviation", f"must not be negative, got {self.deviation}")
        require(0.0 <= self.rate <= 1.0, "rate", f"must be within [0, 1], got {self.rate}")

    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        from PIL import Image

        channels = image.shape[2]
        if len(self.fill) != channels:
            raise DataError(f"rand_augment: fill has {len(self.fill)} values, images have {channels} channels")
        picture = Image.fromarray(image[:, :, 0] if channels == 1 else image)
        fill = self.fill[0] if channels == 1 else self.fill
        for name in generator.choice(list(CHANGES), self.count):
            share = float(np.clip(generator.normal(self.strength, self.deviation), 0.0, STRONGEST)) / STRONGEST
            sign = float(generator.choice((-1.0, 1.0)))
            if generator.random() < self.rate:
                picture = CHANGES[name](picture, share, sign, fill)
        return np.asarray(picture).reshape(image.shape)


STRONGEST = 10.0

Fill = int | tuple[int, ...]
Change = Callable[["Image", float, float, Fill], "Image"]
"""From (image, strength as a share of the strongest, direction, colour from outside) to an image."""


def _moved(image: Image, fill: Fill, **matrix: float) -> Image:
    """An image whose pixel at (x, y) is that at (x + across * y + right, down * x + y + below) before."""
    from PIL import Image as images

    across, right, down, below = (matrix.get(name, 0.0) for name in ("across", "right", "down", "below"))
    data = (1.0, across, right, down, 1.0, below)
    return image.transform(
        image.size, images.Transform.AFFINE, data, resample=images.Resampling.BICUBIC, fillcolor=fill
    )


def _rotated(image: Image, share: float, sign: float, fill: Fill) -> Image:
    from PIL import Image as images

    return image.rotate(30.0 * share * sign, resample=images.Resampling.BICUBIC, fillcolor=fill)


def _enhanced(name: str) -> Change:
    def change(image: Image, share: float, sign: float, fill: Fill) -> Image:
        from PIL import ImageEnhance

        changed: Image = getattr(ImageEnhance, name)(image).enhance(max(0.1, 1.0 + 0.9 * share * sign))
        return changed

    return change


def _recoloured(name: str, *arguments: Callable[[float], int]) -> Change:
    def change(image: Image, share: float, sign: float, fill: Fill) -> Image:
        from PIL import ImageOps

        changed: Image = getattr(ImageOps, name)(image, *(argument(share) for argument in arguments))
        return changed

    return change


def _brighter_shadows(image: Image, share: float, sign: float, fill: Fill) -> Image:
    """Adds to the darker half of the pixels."""
    return image.point(
        [min(value + int(110 * share), 255) if value < 128 else value for value in range(256)] * len(image.getbands())
    )


CHANGES: Mapping[str, Change] = {
    "auto_contrast": _recoloured("autocontrast"),
    "equalize": _recoloured("equalize"),
    "invert": _recoloured("invert"),
    "rotate": _rotated,
    "posterize": _recoloured("posterize", lambda share: max(4 - int(4 * share), 1)),
    "solarize": _recoloured("solarize", lambda share: 256 - int(256 * share)),
    "solarize_add": _brighter_shadows,
    "colour": _enhanced("Color"),
    "contrast": _enhanced("Contrast"),
    "brightness": _enhanced("Brightness"),
    "sharpness": _enhanced("Sharpness"),
    "shear_x": lambda image, share, sign, fill: _moved(image, fill, across=0.3 * share * sign),
    "shear_y": lambda image, share, sign, fill: _moved(image, fill, down=0.3 * share * sign),
    "shift_x": lambda image, share, sign, fill: _moved(image, fill, right=0.45 * share * sign * image.width),
    "shift_y": lambda image, share, sign, fill: _moved(image, fill, below=0.45 * share * sign * image.height),
}
"""The changes by name, with timm's strengths: up to 30 degrees, 1 bit a channel, all pixels inverted, 110 added to dark
pixels, factors from 0.1 to 1.9, shears of 0.3 and shifts of 0.45 of a side."""
