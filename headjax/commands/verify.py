"""`headjax verify`."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headjax.commands.options import CommandOptions, argument
from headjax.commands.results import Result, found
from headjax.core.errors import FAILED, DamagedError, DataError, HeadjaxError
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Table
from headjax.storage import integrity
from headjax.storage.files import DELETED, shown
from headjax.storage.paths import file_sizes, path_of

MARKERS = ("history.json", "_CHECKPOINT_METADATA")
"""Files that only model directories and checkpoints hold, also those of earlier versions, without checksums."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax verify`."""

    path: str = argument("PATH", "model directory, checkpoint, prepared folder, or a folder of them", reads=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Files compared with their checksums."""

    title = "Integrity"

    path: str = found()
    files: int = found("", "files", numbers.count)
    bytes: int = found("of the files", "bytes", numbers.count)
    damaged: Sequence[integrity.Damage] = found("`file` and `problem`")
    without_checksums: Sequence[Path] = found("folders whose content cannot be compared")
    seconds: float = found()

    def tables(self) -> Sequence[Table]:
        rows = [("without checksums", str(folder)) for folder in self.without_checksums]
        return [self.summary(*rows, *(("damaged", f"{file}: {problem}") for file, problem in self.damaged))]

    def message(self) -> str:
        if self.damaged:
            return f"{len(self.damaged)} of {self.files} files damaged: {self.damaged[0].file}"
        unsure = len(self.without_checksums)
        return f"{self.path}: intact" + (f", but for {unsure} folders without checksums" if unsure else "")

    @property
    def exit_code(self) -> int:
        return FAILED if self.damaged else 0


def run(options: Options, progress: Progress) -> Found:
    """Compares every file with its checksum; exit code 2 where one differs."""
    path, start = path_of(options.path), time.perf_counter()
    if not path.is_dir():
        raise HeadjaxError(f"{path}: no such folder")
    from headjax.data.prepared import MANIFESTS, names_in
    from headjax.data.shards import is_shard

    records = _folders_of(path, (integrity.RECORD, integrity.SIZES))
    prepared = [folder for folder in _folders_of(path, MANIFESTS) if any(map(is_shard, names_in(folder)))]
    if not records and not prepared:
        raise HeadjaxError(f"{path}: nothing to compare with: no {integrity.RECORD} in it or below it")
    work = [(_compare, folder) for folder in records] + [(_compare_prepared, folder) for folder in prepared]
    damaged: list[integrity.Damage] = []
    unsure = set(_without_checksums(path))
    files = size = 0
    with progress("comparing", len(work), "folder") as bar:
        for done, (compare, folder) in enumerate(work):
            bar(done, {"damaged": len(damaged)})
            compared = compare(folder)
            files, size = files + compared.files, size + compared.size
            unsure |= {folder} if compared.unsure else set()
            if folder.is_dir():  # a run that goes on deletes its older checkpoints
                damaged.extend(compared.damaged)
    return Found(
        path=str(path),
        files=files,
        bytes=size,
        damaged=damaged,
        without_checksums=sorted(unsure),
        seconds=time.perf_counter() - start,
    )


class _Compared(NamedTuple):
    """Number and bytes of the files of a folder, those that are damaged, and whether some have no checksums."""

    files: int
    size: int
    damaged: Sequence[integrity.Damage]
    unsure: bool = False


def _compare(folder: Path) -> _Compared:
    """Compare a folder with its record."""
    try:
        entries = integrity.read_record(folder) or {}
    except DamagedError as error:
        return _Compared(0, 0, [_damage(error)])
    return _Compared(len(entries), sum(entry.size for entry in entries.values()), list(integrity.damages(folder)))


def _compare_prepared(folder: Path) -> _Compared:
    """Compare the shards of a prepared folder with its manifest; nothing of one that is still written."""
    from headjax.data.prepared import manifests_in, read_manifest

    try:
        if not all(manifest.is_finished for manifest in manifests_in(folder).values()):
            return _Compared(0, 0, ())
        manifest = read_manifest(folder)
    except DataError as error:
        return _Compared(0, 0, [_damage(error)])
    damaged = [damage for shard in manifest.shards for damage in shard.damages(folder)]
    size = sum(shard.bytes for shard in manifest.shards)
    return _Compared(2 * len(manifest.shards), size, damaged, not manifest.has_checksums)


def _damage(error: HeadjaxError) -> integrity.Damage:
    file, _, problem = str(error).partition(": ")
    return integrity.Damage(path_of(file), problem)


def _folders_of(path: Path, names: Container[str] | re.Pattern[str]) -> list[Path]:
    """Return the folders below a path that hold a file of such a name, but for those that are written or deleted."""
    folders = set()
    for each in file_sizes(path):
        folder, name = (path / each).parent, Path(each).name
        known = names.fullmatch(name) is not None if isinstance(names, re.Pattern) else name in names
        if known and DELETED not in Path(each).parts and shown(str(folder)) == str(folder):
            folders.add(folder)
    return sorted(folders)


def _without_checksums(path: Path) -> Iterator[Path]:
    """Yield model directories and checkpoints of which no content can be compared: no record is in or above them."""
    for folder in _folders_of(path, MARKERS):
        if not any((above / integrity.RECORD).is_file() for above in (folder, *folder.parents)):
            yield folder
