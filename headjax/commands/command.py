"""What a command is, and what it gives back."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model


class Result(NamedTuple):
    """A command's result, for programs and for people.

    Attributes:
        data: what `--json` writes.
        tables: what is printed.
        message: a last line, such as where the output went.
        exit_code: of the command line; not 0 where the command did its work and the outcome is bad.
    """

    data: Mapping[str, Any]
    tables: Sequence[Table] = ()
    message: str = ""
    exit_code: int = 0


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: as typed.
        help: one line.
        arguments: declares the command's arguments.
        run: does the work.
    """

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Progress], Result]


def open_model_and_task(options: argparse.Namespace) -> tuple[Model, Task]:
    """The model directory and the task that the arguments name; the task has been found to fit the model.

    A command that writes a model keeps this one; `task.fit(model)` may have another output.
    """
    from headjax.evaluation.specs import load_task
    from headjax.models.model import load

    model = load(options.model)
    task = load_task(options.task, model, options.length)
    return model, task


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`--config FILE[:ARGS]`; overrides `--config.x=y` are collected by the command line itself."""
    parser.add_argument(
        "--config",
        metavar="FILE[:ARGS]",
        required=True,
        help="config file, with its arguments; --config.FIELD=VALUE sets a field of it",
    )


def add_task_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--task` and how much of it to read."""
    parser.add_argument("--task", required=required, metavar="TASK", help="task name (python, sst2, ...) or a file")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="examples per batch (default 16)")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="use the first N examples (default all)")
    parser.add_argument(
        "--length",
        type=positive,
        default=0,
        metavar="N",
        help="cut texts to N tokens (default: the model's positions, at most 512; windows of squad 384)",
    )
    parser.add_argument(
        "--buckets",
        type=whole_numbers,
        default=(),
        metavar="L",
        help="pad texts to these lengths, such as 16,32,64 (default the longest)",
    )


def not_negative(text: str) -> int:
    """A whole number that is not negative, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number that is not negative, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """`16,32,64` as numbers of at least 1, for argparse."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers such as 16,32,64, got {text!r}")
    return tuple(int(part) for part in parts)
