"""Rectangles of an image that training hides."""

from __future__ import annotations

import abc
import dataclasses

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.augmentation.crops import random_rectangle


class ValueTransform(abc.ABC):
    """Changes an image after its pixels have become the numbers that a model reads."""

    @abc.abstractmethod
    def __call__(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Values float32 `[channels, height, width]` of mean 0 and deviation 1, changed; the input stays as it is."""


@kind("random_erasing")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomErasing(ValueTransform):
    """Normal noise in a random rectangle (Zhong et al. 2020), as DeiT has it.

    Attributes:
        rate: how many images lose one.
        area: least and greatest share of the image.
        ratio: least and greatest width over height.
    """

    rate: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)

    def __post_init__(self) -> None:
        require(0.0 <= self.rate <= 1.0, "rate", f"must be within [0, 1], got {self.rate}")
        require(0.0 < self.area[0] <= self.area[1] <= 1.0, "area", f"must be within (0, 1], got {self.area}")
        require(0.0 < self.ratio[0] <= self.ratio[1], "ratio", f"must be positive and rise, got {self.ratio}")

    def __call__(self, values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        if generator.random() >= self.rate:
            return values
        found = random_rectangle(values.shape[1], values.shape[2], self.area, self.ratio, generator)
        if found is None:
            return values
        top, left, height, width = found
        erased = values.copy()
        noise = generator.standard_normal((values.shape[0], height, width), np.float32)
        erased[:, top : top + height, left : left + width] = noise
        return erased
