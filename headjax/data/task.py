"""A loaded task: its examples and how they are measured; and the base of the configs that load one."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from headjax.core.fields import Checked
from headjax.data.examples import Source
from headjax.tokenizers.tokenizer import Tokenizer


class MeasureSpec(NamedTuple):
    """Name and arguments of the measure of a task's examples; `headjax.evaluation.task.MEASURES` has the measures.

    Attributes:
        measure: name of the measure: `classes`, `numbers`, `similarities`, `language_modelling`, `spans` or
            `masked_and_next`.
        arguments: arguments of the measure.
    """

    measure: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class TaskData(NamedTuple):
    """A loaded task.

    Attributes:
        tokenizer: tokenizer of the text; None for tasks without text.
        train: examples to train on.
        validation: examples to evaluate on, never trained on.
        info: facts to report (documents, tokens, bytes).
        measured: measure of the examples; None for the loss and the perplexity alone.
        threads: number of threads that read training batches ahead; 0 reads on demand.
    """

    tokenizer: Tokenizer | None
    train: Source
    validation: Source
    info: Mapping[str, Any]
    measured: MeasureSpec | None = None
    threads: int = 0


class DataConfig(Checked, abc.ABC):
    """Base of the kinds of data, the values of `config.data` in a config file."""

    def for_classes(self, names: Sequence[str]) -> DataConfig:
        """Return the same data with its classes numbered as a model numbers its own, if the data has classes.

        Args:
            names: the model's class names in the order of their numbers; the numbers themselves if it has no names.

        Raises:
            DataError: the data names other classes.
        """
        return self

    def for_files(self, files: Mapping[str, bytes]) -> DataConfig:
        """Return the same data, read as the files that came with a model say (`Model.files`)."""
        return self

    @abc.abstractmethod
    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        """Read and encode the data.

        Args:
            tokenizer: a trained model's tokenizer; None makes the one that the config describes.

        Raises:
            DataError: a file that cannot be used; the message names it.
        """
