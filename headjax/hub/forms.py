"""How a tensor's layout differs between a Hugging Face file and here: one small class per difference, both ways."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from headjax.core.tensors import Tensor


class Form(abc.ABC):
    """Between one tensor of theirs and one or several of ours.

    Ours are declared `Tensor`s of one layer; their shape follows from the declarations.
    """

    @abc.abstractmethod
    def shape(self, ours: Sequence[Tensor]) -> tuple[int, ...]:
        """The shape theirs must have."""

    @abc.abstractmethod
    def load(self, theirs: np.ndarray, ours: Sequence[Tensor], part: int) -> np.ndarray:
        """Ours number `part`, perhaps a view."""

    @abc.abstractmethod
    def store(self, arrays: Sequence[np.ndarray], ours: Sequence[Tensor]) -> np.ndarray:
        """Theirs."""


class OneForm(Form):
    """A form with one tensor on our side."""

    def shape(self, ours: Sequence[Tensor]) -> tuple[int, ...]:
        return self.shape_of(ours[0])

    def load(self, theirs: np.ndarray, ours: Sequence[Tensor], part: int) -> np.ndarray:
        return self.load_one(theirs, ours[0])

    def store(self, arrays: Sequence[np.ndarray], ours: Sequence[Tensor]) -> np.ndarray:
        return self.store_one(arrays[0], ours[0])

    @abc.abstractmethod
    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        """The shape theirs must have."""

    def load_one(self, theirs: np.ndarray, ours: Tensor) -> np.ndarray:
        """Ours."""
        return theirs.reshape(ours.shape)

    def store_one(self, array: np.ndarray, ours: Tensor) -> np.ndarray:
        """Theirs."""
        return array.reshape(self.shape_of(ours))


@dataclasses.dataclass(frozen=True)
class Same(OneForm):
    """The same on both sides: embedding tables, norms."""

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        return ours.shape


@dataclasses.dataclass(frozen=True)
class Flat(OneForm):
    """A vector on their side: biases, which here are `[heads, head_dim]`."""

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        return (ours.size,)


@dataclasses.dataclass(frozen=True)
class Leading(OneForm):
    """Ours behind dimensions of one: `[1, vocabulary]`, `[1, 1, width]`.

    Attributes:
        ones: how many.
    """

    ones: int = 1

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        return (1,) * self.ones + ours.shape


@dataclasses.dataclass(frozen=True)
class Matrix(OneForm):
    """`[inputs, outputs]` on their side (GPT-2's Conv1D), features of heads in one dimension."""

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        inputs = math.prod(ours.shape[: len(ours.inputs)])
        return inputs, ours.size // max(inputs, 1)


@dataclasses.dataclass(frozen=True)
class Transposed(OneForm):
    """`[outputs, inputs]` on their side (`torch.nn.Linear`), features of heads in one dimension."""

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        return Matrix().shape_of(ours)[::-1]

    def load_one(self, theirs: np.ndarray, ours: Tensor) -> np.ndarray:
        return theirs.T.reshape(ours.shape)

    def store_one(self, array: np.ndarray, ours: Tensor) -> np.ndarray:
        return array.reshape(Matrix().shape_of(ours)).T


@dataclasses.dataclass(frozen=True)
class LastFirst(OneForm):
    """Our last dimension is their first (`torch.nn.Conv2d`: `[outputs, channels, height, width]`)."""

    def shape_of(self, ours: Tensor) -> tuple[int, ...]:
        return ours.shape[-1:] + ours.shape[:-1]

    def load_one(self, theirs: np.ndarray, ours: Tensor) -> np.ndarray:
        return np.moveaxis(theirs, 0, -1)

    def store_one(self, array: np.ndarray, ours: Tensor) -> np.ndarray:
        return np.moveaxis(array, -1, 0)


@dataclasses.dataclass(frozen=True)
class Fused(Form):
    """Several of ours side by side along their last dimension (GPT-2's query, key and value).

    Attributes:
        parts: form of each.
    """

    parts: OneForm

    def shape(self, ours: Sequence[Tensor]) -> tuple[int, ...]:
        shapes = [self.parts.shape_of(tensor) for tensor in ours]
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def load(self, theirs: np.ndarray, ours: Sequence[Tensor], part: int) -> np.ndarray:
        sizes = [self.parts.shape_of(tensor)[-1] for tensor in ours]
        start = sum(sizes[:part])
        return self.parts.load_one(theirs[..., start : start + sizes[part]], ours[part])

    def store(self, arrays: Sequence[np.ndarray], ours: Sequence[Tensor]) -> np.ndarray:
        stored = [self.parts.store_one(array, tensor) for array, tensor in zip(arrays, ours, strict=True)]
        return np.concatenate(stored, axis=-1)
