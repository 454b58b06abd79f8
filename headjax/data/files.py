"""Files of data: the folders of data sets, the files of a path, the lines of a file, and files of the Hugging Face Hub.

A path of the Hugging Face Hub, `hf://datasets/USER/NAME/FILE`, has the methods of `pathlib.Path` that read. Files are
listed once by a process, at the commit that the revision then has, and downloaded into the Hub's own cache (`HF_HOME`)
when they are read.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar, cast
from urllib.parse import unquote

from headjax.core.errors import DataError, HeadjaxError
from headjax.storage.files import first_line, opened, reading
from headjax.storage.paths import matches, path_of

ROOT = "HEADJAX_DATA"
"""Environment variable that names the folder in which data sets are looked for."""

TEXT_SUFFIXES = (".md", ".txt")
"""Suffixes of the files that are read when a folder of texts is named."""


T = TypeVar("T")


def source_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of data to read: of `path_of`, or `hf://datasets/USER/NAME/FILE` on the Hugging Face Hub."""
    if os.fspath(path).startswith(SCHEME):
        return cast(Path, HubPath(path))
    return path_of(path).expanduser()


def local_file(file: Path) -> str:
    """Return the name of a file for libraries that open files themselves; one on the Hub is downloaded."""
    return str(file.local() if isinstance(file, HubPath) else file)


def search(
    task: str, path: str, names: Sequence[str], find: Callable[[Path], T | None], wanted: str = "its files"
) -> T:
    """Return what is found first in the folders that may hold a data set.

    Args:
        task: name of the data set.
        path: its folder; empty for the folders of `names` under the one that `ROOT` names.
        names: names of folders.
        find: returns what it finds in a folder; None if nothing.
        wanted: what is looked for, in words.

    Raises:
        DataError: nothing is found.
    """
    root = os.environ.get(ROOT)
    folders = [source_of(root) / name for name in names] if root else []
    for folder in [source_of(path)] if path else folders:
        found = find(folder)
        if found is not None:
            return found
    if path:
        raise DataError(f"{path}: not a folder of {task}: expected {wanted}")
    if root:
        raise DataError(f"{root}: {ROOT} has no folder {' or '.join(names)} with {wanted}")
    raise DataError(f"{task}: set {ROOT} to the folder that holds {names[0]}, or give that one's path")


def find_files(path: str | Path) -> list[Path]:
    """Return the files that a path stands for, sorted: a file, the text files of a folder, or a pattern's matches.

    Raises:
        DataError: there is no file; the message starts with the path.
    """
    path = source_of(path)
    if path.is_dir():
        files = [file for file in visible(path) if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()]
        if not files:
            raise DataError(f"{path}: no {' or '.join('*' + suffix for suffix in TEXT_SUFFIXES)} file in this folder")
        return sorted(files)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        files = [file for file in _matches(path) if file.is_file()]
        if not files:
            raise DataError(f"{path}: no file matches this pattern")
        return sorted(files)
    raise DataError(f"{path}: no such file or folder")


def packed_or_plain(file: Path) -> Path | None:
    """Return the file, or the one of its name with `.gz`; None if neither is there."""
    return next((one for one in (file, file.with_name(f"{file.name}.gz")) if one.is_file()), None)


def visible(folder: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder, in any order; hidden ones, and those in hidden ones, are left out."""
    for path in folder.rglob("*"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _matches(pattern: Path) -> Iterator[Path]:
    if isinstance(pattern, Path):
        return matches(pattern)
    folder = next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))
    return folder.glob(pattern.relative_to(folder).as_posix())


def read_lines(file: Path) -> Iterator[str]:
    r"""Yield a file's lines as `read_text` has them, each with its `\n` (the last one may have none).

    Raises:
        DataError: an error that `read_text` would raise, once its line is reached.
    """
    offset = 0
    blank: list[str] | None = []  # lines before the first with text
    with reading(file), opened(file) as stream:
        for number, data in enumerate(stream, start=1):
            if b"\0" in data:
                raise DataError(f"{file}: binary, not text: zero byte at offset {offset + data.index(0)}")
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                at = f"line {number}, byte offset {offset + error.start}"
                raise DataError(f"{file}: {at}: not UTF-8 ({error.reason})") from None
            line = line.removeprefix("\ufeff") if number == 1 else line
            line = f"{line[:-2]}\n" if line.endswith("\r\n") else line
            offset += len(data)
            if blank is None:
                yield line
            elif line.strip():
                yield from (*blank, line)
                blank = None
            else:
                blank.append(line)
    if blank is not None:
        raise DataError(f"{file}: empty, there is no text in it")


def count_lines(file: Path) -> int:
    """Return the number of lines that `read_lines` yields, without decoding them.

    Raises:
        DataError: a file that cannot be read.
    """
    lines, last = 0, b"\n"
    with reading(file), opened(file) as stream:
        while data := stream.read(2**20):
            lines, last = lines + data.count(b"\n"), data[-1:]
    return lines + (last != b"\n")


# The Hugging Face Hub.

SCHEME = "hf://"
"""Beginning of the address of a repository on the Hub."""

EXPECTED = f"{SCHEME}datasets/USER/NAME/FILE (NAME@REVISION for another revision than main)"

SECONDS = 10.0
"""Time in which the Hub must answer."""


class HubPath(PurePosixPath):
    """A path `hf://datasets/USER/NAME[@REVISION]/FILE`.

    Its methods raise `DataError` if the Hub cannot be reached or has no such data set, and `HeadjaxError` if
    `huggingface_hub` is not installed.
    """

    def __str__(self) -> str:
        return re.sub("^hf:/+", SCHEME, super().__str__())

    def __fspath__(self) -> str:
        return str(self)

    @property
    def _repository(self) -> tuple[str, str | None]:
        """Name and revision of the data set."""
        if len(self.parts) < 4 or self.parts[1] != "datasets":
            raise DataError(f"{self}: not a data set on the Hub; expected {EXPECTED}")
        name, _, revision = self.parts[3].partition("@")
        return f"{self.parts[2]}/{name}", unquote(revision) or None

    @property
    def _top(self) -> HubPath:
        return type(self)(*self.parts[:4])

    @property
    def _inside(self) -> str:
        """Path within the data set."""
        return "/".join(self.parts[4:])

    def _snapshot(self) -> tuple[str, frozenset[str]]:
        """Return the data set's commit, and the paths of its files within it."""
        return _snapshot_of(*self._repository, os.environ.get("HF_ENDPOINT"))

    def _below(self) -> Iterator[str]:
        """Yield the paths within the data set of the files below this folder, sorted."""
        beginning = f"{self._inside}/" if self._inside else ""
        return (file for file in sorted(self._snapshot()[1]) if file.startswith(beginning))

    def exists(self) -> bool:
        """Return whether there is a file of this name, or one below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether there is a file of this name."""
        return self._inside in self._snapshot()[1]

    def is_dir(self) -> bool:
        """Return whether there is a file below this name."""
        return next(self._below(), None) is not None

    def iterdir(self) -> Iterator[HubPath]:
        """Yield files and folders right below this one, sorted."""
        depth = len(self.parts) - 4
        yield from (self / name for name in dict.fromkeys(file.split("/")[depth] for file in self._below()))

    def rglob(self, pattern: str) -> Iterator[HubPath]:
        """Yield the files below this folder whose names match a pattern, sorted."""
        files = (self._top / file for file in self._below())
        yield from (file for file in files if fnmatch.fnmatchcase(file.name, pattern))

    def glob(self, pattern: str) -> Iterator[HubPath]:
        """Yield the files below this folder that match a pattern, sorted; `**` stands for any folders."""
        from fsspec.utils import glob_translate  # which the Hub's library needs, too

        wanted = re.compile(glob_translate(f"{self._inside}/{pattern}" if self._inside else pattern))
        yield from (self._top / file for file in self._below() if wanted.match(file))

    def local(self) -> Path:
        """Return the file in the Hub's cache on this machine, downloaded if it is not there.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        from huggingface_hub import hf_hub_download

        name, commit = self._repository[0], self._snapshot()[0]
        endpoint = os.environ.get("HF_ENDPOINT")
        try:
            file = hf_hub_download(name, self._inside, repo_type="dataset", revision=commit, endpoint=endpoint)
        except Exception as error:
            raise DataError(f"{self}: cannot be downloaded ({first_line(error)})") from None
        return Path(file)

    def stat(self) -> os.stat_result:
        """Return size and times of the file on this machine."""
        return self.local().stat()

    def open(self, mode: str = "r", *options: Any, **named: Any) -> IO[Any]:
        """Open the file to read it."""
        return self.local().open(mode, *options, **named)

    def read_bytes(self) -> bytes:
        """Return the file's bytes."""
        return self.local().read_bytes()


@functools.cache
def _snapshot_of(name: str, revision: str | None, endpoint: str | None) -> tuple[str, frozenset[str]]:
    """Ask the Hub for the files of a data set.

    Raises:
        HeadjaxError: `huggingface_hub` is not installed.
        DataError: the Hub has no such data set or revision, or cannot be reached.
    """
    address = f"{SCHEME}datasets/{name}" + (f"@{revision}" if revision else "")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise HeadjaxError(
            f"{address}: the Hub's data sets need {error.name}: pip install '.[data]' from a checkout"
        ) from None
    disable_progress_bars()
    try:
        found = HfApi(endpoint=endpoint).dataset_info(name, revision=revision, timeout=SECONDS)
    except RevisionNotFoundError:
        raise DataError(f"{address}: the data set has no such revision") from None
    except GatedRepoError:
        raise DataError(f"{address}: the Hub asks for consent to its terms, and for your token in HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise DataError(f"{address}: no such data set, or not one of yours (HF_TOKEN holds your token)") from None
    except Exception as error:
        raise DataError(f"{address}: the Hub cannot be reached ({first_line(error)})") from None
    return str(found.sha), frozenset(file.rfilename for file in found.siblings or ())
