"""Errors a user can meet: each is one line that names the field or the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

FAILED = 2
"""Exit code of a command that ended with an error, one line on stderr."""

DIVERGED = 3
"""Exit code of a training run that diverged."""

INTERRUPTED = 130
"""Exit code of a command that was interrupted, also of a training run that saved a checkpoint first."""

CLOSED = 141
"""Exit code of a command whose output nobody reads any more (`| head`), as after the signal SIGPIPE."""


class HeadjaxError(ValueError):
    """Something the user asked for cannot be done. The command line prints it and exits with `exit_code`.

    >>> headjax.prune(headjax.demo_model(), ["decoder/0/8"])
    Traceback (most recent call last):
        ...
    headjax.core.errors.HeadjaxError: head decoder/0/8: layer 0 of decoder has heads 0, 1, 2, 3, 4, 5, 6, 7
    """

    exit_code: ClassVar[int] = FAILED


class ConfigError(HeadjaxError):
    """A configuration field has a value that cannot be used; the message starts with the field's path.

    >>> headjax.MeshConfig(data=0)
    Traceback (most recent call last):
        ...
    headjax.core.errors.ConfigError: data: must be -1 or at least 1, got 0
    """


class ArgumentError(HeadjaxError, TypeError):
    """An argument of a public function has another type than it takes; the message names function and argument."""


class ParameterError(HeadjaxError):
    """A parameter array is missing, unexpected or wrongly shaped; the message names its path.

    >>> headjax.to_huggingface(headjax.demo_model().replace(params={}), folder / "out")
    Traceback (most recent call last):
        ...
    headjax.core.errors.ParameterError: embeddings/token: missing; the config declares shape [2048, 128]
    """


class DataError(HeadjaxError):
    """A data file or a batch cannot be used; the message names the file or the batch key.

    >>> headjax.text_batch(headjax.byte_tokenizer(), [])
    Traceback (most recent call last):
        ...
    headjax.core.errors.DataError: texts: expected a list of at least one text
    """


class ColumnsError(DataError):
    """A table has other columns than are needed; `names` are the columns to name, such as `TEXT,LABEL` or `0,1`."""

    def __init__(self, message: str, names: str) -> None:
        self.names, self.remedy = names, f", or name them: columns {names}"
        super().__init__(f"{message}; rename them{self.remedy}")


class CheckpointError(HeadjaxError):
    """A model directory or a checkpoint is incomplete or belongs to something else.

    >>> headjax.load("models/none")
    Traceback (most recent call last):
        ...
    headjax.core.errors.CheckpointError: models/none: not a model directory (it has no config.json)
    """


class DamagedError(CheckpointError):
    """A file is not as it was written; the message starts with it."""


class KernelError(HeadjaxError):
    """An attention implementation cannot meet a request; the message has the reason and an alternative.

    >>> headjax.nn.attend(np.ones((1, 4, 3, 8)), *2 * [np.ones((1, 4, 2, 8))], scale=1.0)
    Traceback (most recent call last):
        ...
    headjax.core.errors.KernelError: key heads: 2 does not divide the 3 query heads
    """


@contextlib.contextmanager
def within(path: str) -> Iterator[None]:
    """Put the path of a config before the field that a `ConfigError` of the body begins with."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}.{error}") from None


def in_line(text: str) -> str:
    """Return the beginning of a text of the user's as it can stand in an error's line."""
    return ascii(text[:60])[1:-1] + ("..." if len(text) > 60 else "")


def require(condition: bool, field: str, message: str) -> None:
    """Raise `ConfigError("field: message")` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field}: {message}")
