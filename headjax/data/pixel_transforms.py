"""Random changes of a training image's pixels that keep its size: mirroring and RandAugment."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, NotNegative, Share, Size
from headjax.core.serialize import kind

if TYPE_CHECKING:
    from PIL.Image import Image


class PixelTransform(Checked, abc.ABC):
    """Base of the changes of an image before its pixels are scaled to the model's inputs."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a changed image uint8 `[height, width, channels]`; the input is not modified."""


@kind("flip")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flip(PixelTransform):
    """Mirrors left and right.

    Attributes:
        rate: probability that an image is mirrored.
    """

    rate: Share = 0.5

    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return image[:, ::-1] if generator.random() < self.rate else image


@kind("rand_augment")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugment(PixelTransform):
    """Applies a few of fifteen changes, drawn with replacement (Cubuk et al. 2020), each with probability `rate`.

    The strength of a change is drawn from a normal distribution and clipped to [0, `STRONGEST`]; its direction is
    random. All changes grow with their strength, as in DeiT's recipe (`rand-m9-mstd0.5-inc1`): see `CHANGES`.

    Attributes:
        count: number of changes drawn for an image.
        strength: mean of the strengths.
        deviation: standard deviation of the strengths.
        rate: probability that a drawn change is applied.
        fill: colour of pixels from outside the image, one value per channel.
    """

    count: Size = 2
    strength: float = 9.0
    deviation: NotNegative = 0.5
    rate: Share = 0.5
    fill: tuple[int, ...] = (124, 116, 104)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0.0 <= self.strength <= STRONGEST, "strength", f"must be within [0, {STRONGEST}], got {self.strength}")

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
"""The greatest strength of a change."""

Fill = int | tuple[int, ...]
Change = Callable[["Image", float, float, Fill], "Image"]
"""Maps (image, strength / `STRONGEST`, direction of +-1, fill colour) to an image."""


def _moved(image: Image, fill: Fill, **matrix: float) -> Image:
    """Return an image whose pixel at (x, y) was at (x + across * y + right, down * x + y + below)."""
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
    """Return the image with its darker half of the pixel values raised."""
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
"""The changes by name with timm's greatest strengths: rotation by 30 degrees, 1 bit per channel, all pixels inverted,
110 added to dark pixels, enhancement factors from 0.1 to 1.9, shears of 0.3, shifts of 0.45 of a side."""
