"""Journals of preparations: the complete shards of a process or of each of several hosts, and the manifest at the end.

Several hosts write into one folder. Host I of N encodes the shards whose numbers leave the remainder I when divided by
N, and keeps `hosts/I-of-N`: a lock, the list of its complete shards and, at its end, `part.json`. The last host to end
finds all parts there, writes the manifest and removes `hosts`. The folder is then the one of a single process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.files import leftovers, read_document, write_file
from headjax.core.lock import FolderLock
from headjax.core.paths import is_bucket, remove_tree
from headjax.core.serialize import dumps, from_data, to_data
from headjax.data.prepared import (
    HOSTS,
    MANIFEST,
    PART,
    SHARD,
    TOKENIZER,
    UNFINISHED,
    Manifest,
    Shard,
    ShardRecords,
    has_tokenizer,
    hosts_of,
    load_manifest,
    names_in,
    sizes_path,
)
from headjax.tokenizers.tokenizer import Tokenizer

SETTINGS = ("task", "form", "source", "tokenizer", "shard_bytes", "seed")
"""Fields of the manifest that must be the same for a preparation to resume."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One of the hosts that prepare a task together.

    Attributes:
        index: its number, from 0.
        count: number of hosts.
    """

    index: int = 0
    count: int = 1

    def owns(self, number: int) -> bool:
        """Return whether the host encodes the shard of a number."""
        return number % self.count == self.index

    def home(self, folder: Path) -> Path:
        """Return the folder of the host's journal: that of the shards itself if there is one host."""
        return folder if self.count == 1 else folder / HOSTS / f"{self.index}-of-{self.count}"


class Prepared(NamedTuple):
    """A finished preparation, or the finished part of a host.

    Attributes:
        manifest: the manifest of the folder; while other hosts are at work, that of the host's own shards.
        written: number of shards written by this call; the others existed.
        waiting: numbers of the hosts that have not finished.
    """

    manifest: Manifest
    written: int
    waiting: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Content of `part.json`: the finished part of one host.

    Attributes:
        manifest: the manifest of its shards.
        rows: fingerprints of the rows of all shards in order, by the names of the shards, also of those that other
            hosts encode.
    """

    manifest: Manifest
    rows: Mapping[str, str]


class Journal:
    """The list of complete shards, saved on disk after each of them. Entered and left as a context.

    Args:
        folder: the prepared folder.
        wanted: the final manifest, without shards.
        tokenizer: tokenizer of the text.
        host: the host that keeps the journal.

    Raises:
        DataError: the folder has other content.
    """

    def __init__(self, folder: Path, wanted: Manifest, tokenizer: Tokenizer | None, host: Host = Host()) -> None:
        self.folder, self.wanted, self.tokenizer, self.host = folder, wanted, tokenizer, host
        self.home, self.written = host.home(folder), 0
        self.shards: list[Shard] = []
        self._begun = False
        self._rows: dict[str, str] = {}
        self._lock = FolderLock(self.home) if host.count > 1 else None
        for entry, _ in [] if is_bucket(folder) else leftovers(self.home / UNFINISHED):
            entry.unlink(missing_ok=True)
        empty = self._is_empty()  # first: other hosts may begin and end at any moment
        self._check_hosts()
        begun = bool(hosts_of(folder))
        places = (self.home / UNFINISHED, folder / MANIFEST, folder / HOSTS / UNFINISHED)
        manifests = [file for file in places if file.is_file()]
        # A beginning takes the manifest away after it made its host's folder, an end those folders after the manifest.
        if not (empty or begun or manifests or hosts_of(folder)):
            raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")
        before = load_manifest(manifests[0]) if manifests else wanted
        _check_same(folder, before, wanted)
        own = (shard for shard in before.shards if host.owns(_number(shard.name)))
        self.there = {shard.name: shard for shard in own if _is_whole(folder, shard)}

    def _is_empty(self) -> bool:
        """Return whether nothing is there, or only the folder in which another host is about to make its own."""
        if self.folder.exists() and not self.folder.is_dir():
            return False
        names = names_in(self.folder)
        return not names or (self.host.count > 1 and names == [HOSTS] and not names_in(self.folder / HOSTS))

    def _check_hosts(self) -> None:
        """Compare with the journals of other hosts.

        Raises:
            DataError: there is another number of them, or they have other settings.
        """
        hosts = hosts_of(self.folder)
        other = next((count for _, count in hosts if count != self.host.count), None)
        if other is not None:
            given = "without --host" if self.host.count == 1 else f"with --host I/{self.host.count}"
            begun = f"{self.folder}: {other} hosts prepare it (--host I/{other})"
            raise DataError(f"{begun}; remove {self.folder / HOSTS} to go on {given}")
        if self.host.count > 1 and (self.folder / UNFINISHED).is_file():
            raise DataError(f"{self.folder}: begun without --host; go on without it, or choose another folder")
        for host in (Host(*each) for each in hosts):
            journal = host.home(self.folder) / UNFINISHED
            if host != self.host and journal.is_file():
                _check_same(journal.parent, load_manifest(journal), self.wanted)

    def __enter__(self) -> Journal:
        if self._lock is not None:
            self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        if kind is not None:
            with contextlib.suppress(OSError):
                self._leave()

    def _leave(self) -> None:
        """Remove the files that `begin` made if no shard was written."""
        if any(self.host.owns(_number(file.name)) for file in self.folder.glob(f"*{SHARD}")):
            return
        if self.host.count > 1:
            remove_tree(self.home)
            self.home.parent.rmdir()
        elif (self.home / UNFINISHED).is_file():
            (self.home / UNFINISHED).unlink()
            remove_tree(self.home / TOKENIZER)
        self.folder.rmdir()

    def begin(self) -> None:
        """Make the folder, before its first shard; a finished one is unfinished before its shards change."""
        if self._begun:
            return
        self._write_unfinished()
        if self._lock is not None and (self.folder / MANIFEST).is_file():  # it tells the others what is there
            load_manifest(self.folder / MANIFEST).write(self.folder / HOSTS, UNFINISHED)
        (self.folder / MANIFEST).unlink(missing_ok=True)
        (self.home / PART).unlink(missing_ok=True)
        self._save_tokenizer(self.home)
        self._begun = True

    def _write_unfinished(self) -> None:
        """Write the manifest of the complete shards so far, from which an interrupted preparation goes on."""
        known = self.there | {shard.name: shard for shard in self.shards}
        ordered = tuple(known[name] for name in sorted(known))
        dataclasses.replace(self.wanted, shards=ordered).write(self.home, UNFINISHED)

    def _save_tokenizer(self, folder: Path) -> None:
        try:
            if self.tokenizer is not None and not has_tokenizer(folder):
                self.tokenizer.save(folder / TOKENIZER)
        except OSError as error:
            raise DataError(f"{folder / TOKENIZER}: cannot be written ({error.strerror})") from None

    def read(self, name: str, rows: str) -> None:
        """Enter the rows of the next shard, of whichever host: the fingerprint, or empty until `add` knows it."""
        self._rows[name] = rows

    def add(self, shard: Shard, *, fresh: bool) -> None:
        """Enter the next shard; `fresh` if this call has written it."""
        self.shards.append(shard)
        self._rows[shard.name] = shard.rows
        if fresh:
            self.written += 1
            self._write_unfinished()

    def finish(self) -> Prepared:
        """Remove shards without rows, and write the manifest once no other host is at work.

        Raises:
            DataError: hosts have read other rows, or have other settings.
        """
        for name in self.there.keys() - {shard.name for shard in self.shards}:
            self.begin()
            for file in (self.folder / name, sizes_path(self.folder / name)):
                file.unlink(missing_ok=True)
        own = dataclasses.replace(self.wanted, shards=tuple(self.shards))
        if self._lock is None:
            own.write(self.folder)
            (self.folder / UNFINISHED).unlink(missing_ok=True)
            return Prepared(own, self.written)
        write_file(self.home / PART, dumps(Part(manifest=own, rows=self._rows)).encode())
        self._lock.release()
        return self._collect(own)

    def _collect(self, own: Manifest) -> Prepared:
        """Write the manifest of all hosts if this one is the last to finish.

        Two that finish at the same time may both do so: they write the same.
        """
        parts = dict(_parts(self.folder, self.host.count))
        waiting = tuple(index for index in range(self.host.count) if index not in parts)
        if not waiting:
            whole = _joined(self.folder, parts)
            self._save_tokenizer(self.folder)
            whole.write(self.folder)
            remove_tree(self.folder / HOSTS)
            return Prepared(whole, self.written)
        if (self.folder / MANIFEST).is_file():  # all had finished before this call, or the last of them was faster
            whole = load_manifest(self.folder / MANIFEST)
            if {shard.name: shard.rows for shard in whole.shards} == self._rows:
                remove_tree(self.home)
                with contextlib.suppress(OSError):
                    self.home.parent.rmdir()
                return Prepared(whole, self.written)
        return Prepared(own, self.written, waiting)


def _parts(folder: Path, count: int) -> Iterator[tuple[int, Part]]:
    """Yield the numbers of the hosts that have finished, with their parts.

    Raises:
        DataError: a damaged file.
    """
    for index in range(count):
        file = Host(index, count).home(folder) / PART
        try:
            yield index, from_data(Part, json.loads(read_document(file)), "part")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, HeadjaxError) as error:
            raise DataError(f"{file}: broken: {' '.join(str(error).split())}") from None


def _joined(folder: Path, parts: Mapping[int, Part]) -> Manifest:
    """Return the manifest of all hosts.

    Raises:
        DataError: they do not fit, or a split has no examples.
    """
    first = parts[0]
    for index, part in parts.items():
        _check_same(Host(index, len(parts)).home(folder), part.manifest, first.manifest, (*SETTINGS, "versions"))
        if part.rows != first.rows:
            names = {**first.rows, **part.rows}
            name = next(name for name in names if part.rows.get(name) != first.rows.get(name))
            said = f"{folder}: hosts 0 and {index} have read different rows, first of {name}"
            raise DataError(f"{said}; give all hosts the same files")
    shards = {shard.name: shard for part in parts.values() for shard in part.manifest.shards}
    whole = dataclasses.replace(first.manifest, shards=tuple(shards[name] for name in first.rows))
    for split in dict.fromkeys(shard.split for shard in whole.shards):
        if not whole.counts(split)["examples"]:
            raise DataError(f"{whole.source or whole.task}: the split {split} has no examples")
    return whole


def _number(name: str) -> int:
    """Return the number of a shard by its name."""
    return int(name.partition("-")[2].partition(".")[0])


def _is_whole(folder: Path, shard: Shard) -> bool:
    try:
        return len(ShardRecords([folder / shard.name], [shard.examples]).sizes()) == shard.examples
    except DataError:
        return False


def _check_same(folder: Path, before: Manifest, wanted: Manifest, fields: tuple[str, ...] = SETTINGS) -> None:
    for field in fields:
        old, new = getattr(before, field), getattr(wanted, field)
        if old != new:
            raise DataError(f"{folder}: holds another preparation, {_change(field, old, new)}; choose another")


def _change(field: str, old: object, new: object) -> str:
    """Return the difference between two settings in words: of a form or of versions, the first part that differs."""
    if not isinstance(old, str | int) and not isinstance(new, str | int):
        before, now = to_data(old), to_data(new)
        field = next((name for name in {**before, **now} if before.get(name) != now.get(name)), field)
        old, new = before.get(field), now.get(field)
    return f"{field} was {old!r} and is {new!r} now"
