"""What training and evaluation read: random-access sources of examples, and where they come from."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from headjax.tokenizers.tokenizer import Tokenizer


class Source(Protocol):
    """Examples by index: dicts of arrays by Hugging Face's names, all of the same shapes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]: ...


class RandomSource(abc.ABC):
    """Examples that are drawn anew every time training reads them (masked tokens, cropped images)."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abc.abstractmethod
    def draw(self, index: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        """An example; what is random in it depends on the generator alone."""

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.draw(index, np.random.default_rng(index))


class TaskData(NamedTuple):
    """A loaded task.

    Attributes:
        tokenizer: turns text into the sources' ids; None for tasks without text.
        train: examples to train on.
        validation: examples never trained on.
        info: counts worth reporting (documents, tokens, bytes).
    """

    tokenizer: Tokenizer | None
    train: Source
    validation: Source
    info: Mapping[str, Any]


class DataConfig(abc.ABC):
    """What `config.data` of a config file holds."""

    def for_classes(self, names: Sequence[str]) -> DataConfig:
        """The same data with its classes numbered as a model numbers its own, where they can be.

        Args:
            names: the model's class names in the order of their numbers; the numbers themselves where it has no names.

        Raises:
            DataError: the data names other classes.
        """
        return self

    @abc.abstractmethod
    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        """Reads and tokenises the data.

        Args:
            tokenizer: use this one, a trained model's own, instead of making the one that the config describes.

        Raises:
            DataError: a file that cannot be used; the message names it.
        """
