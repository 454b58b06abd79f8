"""What training and evaluation read: random-access sources of examples, and where they come from."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from headjax.data.examples import Source
from headjax.tokenizers.tokenizer import Tokenizer


class Measured(NamedTuple):
    """What is measured on examples, in words that need no model: `headjax.evaluation.data_measures` has the functions.

    Attributes:
        measure: name of the measure: `classes`, `numbers`, `similarities`, `language_modelling`, `spans` or
            `masked_and_next`.
        arguments: the measure's own.
    """

    measure: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class TaskData(NamedTuple):
    """A loaded task.

    Attributes:
        tokenizer: turns text into the sources' ids; None for tasks without text.
        train: examples to train on.
        validation: examples never trained on.
        info: counts worth reporting (documents, tokens, bytes).
        measured: what is measured on the examples besides the loss and the perplexity; None is nothing.
    """

    tokenizer: Tokenizer | None
    train: Source
    validation: Source
    info: Mapping[str, Any]
    measured: Measured | None = None


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
