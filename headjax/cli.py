"""The `headjax` command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from headjax.core.errors import CLOSED, FAILED, INTERRUPTED, HeadjaxError
from headjax.storage.files import causes, format_error, json_text, silence_repeats, write_file
from headjax.version import __version__

if TYPE_CHECKING:
    from headjax.commands.outputs import CommandResult


class Command(NamedTuple):
    """Purpose of a command, and an example."""

    purpose: str
    example: str


GROUPS: Mapping[str, Mapping[str, Command]] = {
    "train": {
        "train": Command(
            "train a model from a config file",
            "headjax train --config configs/quickstart.py:steps=400 --workdir runs/mine",
        ),
        "finetune": Command(
            "train a model on your own table or text, or distil it from a teacher",
            "headjax finetune model/ mine/ --train reviews.tsv --epochs 3",
        ),
        "prepare": Command(
            "write a task as tokenised shards, for train and evaluate",
            "headjax prepare lm1b --out data/ --source corpus/*.txt --vocab-size 8000",
        ),
        "plan": Command(
            "compile the train step for a TPU slice without one: does it fit",
            "headjax plan --config configs/papers/bert.py --topology v3-32",
        ),
    },
    "use": {
        "evaluate": Command(
            "metrics on a task; of two models side by side, paired",
            "headjax evaluate model/ pruned/ --task reviews.tsv",
        ),
        "predict": Command(
            "labels, numbers, answers, translations or embeddings of texts",
            "headjax predict model/ --task new.tsv --out labels.tsv",
        ),
        "generate": Command(
            "text from a decoder or an encoder-decoder",
            'headjax generate model/ --prompt "def read" --max-new-tokens 64',
        ),
    },
    "look at heads": {
        "inspect": Command(
            "layers, heads, sizes and costs of a model or config", "headjax inspect model/ --captured-variance"
        ),
        "score": Command(
            "every head score in one pass over a task", "headjax score model/ --task reviews.tsv --json scores.json"
        ),
        "ablate": Command(
            "the effect of removing each head", "headjax ablate model/ --task reviews.tsv --mode each,all-but-one"
        ),
        "report": Command(
            "everything about a model's heads on one HTML page",
            "headjax report model/ --task reviews.tsv --out heads.html",
        ),
    },
    "make smaller": {
        "prune": Command(
            "prune heads: delete their weights",
            "headjax prune model/ pruned/ --remove 40% --by reconstruction --reconstruct --task reviews.tsv",
        ),
        "convert": Command(
            "rewrite attention in another formulation from the same weights",
            "headjax convert model/ shared/ --to collaborative:shared_dim=384 --calibrate 512 --task reviews.tsv",
        ),
        "shrink": Command(
            "choose heads, sizes, sharing and units of every layer for a budget",
            "headjax shrink model/ small/ --task reviews.tsv --budget parameters=60%",
        ),
    },
    "exchange": {
        "import": Command("read a Hugging Face directory", "headjax import bert-dir/ model/"),
        "export": Command("write a Hugging Face directory", "headjax export model/ bert-dir/ --check"),
    },
}
"""Commands by group; each is `Options` and `run` of the module `headjax.commands.<name>`."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `HeadjaxError`s of one line."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as the error that the command line prints."""
        raise HeadjaxError(message.removeprefix("argument "))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, one of those in `headjax.core.errors`, or the result's own."""
    silence_repeats()
    try:
        with _short_warnings():
            try:
                return _run(list(sys.argv[1:] if arguments is None else arguments))
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
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
        line = format_error(error)
        if line is None:
            raise
        print(f"headjax: error: {_one_line(line)}", file=sys.stderr)
        return FAILED


def _one_line(message: object) -> str:
    """Return a message on one line: line ends, in names of files or text, are escaped."""
    from headjax.core.progress import printable

    return printable(message, kept="")


def _run(words: list[str]) -> int:
    if not words or words[0] not in COMMANDS:
        return _without_command(words)
    from headjax.commands.options import parse_options, respell

    name = words[0]
    overrides = tuple(word for word in words if word.startswith("--config."))
    command = importlib.import_module(f"headjax.commands.{name}")
    given = {"overrides": overrides} if "overrides" in command.Options.__dataclass_fields__ else {}
    if overrides and not given:
        raise HeadjaxError(f"{overrides[0]}: {name} takes no config")
    purpose, example = COMMANDS[name]
    typed = [word for word in words[1:] if word not in overrides]
    parser = Parser(
        prog=f"headjax {name}",
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parse_options(command.Options, typed, parser, **given)

    from headjax.commands.inputs import check_inputs, check_outputs
    from headjax.core.programs import keep_programs
    from headjax.core.progress import Terminal, shown_on
    from headjax.report.tables import print_table

    check_inputs(options)
    check_outputs(options)
    keep_programs()
    if options.modules:
        from headjax.training.config_file import import_modules

        import_modules(options.modules)
    stdout = sys.stdout  # kept for the JSON alone, if it goes there
    with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else contextlib.nullcontext():
        shown = Terminal(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115  (closed by whoever calls)
        start = time.perf_counter()
        try:
            result: CommandResult = command.run(options, shown_on(Terminal(sys.stderr)))
        except HeadjaxError as error:
            respell(error, options)
            raise
        for table in result.tables():
            print_table(table, shown)
        if message := result.message():
            shown.tell(message)
        if options.json is not None:
            data = {**result.to_json(), "command_seconds": time.perf_counter() - start}
            text = json_text(data, indent=2) + "\n"
            if options.json == "-":
                print(text, end="", file=stdout, flush=True)
            else:
                write_file(options.json, text.encode())
    return result.exit_code


def _without_command(words: list[str]) -> int:
    """Print the commands or the version, or raise the error of an unknown command."""
    listed = [
        f"{group}:\n" + "\n".join(f"  {name:<10} {command.purpose}" for name, command in commands.items())
        for group, commands in GROUPS.items()
    ]
    parser = Parser(
        prog="headjax",
        usage="headjax COMMAND [OPTIONS]",
        description="How many attention heads, how large, and what can they share?",
        epilog="\n\n".join((*listed, "headjax COMMAND --help shows a command's options and an example.")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headjax {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS, metavar="COMMAND")
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
