"""Inputs and outputs of a command, looked at before any work is done and before JAX is imported.

Folders, model directories and files that exist are replaced with `--overwrite` alone, but for results (`.json`,
`.html`).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from headjax.commands.options import CommandOptions, Read, declared, name_of
from headjax.core.errors import DataError, HeadjaxError
from headjax.storage.directories import check_model, check_own
from headjax.storage.files import is_stream
from headjax.storage.paths import check_file, check_folder, is_bucket, path_of, size_of


def check_inputs(options: CommandOptions) -> None:
    """Check that every input which a command names is there; its content is read later."""
    models_first = sorted(dataclasses.fields(options), key=lambda field: declared(field).reads != "model")
    for field in models_first:
        reads, value = declared(field).reads, getattr(options, field.name)
        if not reads or not value or "://" in value:
            continue
        try:
            _check(reads, value)
        except DataError as error:
            text = str(error).removeprefix("task: ")
            named = field.name == "calibration" or text != str(error)
            raise DataError(f"{name_of(field)}: {text}" if named else text) from None


def _check(reads: Read, value: str) -> None:
    """Check an input, by what an option says that it reads."""
    if reads == "model":
        check_model(path_of(value))
    elif reads == "file":
        if not path_of(value).expanduser().exists():
            raise DataError(f"{value}: no such file")
    elif reads == "config":
        from headjax.training.config_file import config_place

        config_place(value)
    elif reads == "task":
        from headjax.data.rows import SPLITS
        from headjax.data.source import check_task

        if value not in SPLITS:  # of `--calibration`
            check_task(value)


RESULTS = (".json", ".html")
"""Endings of files that are replaced: nobody's data or texts have them."""


def check_outputs(options: CommandOptions) -> None:
    """Check everything that a command will write."""
    named = [getattr(options, field.name) for field in dataclasses.fields(options) if declared(field).reads]
    texts = [text for each in named for text in ((each,) if isinstance(each, str) else each or ())]
    read = {os.path.realpath(word) for text in texts for word in (text, text.partition(":")[2]) if word}
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
        danger = "the command reads it" if os.path.realpath(value) in read else _danger(place, kind)
        if danger is not None and not (options.overwrite or is_stream(place)):
            raise HeadjaxError(f"{value}: {danger}; --overwrite replaces it")
        if kind == "new":
            check_own(place)


def _check_writable(value: str, place: Path, kind: str) -> None:
    """Check that a command can write its output to a path."""
    if kind not in ("new", "folder"):
        check_file(value)
        return
    if kind == "new" and isinstance(place, Path) and place.is_symlink():
        check_folder(place.resolve())  # a link may lead to a folder that is still to be made
    elif kind == "folder" or not place.is_dir():
        check_folder(value)


def _danger(place: Path, kind: str) -> str | None:
    """Return the files that writing to a place would replace; None where nothing would."""
    if kind == "new" and place.exists() and not (place.is_dir() and not any(place.iterdir())):
        return "exists already"
    above = None if is_bucket(place) else next(filter(_is_model, (place, *place.absolute().parents)), None)
    if above is not None:
        return f"in the model directory {above}" if above != place else "a model directory"
    if kind == "file" and place.is_file() and place.suffix not in RESULTS and size_of(place):
        return "exists already"
    return None


def _is_model(folder: Path) -> bool:
    """Return whether a folder is a model directory, ours or of Hugging Face."""
    if not (folder / "config.json").is_file():
        return False
    return (folder / "history.json").is_file() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
