"""Random changes of training images: crops, mirroring, mixtures of two images."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, NotNegative, Share

ATTEMPTS = 10
"""Number of rectangles drawn before a search for one inside the image is given up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation(Checked):
    """Random changes of a training image, drawn again each time it is read.

    A rectangle of the image is scaled to the square that the model reads (Szegedy et al. 2015): its share of the area
    is uniform, and so is the logarithm of width over height. If none of `ATTEMPTS` draws fits into the image, the
    largest centred rectangle with a ratio in the range is taken. Where two images become one, labels are distributions
    over the classes; with both `mixup` and `cutmix`, one of them is drawn for each pair.

    Attributes:
        area: least and greatest share of the image's area; None cuts out an unscaled square of the framed image.
        ratio: least and greatest width over height.
        margin: width of the black frame in pixels.
        flip: probability that the square is mirrored left and right.
        mixup: alpha of share * first + (1 - share) * second, share from Beta(alpha, alpha) (Zhang et al. 2018); 0 for
            none.
        cutmix: alpha of a rectangle of the second image in the first (Yun et al. 2019), its sides sqrt(1 - share) of
            the image's, its centre uniform, and the label's share what is left uncovered; 0 for none.
    """

    area: tuple[float, float] | None = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    margin: Count = 0
    flip: Share = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = self.area or (1.0, 1.0)
        require(0.0 < least <= most <= 1.0, "area", f"must rise within (0, 1], got {self.area}")
        require(0.0 < self.ratio[0] <= self.ratio[1], "ratio", f"must be positive and rise, got {self.ratio}")

    def square(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        """Return a square uint8 `[size, size, channels]` of an image uint8 `[height, width, channels]`."""
        square = self._cut(image, size, generator)
        return square[:, ::-1] if self.flip and generator.random() < self.flip else square

    def _cut(self, image: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        from PIL import Image

        if self.area is None:
            framed = np.pad(image, [(self.margin, self.margin)] * 2 + [(0, 0)]) if self.margin else image
            top, left = generator.integers(np.asarray(framed.shape[:2]) - size + 1, size=2)
            return framed[top : top + size, left : left + size]
        top, left, height, width = self.rectangle(image.shape[0], image.shape[1], generator)
        channels = np.moveaxis(image[top : top + height, left : left + width], 2, 0)
        scaled = (Image.fromarray(one).resize((size, size), Image.Resampling.BICUBIC) for one in channels)
        return np.stack([np.asarray(one) for one in scaled], axis=2)

    def rectangle(self, height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height and width of a rectangle of an image `[height, width]`."""
        for _ in range(ATTEMPTS):
            pixels = generator.uniform(*self.area or (1.0, 1.0)) * height * width
            slope = math.exp(generator.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(pixels * slope)), round(math.sqrt(pixels / slope))
            if 0 < wide <= width and 0 < high <= height:
                top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
                return int(top), int(left), high, wide
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return (height - high) // 2, (width - wide) // 2, high, wide

    def mix(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return a mixture of two images `[channels, height, width]`, and the first's share of the label."""
        kinds = [(mix, alpha) for mix, alpha in ((_mixup, self.mixup), (_cutmix, self.cutmix)) if alpha]
        mix, alpha = kinds[generator.integers(len(kinds))]
        return mix(first, second, alpha, generator)


def _mixup(
    first: np.ndarray, second: np.ndarray, alpha: float, generator: np.random.Generator
) -> tuple[np.ndarray, float]:
    share = float(generator.beta(alpha, alpha))
    return np.float32(share) * first + np.float32(1.0 - share) * second, share


def _cutmix(
    first: np.ndarray, second: np.ndarray, alpha: float, generator: np.random.Generator
) -> tuple[np.ndarray, float]:
    side = np.sqrt(1.0 - generator.beta(alpha, alpha))
    spans = []
    for length in first.shape[1:]:
        half, middle = int(length * side) // 2, int(generator.integers(length))
        spans.append(slice(max(middle - half, 0), min(middle + half, length)))
    rows, columns = spans
    values = first.copy()
    values[:, rows, columns] = second[:, rows, columns]
    return values, 1.0 - values[0, rows, columns].size / values[0].size
