"""Random changes of training images: crops, mirroring, mixtures of two images."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, Positive, Share
from headjax.core.serialize import kind

ATTEMPTS = 10
"""Number of rectangles drawn before a search for one inside the image is given up."""


class Crop(Checked, abc.ABC):
    """Base of the crops, which cut out the square that a model reads."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        """Return a square uint8 `[size, size, channels]` of an image uint8 `[height, width, channels]`."""


class Mixed(NamedTuple):
    """A mixture of two images, float32 `[channels, height, width]`, and the share of the label that is the first's."""

    values: np.ndarray
    share: float


class Mix(Checked, abc.ABC):
    """Base of the mixtures of two images."""

    @abc.abstractmethod
    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        """Return the mixture of two arrays `[channels, height, width]`."""


@kind("random_square")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomSquare(Crop):
    """An unscaled square of the image, which is first framed by a black margin.

    Attributes:
        margin: width of the margin in pixels.
    """

    margin: Count = 0

    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        framed = np.pad(image, [(self.margin, self.margin)] * 2 + [(0, 0)]) if self.margin else image
        top, left = generator.integers(np.asarray(framed.shape[:2]) - size + 1, size=2)
        return framed[top : top + size, left : left + size]


@kind("random_resized_crop")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Crop):
    """A random rectangle of the image, scaled to the square (Szegedy et al. 2015).

    Its share of the image's area is uniform, and so is the logarithm of width over height. If none of `ATTEMPTS` draws
    fits into the image, the largest centred rectangle with a ratio in the range is taken.

    Attributes:
        area: least and greatest share of the image's area.
        ratio: least and greatest width over height.
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Return top, left, height and width of a rectangle of an image `[height, width]`."""
        for _ in range(ATTEMPTS):
            pixels = generator.uniform(*self.area) * height * width
            slope = math.exp(generator.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(pixels * slope)), round(math.sqrt(pixels / slope))
            if 0 < wide <= width and 0 < high <= height:
                top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
                return int(top), int(left), high, wide
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return (height - high) // 2, (width - wide) // 2, high, wide


@kind("mixup")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixup(Mix):
    """share * first + (1 - share) * second with a share of Beta(alpha, alpha) (Zhang et al. 2018).

    Attributes:
        alpha: parameter of the distribution.
    """

    alpha: Positive = 0.8

    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        share = float(generator.beta(self.alpha, self.alpha))
        return Mixed(np.float32(share) * first + np.float32(1.0 - share) * second, share)


@kind("cutmix")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CutMix(Mix):
    """A rectangle of the second image pasted into the first (Yun et al. 2019).

    The rectangle's sides are sqrt(1 - share) of the image's with a share of Beta(alpha, alpha); its centre is uniform.
    The part outside the image is cut off, and the label's share is the uncovered part of the first image.

    Attributes:
        alpha: parameter of the distribution.
    """

    alpha: Positive = 1.0

    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        side = np.sqrt(1.0 - generator.beta(self.alpha, self.alpha))
        rows, columns = (self._span(length, side, generator) for length in first.shape[1:])
        values = first.copy()
        values[:, rows, columns] = second[:, rows, columns]
        covered = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixed(values, 1.0 - covered / (first.shape[1] * first.shape[2]))

    def _span(self, length: int, side: float, generator: np.random.Generator) -> slice:
        half, middle = int(length * side) // 2, int(generator.integers(length))
        return slice(max(middle - half, 0), min(middle + half, length))


@kind("one_of")
@dataclasses.dataclass(frozen=True, kw_only=True)
class OneOf(Mix):
    """One of several mixtures, drawn uniformly for each pair of images.

    Attributes:
        mixes: the mixtures.
    """

    mixes: tuple[Mix, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.mixes), "mixes", "must not be empty")

    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        return self.mixes[generator.integers(len(self.mixes))](first, second, generator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation(Checked):
    """Random changes of a training image, drawn again each time it is read.

    Attributes:
        crop: cuts out the square that the model reads.
        flip: probability that the square is mirrored left and right.
        mix: mixes two images; labels are then distributions over the classes.
    """

    crop: Crop = RandomResizedCrop()
    flip: Share = 0.0
    mix: Mix | None = None
