"""Two images in one."""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind


class Mixed(NamedTuple):
    """Two images in one.

    Attributes:
        values: float32 `[channels, height, width]`.
        share: how much of the label is the first image's.
    """

    values: np.ndarray
    share: float


class Mix(abc.ABC):
    """Puts two images into one."""

    @abc.abstractmethod
    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        """The mixture of values `[channels, height, width]`."""


@kind("mixup")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixup(Mix):
    """share * first + (1 - share) * second with a share of Beta(alpha, alpha) (Zhang et al. 2018).

    Attributes:
        alpha: of the distribution.
    """

    alpha: float = 0.8

    def __post_init__(self) -> None:
        require(self.alpha > 0.0, "alpha", f"must be positive, got {self.alpha}")

    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        share = float(generator.beta(self.alpha, self.alpha))
        return Mixed(np.float32(share) * first + np.float32(1.0 - share) * second, share)


@kind("cutmix")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CutMix(Mix):
    """A rectangle of the second image in the first (Yun et al. 2019).

    Its sides are sqrt(1 - share) of the image's with a share of Beta(alpha, alpha), its centre is anywhere; what stands
    out of the image is cut off, and the share is then what is left of the first image.

    Attributes:
        alpha: of the distribution.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(self.alpha > 0.0, "alpha", f"must be positive, got {self.alpha}")

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
    """One of several, each as often.

    Attributes:
        mixes: what is drawn from.
    """

    mixes: tuple[Mix, ...]

    def __post_init__(self) -> None:
        require(bool(self.mixes), "mixes", "must not be empty")

    def __call__(self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> Mixed:
        return self.mixes[generator.integers(len(self.mixes))](first, second, generator)
