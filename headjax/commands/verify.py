"""`headjax verify`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from headjax.commands.options import CommandOptions, Result, argument
from headjax.core import integrity
from headjax.core.errors import FAILED, DamagedError, HeadjaxError
from headjax.core.files import DELETED, shown
from headjax.core.paths import file_sizes, path_of
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

MARKERS = ("history.json", "_CHECKPOINT_METADATA")
"""Files that only model directories and checkpoints hold, also those of earlier versions, without checksums."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax verify`."""

    path: str = argument("PATH", "model directory, checkpoint, or folder of them such as a workdir")


def run(options: Options, progress: Progress) -> Result:
    """Compares every file with its checksum; exit code 2 where one differs."""
    path, start = path_of(options.path), time.perf_counter()
    if not path.is_dir():
        raise HeadjaxError(f"{path}: no such folder")
    folders = sorted({folder for name in (integrity.RECORD, integrity.SIZES) for folder in _folders_of(path, name)})
    if not folders:
        raise HeadjaxError(f"{path}: nothing to compare with: no {integrity.RECORD} in it or below it")
    damaged: list[integrity.Damage] = []
    files = size = 0
    with progress("comparing", len(folders), "folder") as bar:
        for done, folder in enumerate(folders):
            bar(done, {"damaged": len(damaged)})
            try:
                entries = integrity.read_record(folder) or {}
            except DamagedError as error:
                file, _, problem = str(error).partition(": ")
                found = [integrity.Damage(path_of(file), problem)]
            else:
                files, size = files + len(entries), size + sum(entry.size for entry in entries.values())
                found = list(integrity.damages(folder))
            damaged.extend(found if folder.is_dir() else ())  # a run that goes on deletes its older checkpoints
    unsure = sorted(set(_without_checksums(path)))
    data = {
        "path": str(path),
        "files": files,
        "bytes": size,
        "damaged": [{"file": str(file), "problem": problem} for file, problem in damaged],
        "without_checksums": [str(folder) for folder in unsure],
        "seconds": time.perf_counter() - start,
    }
    rows = [("folders", numbers.count(len(folders))), ("files", numbers.count(files)), ("bytes", numbers.count(size))]
    rows += [("without checksums", str(folder)) for folder in unsure]
    rows += [("damaged", f"{file}: {problem}") for file, problem in damaged]
    message = f"{path}: intact" + (f", but for {len(unsure)} folders without checksums" if unsure else "")
    if damaged:
        message = f"{len(damaged)} of {files} files damaged: {damaged[0].file}"
    return Result(data, [Table((Column("Integrity"), Column("")), rows)], message, FAILED if damaged else 0)


def _folders_of(path: Path, name: str) -> Iterator[Path]:
    """Yield the folders below a path that hold a file of this name, but for those that are written or deleted."""
    for each in file_sizes(path):
        folder = (path / each).parent
        if Path(each).name == name and DELETED not in Path(each).parts and shown(str(folder)) == str(folder):
            yield folder


def _without_checksums(path: Path) -> Iterator[Path]:
    """Yield model directories and checkpoints of which no content can be compared: no record is in or above them."""
    for folder in (folder for name in MARKERS for folder in _folders_of(path, name)):
        if not any((above / integrity.RECORD).is_file() for above in (folder, *folder.parents)):
            yield folder
