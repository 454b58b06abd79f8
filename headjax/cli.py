"""The `headjax` command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from headjax.core.errors import HeadjaxError
from headjax.core.files import write_file
from headjax.version import __version__

COMMANDS = {
    "quickstart": "train a small decoder, score, prune and convert its heads, write a report",
    "prepare": "a task as tokenised shards on disk, for train and evaluate",
    "train": "train a model from a config file",
    "evaluate": "a model's metrics on a task",
    "inspect": "layers, heads, sizes and costs of a model or config",
    "score": "every head score in one pass over a task",
    "ablate": "the effect of removing each head",
    "prune": "remove heads for real",
    "convert": "another formulation from the same weights",
    "sharing": "how much heads could share: captured variance, budgets, context and content",
    "sweep": "convert to many sizes and evaluate each",
    "report": "everything about a model's heads on one HTML page",
    "import": "a model from a Hugging Face directory",
    "export": "a Hugging Face directory from a model",
    "tokenizer": "a vocabulary learned from text",
    "plan": "compile the training step for a TPU slice without one: does it fit, how fast",
    "bench": "side by side with a peer, ratio and spread",
}
"""Commands and what they do; each is `COMMAND` in `headjax.commands.<name>`."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise HeadjaxError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 2 for an error that one line explains, or what the result says."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except HeadjaxError as error:
        print(f"headjax: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headjax: interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    overrides = [word for word in arguments if word.startswith("--config.")]
    words = [word for word in arguments if word not in overrides]
    name = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(name if name in COMMANDS else None)
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help()
        return 0
    if overrides and not hasattr(options, "config"):
        raise HeadjaxError(f"{overrides[0]}: {options.command} takes no config")
    options.overrides = overrides
    command = importlib.import_module(f"headjax.commands.{options.command}").COMMAND

    from rich.console import Console

    from headjax.core.progress import bars
    from headjax.report.tables import print_table

    with _clean_stdout(options.json == "-") as stdout:
        # Where no terminal says how wide it is (a pipe, a log), tables take the width they need.
        shown = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140)
        result = command.run(options, bars(Console(stderr=True)))
        for table in result.tables:
            print_table(table, shown)
        if result.message:
            shown.print(result.message, highlight=False, markup=False, soft_wrap=True)
        if options.json is not None:
            write_json(result.data, options.json, stdout)
    return result.exit_code


def _parser(selected: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog="headjax", description="How many attention heads, how large, and what can they share?")
    parser.add_argument("--version", action="version", version=f"headjax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.add_argument("--json", metavar="PATH", help="write the result as JSON; - is stdout")
        if name == selected:
            importlib.import_module(f"headjax.commands.{name}").COMMAND.arguments(sub)
    return parser


@contextlib.contextmanager
def _clean_stdout(clean: bool) -> Iterator[Any]:
    """Keeps stdout for the JSON alone: whatever else is printed meanwhile goes to stderr."""
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr) if clean else contextlib.nullcontext():
        yield stdout


def write_json(data: Mapping[str, Any], path: str, stdout: Any = None) -> None:
    """Writes JSON to a file, which appears only once it is complete, or to stdout for `-`.

    Raises:
        HeadjaxError: the file cannot be written.
    """
    text = json.dumps(data, indent=2, default=_plain) + "\n"
    if path == "-":
        print(text, end="", file=stdout)
        return
    write_file(path, text.encode())


def _plain(value: Any) -> Any:
    """Array scalars, arrays and paths as plain JSON values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


if __name__ == "__main__":
    sys.exit(main())
