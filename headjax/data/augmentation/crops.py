"""Squares cut out of images."""

from __future__ import annotations

import abc
import dataclasses
import math

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind

ATTEMPTS = 10
"""Rectangles that are drawn until one fits into the image."""


class Crop(abc.ABC):
    """Cuts out the square that a model reads."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        """A square uint8 `[size, size, channels]` of an image uint8 `[height, width, channels]`."""


@kind("random_square")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomSquare(Crop):
    """A square of the image inside a black margin, unscaled.

    Attributes:
        margin: pixels of the margin.
    """

    margin: int = 0

    def __post_init__(self) -> None:
        require(self.margin >= 0, "margin", f"must not be negative, got {self.margin}")

    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        framed = np.pad(image, [(self.margin, self.margin)] * 2 + [(0, 0)]) if self.margin else image
        top, left = generator.integers(np.asarray(framed.shape[:2]) - size + 1, size=2)
        return framed[top : top + size, left : left + size]


@kind("random_resized_crop")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Crop):
    """A rectangle of the image, scaled to the square (Szegedy et al. 2015).

    Its share of the image's area is uniform in `area`, the logarithm of its width over its height is uniform in
    `ratio`. Where none fits, it is the largest middle rectangle with such a ratio.

    Attributes:
        area: least and greatest share.
        ratio: least and greatest width over height.
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        require(0.0 < self.area[0] <= self.area[1] <= 1.0, "area", f"must be within (0, 1], got {self.area}")
        require(0.0 < self.ratio[0] <= self.ratio[1], "ratio", f"must be positive and rise, got {self.ratio}")

    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        from PIL import Image

        top, left, height, width = self.rectangle(image.shape[0], image.shape[1], generator)
        part = image[top : top + height, left : left + width]
        channels = [
            np.asarray(Image.fromarray(part[:, :, channel]).resize((size, size), Image.Resampling.BICUBIC))
            for channel in range(part.shape[2])
        ]
        return np.stack(channels, axis=2)

    def rectangle(self, height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
        """Top, left, height and width of a rectangle of an image `[height, width]`."""
        found = random_rectangle(height, width, self.area, self.ratio, generator)
        if found is not None:
            return found
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return (height - high) // 2, (width - wide) // 2, high, wide


def random_rectangle(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a random rectangle of an image; None where none of `ATTEMPTS` fits.

    Args:
        height, width: of the image.
        area: least and greatest share of its area.
        ratio: least and greatest width over height, whose logarithm is uniform.
        generator: draws it.
    """
    for _ in range(ATTEMPTS):
        pixels = generator.uniform(*area) * height * width
        slope = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(pixels * slope)), round(math.sqrt(pixels / slope))
        if 0 < wide <= width and 0 < high <= height:
            top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
            return int(top), int(left), high, wide
    return None
