"""Random changes of training images: crops, changes of pixels and of values, mixtures of two images."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Share, Size
from headjax.core.serialize import kind

if TYPE_CHECKING:
    from PIL.Image import Image

ATTEMPTS = 10
"""Number of rectangles drawn before a search for one inside the image is given up."""


class Crop(Checked, abc.ABC):
    """Base of the crops, which cut out the square that a model reads."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        """Return a square uint8 `[size, size, channels]` of an image uint8 `[height, width, channels]`."""


class PixelTransform(Checked, abc.ABC):
    """Base of the changes of an image before its pixels are scaled to the model's inputs."""

    @abc.abstractmethod
    def __call__(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a changed image uint8 `[height, width, channels]`; the input is not modified."""


class ValueTransform(Checked, abc.ABC):
    """Base of the changes of an image after its pixels have been scaled to the model's inputs."""

    @abc.abstractmethod
    def __call__(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return changed values float32 `[channels, height, width]`; the input is not modified."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rectangle(Checked):
    """A random rectangle: its share of the image's area is uniform, and so is the logarithm of width over height.

    Attributes:
        area: least and greatest share of the image's area.
        ratio: least and greatest width over height.
    """

    area: tuple[float, float]
    ratio: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0.0 < self.area[0] <= self.area[1] <= 1.0, "area", f"must be within (0, 1], got {self.area}")
        require(0.0 < self.ratio[0] <= self.ratio[1], "ratio", f"must be positive and rise, got {self.ratio}")

    def draw(self, height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int] | None:
        """Return top, left, height and width; None if none of `ATTEMPTS` draws fits into the image."""
        for _ in range(ATTEMPTS):
            pixels = generator.uniform(*self.area) * height * width
            slope = math.exp(generator.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(pixels * slope)), round(math.sqrt(pixels / slope))
            if 0 < wide <= width and 0 < high <= height:
                top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
                return int(top), int(left), high, wide
        return None


@kind("random_resized_crop")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Rectangle, Crop):
    """A random rectangle of the image, scaled to the square (Szegedy et al. 2015), see `Rectangle`.

    If no draw fits, the largest centred rectangle with a ratio in the range is taken.

    Attributes:
        area: least and greatest share of the image's area.
        ratio: least and greatest width over height.
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

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
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return self.draw(height, width, generator) or ((height - high) // 2, (width - wide) // 2, high, wide)


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
Offset = tuple[float, float]
Change = Callable[["Image", float, float, Fill], "Image"]
"""Maps (image, strength / `STRONGEST`, direction of +-1, fill colour) to an image."""


def _moved(image: Image, fill: Fill, *, shear: Offset = (0.0, 0.0), by: Offset = (0.0, 0.0)) -> Image:
    """Return an image whose pixel at (x, y) was at (x + shear[0] * y + by[0], shear[1] * x + y + by[1])."""
    from PIL import Image as images

    data, bicubic = (1.0, shear[0], by[0], shear[1], 1.0, by[1]), images.Resampling.BICUBIC
    return image.transform(image.size, images.Transform.AFFINE, data, resample=bicubic, fillcolor=fill)


def _rotated(image: Image, share: float, sign: float, fill: Fill) -> Image:
    from PIL import Image as images

    return image.rotate(30.0 * share * sign, resample=images.Resampling.BICUBIC, fillcolor=fill)


def _enhanced(name: str, image: Image, share: float, sign: float, fill: Fill) -> Image:
    from PIL import ImageEnhance

    changed: Image = getattr(ImageEnhance, name)(image).enhance(max(0.1, 1.0 + 0.9 * share * sign))
    return changed


def _recoloured(name: str, image: Image, *arguments: int) -> Image:
    from PIL import ImageOps

    changed: Image = getattr(ImageOps, name)(image, *arguments)
    return changed


def _brighter_shadows(image: Image, share: float, sign: float, fill: Fill) -> Image:
    """Return the image with its darker half of the pixel values raised."""
    raised = [min(value + int(110 * share), 255) if value < 128 else value for value in range(256)]
    return image.point(raised * len(image.getbands()))


CHANGES: Mapping[str, Change] = {
    "auto_contrast": lambda image, share, sign, fill: _recoloured("autocontrast", image),
    "equalize": lambda image, share, sign, fill: _recoloured("equalize", image),
    "invert": lambda image, share, sign, fill: _recoloured("invert", image),
    "rotate": _rotated,
    "posterize": lambda image, share, sign, fill: _recoloured("posterize", image, max(4 - int(4 * share), 1)),
    "solarize": lambda image, share, sign, fill: _recoloured("solarize", image, 256 - int(256 * share)),
    "solarize_add": _brighter_shadows,
    "colour": functools.partial(_enhanced, "Color"),
    "contrast": functools.partial(_enhanced, "Contrast"),
    "brightness": functools.partial(_enhanced, "Brightness"),
    "sharpness": functools.partial(_enhanced, "Sharpness"),
    "shear_x": lambda image, share, sign, fill: _moved(image, fill, shear=(0.3 * share * sign, 0.0)),
    "shear_y": lambda image, share, sign, fill: _moved(image, fill, shear=(0.0, 0.3 * share * sign)),
    "shift_x": lambda image, share, sign, fill: _moved(image, fill, by=(0.45 * share * sign * image.width, 0.0)),
    "shift_y": lambda image, share, sign, fill: _moved(image, fill, by=(0.0, 0.45 * share * sign * image.height)),
}
"""The changes by name with timm's greatest strengths. These are rotation by 30 degrees, 1 bit per channel, all pixels
inverted, 110 added to dark pixels, enhancement factors from 0.1 to 1.9, shears of 0.3, shifts of 0.45 of a side."""


@kind("random_erasing")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomErasing(Rectangle, ValueTransform):
    """Normal noise in a random rectangle (Zhong et al. 2020), as in DeiT's recipe; see `Rectangle`.

    Attributes:
        rate: probability that an image is changed.
        area: least and greatest share of the image's area.
        ratio: least and greatest width over height.
    """

    rate: Share = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)

    def __call__(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        if generator.random() >= self.rate:
            return values
        found = self.draw(values.shape[1], values.shape[2], generator)
        if found is None:
            return values
        top, left, height, width = found
        erased = values.copy()
        noise = generator.standard_normal((values.shape[0], height, width), np.float32)
        erased[:, top : top + height, left : left + width] = noise
        return erased


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
        pixels: changes of the pixels, in order.
        values: changes of the scaled values, in order.
        mix: mixes two images; labels are then distributions over the classes.
    """

    crop: Crop = RandomResizedCrop()
    pixels: tuple[PixelTransform, ...] = ()
    values: tuple[ValueTransform, ...] = ()
    mix: Mix | None = None
