"""Files and folders that options name, compared before any work is done for them.

A command writes to new places, or where an older output of its own kind is. What it reads, model directories and other
files it replaces with `--overwrite` alone.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from headjax.commands.options import CommandOptions, declared, name_of
from headjax.core.directories import check_own, settle
from headjax.core.errors import HeadjaxError
from headjax.core.files import is_stream
from headjax.core.paths import check_file, check_folder, check_writable, is_bucket, path_of

ENDS = 4096
"""Bytes at either end of a file by which its kind is known."""

OWN: Mapping[str, Callable[[bytes, bytes], bool]] = {
    "result": lambda head, tail: head.startswith(b"{") and b'"command_seconds"' in tail,
    "page": lambda head, tail: b"<html" in head.lower() and b"headjax" in head,
    "plot": lambda head, tail: head.startswith(b"\x89PNG") or b"<svg" in head,
    "predictions": lambda head, tail: False,  # nothing tells them from a table of the user's
}
"""Whether a file is an older output of a kind, by its first and last bytes."""


def check_places(options: CommandOptions) -> None:
    """Check everything that a command will write.

    Raises:
        HeadjaxError: a path that cannot be written, or that holds something that only `--overwrite` replaces.
    """
    read = {file for field in dataclasses.fields(options) for file in _read(options, field)}
    written: dict[Path, str] = {}
    for field in dataclasses.fields(options):
        kind, value = declared(field).writes, getattr(options, field.name)
        if not kind or not value or value == "-":
            continue
        place = path_of(value)
        _check_writable(value, place, kind)
        if place in written:
            raise HeadjaxError(f"{name_of(field)}: {value} is {written[place]} of the command, too")
        written[place] = name_of(field)
        danger = None if options.overwrite or is_stream(place) else _danger(place, kind, read)
        if danger is not None:
            raise HeadjaxError(f"{value}: {danger}; --overwrite replaces it")
        if kind == "new":
            check_own(place)


def _read(options: CommandOptions, field: dataclasses.Field[object]) -> Iterator[str]:
    """Yield the real paths of what a field names: of `squad:FILE` and `FILE:ARGS`, too, and of patterns."""
    if not declared(field).reads:
        return
    value = getattr(options, field.name) or ()
    for text in (value,) if isinstance(value, str) else value:
        parts = text.split(":")
        for start, end in itertools.product((0, 1), range(1, len(parts) + 1)):
            word = os.path.expanduser(":".join(parts[start:end]))
            yield from map(os.path.realpath, glob.iglob(word) if glob.has_magic(word) else filter(None, [word]))


def _check_writable(value: str, place: Path, kind: str) -> None:
    """Check that a path can become what a command writes there."""
    if kind not in ("new", "folder"):
        check_file(value)
        return
    if kind == "new":
        settle(place)
    if kind == "new" and isinstance(place, Path) and place.is_symlink():
        check_folder(place.resolve())  # a link may lead to a folder that is still to be made
        check_writable(place)
    elif kind == "folder" or not place.is_dir():
        check_folder(value)


def _danger(place: Path, kind: str, read: set[str]) -> str | None:
    """Return what would be lost by writing to a place; None where nothing would."""
    if kind == "new" and place.exists() and not (place.is_dir() and not any(place.iterdir())):
        return "exists already"
    if not is_bucket(place) and os.path.realpath(place) in read:
        return "the command reads it"
    above = None if is_bucket(place) else next(filter(_is_model, (place, *place.absolute().parents)), None)
    if above is not None:
        return f"in the model directory {above}" if above != place else "a model directory"
    if kind in ("new", "folder") or not place.is_file():
        return None
    with place.open("rb") as file:
        head = file.read(ENDS)
        file.seek(max(file.seek(0, os.SEEK_END) - ENDS, 0))
        tail = file.read(ENDS)
    return None if not head or OWN[kind](head, tail) else "exists already and is no older output of this command"


def _is_model(folder: Path) -> bool:
    """Return whether a folder is a model directory, ours or of Hugging Face."""
    if not (folder / "config.json").is_file():
        return False
    return (folder / "history.json").is_file() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
