"""The `headjax` command line."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from headjax.core.errors import CLOSED, FAILED, INTERRUPTED, HeadjaxError
from headjax.core.terminal import printable
from headjax.storage.failures import causes, in_one_line, told_once
from headjax.storage.files import json_text, write_file
from headjax.version import __version__

if TYPE_CHECKING:
    from headjax.commands.results import Result

COMMANDS = {
    "prepare": "a task as tokenised shards on disk, for train and evaluate",
    "train": "train a model from a config file",
    "finetune": "train a model on your own table or text",
    "evaluate": "a model's metrics on a task",
    "generate": "text from a decoder or an encoder-decoder",
    "predict": "labels, numbers, answers, translations or embeddings of texts",
    "compare": "two models side by side on a task: metrics, agreement, significance, size, speed",
    "tasks": "every task by name: the files it needs, and its metrics",
    "inspect": "layers, heads, sizes and costs of a model or config",
    "score": "every head score in one pass over a task",
    "ablate": "the effect of removing each head",
    "prune": "remove heads for real",
    "convert": "another formulation from the same weights",
    "shrink": "choose heads, sizes, sharing and units of every layer for a budget",
    "sharing": "how much heads could share: captured variance, budgets, context and content",
    "report": "everything about a model's heads on one HTML page",
    "import": "a model from a Hugging Face directory",
    "export": "a Hugging Face directory from a model",
    "tokenizer": "a vocabulary learned from text",
    "plan": "compile the training step for a TPU slice without one: does it fit, how fast",
}
"""Commands and their purposes; each is `Options` and `run` of the module `headjax.commands.<name>`."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `HeadjaxError`s of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as the error that the command line prints."""
        raise HeadjaxError(message.removeprefix("argument "))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, one of those in `headjax.core.errors`, or the result's own."""
    with told_once():
        code = _attempt(list(sys.argv[1:] if arguments is None else arguments))
        if code == FAILED:
            gc.collect()
        return code


def _attempt(words: list[str]) -> int:
    """Run a command, and print its failure in one line; return the exit code."""
    try:
        with _short_warnings():
            return _run(words)
    except HeadjaxError as error:
        print(f"headjax: {'' if error.exit_code == INTERRUPTED else 'error: '}{_one_line(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of the output has seen enough; nothing is left to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except (Exception, KeyboardInterrupt) as error:
        if any(isinstance(each, KeyboardInterrupt) for each in causes(error)):
            print("headjax: interrupted", file=sys.stderr)
            return INTERRUPTED
        line = in_one_line(error)
        if line is None:
            raise
        print(f"headjax: error: {_one_line(line)}", file=sys.stderr)
        return FAILED


def _one_line(message: object) -> str:
    """Return a message on one line: line ends, in names of files or text, are escaped."""
    return printable(message, kept="")


def _run(words: list[str]) -> int:
    if not words or words[0] not in COMMANDS:
        return _without_command(words)
    from headjax.commands.options import parse_options

    name = words[0]
    overrides = tuple(word for word in words if word.startswith("--config."))
    command = importlib.import_module(f"headjax.commands.{name}")
    given = {"overrides": overrides} if "overrides" in command.Options.__dataclass_fields__ else {}
    if overrides and not given:
        raise HeadjaxError(f"{overrides[0]}: {name} takes no config")
    text = COMMANDS[name][0].upper() + COMMANDS[name][1:] + "."
    typed = [word for word in words[1:] if word not in overrides]
    options = parse_options(command.Options, typed, Parser(prog=f"headjax {name}", description=text), **given)

    from headjax.commands.options import check_places
    from headjax.core.progress import shown_on
    from headjax.core.terminal import Terminal
    from headjax.report.tables import print_table
    from headjax.training.config_file import import_modules

    check_places(options)
    import_modules(options.modules)
    with _clean_stdout(options.json == "-") as stdout:
        shown = Terminal(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115  (closed by whoever calls)
        start = time.perf_counter()
        result: Result = command.run(options, shown_on(Terminal(sys.stderr)))
        for table in result.tables():
            print_table(table, shown)
        if message := result.message():
            shown.tell(message)
        if options.json is not None:
            write_json({**result.to_json(), "command_seconds": time.perf_counter() - start}, options.json, stdout)
    return result.exit_code


def _without_command(words: list[str]) -> int:
    """Print the commands or the version, or raise the error of an unknown command."""
    parser = Parser(prog="headjax", description="How many attention heads, how large, and what can they share?")
    parser.add_argument("--version", action="version", version=f"headjax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.parse_args(words)
    parser.print_help()
    return 0


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Print warnings for users as one line each, without the place in the code; others as Python does."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if category is UserWarning:
            print(f"headjax: warning: {_one_line(message)}", file=sys.stderr)
        else:
            before(message, category, *rest, **named)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextlib.contextmanager
def _clean_stdout(clean: bool) -> Iterator[Any]:
    """Keep stdout for the JSON alone: everything else that is printed meanwhile goes to stderr."""
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr) if clean else contextlib.nullcontext():
        yield stdout


def write_json(data: Mapping[str, Any], path: str, stdout: Any = None) -> None:
    """Write JSON to a file, which appears only once it is complete, or to stdout for `-`.

    Numbers that are not finite become null: JSON has no others.

    Raises:
        HeadjaxError: the file cannot be written.
    """
    text = json_text(data, indent=2) + "\n"
    if path == "-":
        print(text, end="", file=stdout, flush=True)
        return
    write_file(path, text.encode())


if __name__ == "__main__":
    sys.exit(main())
