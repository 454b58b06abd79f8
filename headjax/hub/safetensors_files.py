"""The safetensors files of a directory, single or sharded: names and shapes at once, data when asked for."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from headjax.core.errors import CheckpointError, DataError, ParameterError
from headjax.storage.files import check_links, read_document
from headjax.storage.paths import is_bucket

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Types of tensors that can be read, by the format's names. Ignored buffers may have any type."""

WRITTEN = ("F32", "BF16", "F16")
"""The types in the order in which the safetensors library writes their tensors."""

LARGEST_HEADER = 10**8
"""Bytes of a header that the safetensors library reads at most."""

_ALIGNMENT = 64
"""Alignment in bytes at which XLA takes over a host buffer without a copy."""


class StoredTensor(NamedTuple):
    """The place of a tensor's data.

    Attributes:
        file: the file.
        dtype: type, as the format names it.
        shape: shape.
        start, stop: first byte in the file, and the byte behind the last.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFiles:
    """The tensors of a directory by name.

    Headers are read at once. `read` reads one tensor straight from the file and not through a memory map, so that no
    pages of the file stay in memory beside the arrays.
    """

    def __init__(self, directory: Path) -> None:
        """Read the headers.

        Raises:
            CheckpointError: there are no safetensors, or a file or the index is broken; the message starts with the
                file. A link leads out of the directory.
        """
        check_links(directory, (SINGLE, INDEX))
        self.directory = directory
        self.entries: dict[str, StoredTensor] = {}
        if (directory / SINGLE).is_file():
            self.source = directory / SINGLE
            self.entries = _header(self.source)
        elif (directory / INDEX).is_file():
            self.source = directory / INDEX
            self._read_index()
        else:
            raise CheckpointError(_nothing_to_read(directory))

    def _read_index(self) -> None:
        names = _weight_map(self.source)
        for shard in sorted(set(names.values())):
            file = _inside(self.directory, shard, self.source)
            header = _header(file)
            claimed = {name for name, home in names.items() if home == shard}
            wrong = sorted(claimed.symmetric_difference(header))
            if wrong:
                raise CheckpointError(f"{self.source}: it disagrees with {shard} about {shorten(wrong)}")
            self.entries |= header

    def dtype(self, name: str) -> np.dtype:
        """Return the type of a tensor.

        Raises:
            CheckpointError: the type is not in `DTYPES`.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise CheckpointError(f"{entry.file}: {name} is of type {entry.dtype}; readable: {', '.join(DTYPES)}")
        return DTYPES[entry.dtype]

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's data in a new array."""
        entry = self.entries[name]
        array = aligned_empty(entry.shape, self.dtype(name))
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.start)
            target = memoryview(array.reshape(-1).view(np.uint8).data)
            while target:
                count = file.readinto(target)
                if not count:
                    raise CheckpointError(f"{entry.file}: ends within {name}; truncated?")
                target = target[count:]
        return array


def write_safetensors(
    path: Path, entries: Mapping[str, np.ndarray | jax.ShapeDtypeStruct], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Write one file that `transformers` reads.

    Each tensor is written to its place as it comes and dropped then, so that one at a time is in memory. In any order
    the file is the same, byte by byte, which is that of the safetensors library.

    Args:
        path: the file.
        entries: type and shape of every tensor by name.
        tensors: each name once, with its data.
    """
    kinds = {DTYPES[kind]: kind for kind in WRITTEN}
    order = sorted(entries, key=lambda name: (WRITTEN.index(kinds[np.dtype(entries[name].dtype)]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places, end = {}, 0
    for name in order:
        dtype, shape = np.dtype(entries[name].dtype), entries[name].shape
        places[name], end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kinds[dtype], "shape": list(shape), "data_offsets": [places[name], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        _write_all(file, len(text).to_bytes(8, "little") + text)
        for name, array in tensors:
            file.seek(8 + len(text) + places.pop(name))
            _write_all(file, _contiguous(array).reshape(-1).view(np.uint8).data)
            del array
        file.truncate(8 + len(text) + end)
    if places:
        raise ParameterError(f"{path}: no data of {shorten(places)}")


def _write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    """Write bytes to a file, of which the system takes at most 2 GiB at once."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array with its numbers in row-major order."""
    if array.flags.c_contiguous:
        return array
    buffer = np.empty(array.shape, array.dtype)
    copy_into(buffer, array)
    return buffer


_BLOCK = 16
"""Rows of a matrix that are transposed at once, of 8, 16, 32 and 64 the number that took the least processor time."""


def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into a contiguous one of its shape.

    A transposed matrix, whose dimensions may each be split, goes block by block. NumPy would walk along the columns of
    the whole matrix, and find hardly any number in the processor's cache.
    """
    count = source.ndim
    for split in range(1, count):
        turned = source.transpose(*range(split, count), *range(split))
        if turned.flags.c_contiguous and not source.flags.c_contiguous:
            rows = math.prod(source.shape[:split])
            matrix, wanted = turned.reshape(-1, rows), target.reshape(rows, -1)
            for start in range(0, len(matrix), _BLOCK):
                wanted[:, start : start + _BLOCK] = matrix[start : start + _BLOCK].T
            return
    target[...] = source


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array that XLA can take over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def shorten(names: Iterable[str], most: int = 6) -> str:
    """Return the names as one readable list: all of them, or the first few and the number of the others."""
    names = list(names)
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def _header(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file, after the safetensors library has checked its header and length."""
    from safetensors import SafetensorError, safe_open

    try:
        with _of_this_size(file) as checked, safe_open(str(checked), framework="np"):
            pass
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size), object_pairs_hook=_without_twins)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file ({' '.join(str(error).split())})") from None
    begin = 8 + size
    return {
        name: StoredTensor(
            file, entry["dtype"], tuple(entry["shape"]), *(begin + offset for offset in entry["data_offsets"])
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose keys are all different, as the format demands; readers take either of two."""
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"{key!r} is there twice")
        entries[key] = value
    return entries


@contextlib.contextmanager
def _of_this_size(file: Path) -> Iterator[Path]:
    """Yield a file of this machine with the header and the size of a file, which the library can check.

    That of a bucket is one with a hole in place of the tensors.

    Raises:
        OSError: the file cannot be read.
    """
    if not is_bucket(file):
        yield file
        return
    with file.open("rb") as opened:
        start = opened.read(8)
        header = opened.read(min(int.from_bytes(start, "little"), LARGEST_HEADER))
    with tempfile.TemporaryDirectory(prefix="headjax-") as folder:
        hollow = Path(folder) / file.name
        hollow.write_bytes(start + header)
        os.truncate(hollow, file.stat().st_size)
        yield hollow


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index gives it."""
    try:
        names = json.loads(read_document(index))["weight_map"]
        shards = {str(name): shard for name, shard in names.items()}
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{index}: not an index of safetensors files (no weight_map)") from None
    if not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(f"{index}: weight_map must name a file for every tensor")
    return shards


def _inside(directory: Path, name: str, index: Path) -> Path:
    """Return the file of this name, which must be in the directory itself."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or path.suffix != ".safetensors":
        raise CheckpointError(f"{index}: {name!r} is not a safetensors file inside the directory")
    check_links(directory, (name,))
    return directory / path


def _nothing_to_read(directory: Path) -> str:
    """Return the message about a directory without safetensors."""
    if not directory.is_dir():
        return f"{directory}: not a directory"
    pickles = [name for name in PICKLES if (directory / name).is_file()]
    if pickles:
        return (
            f"{directory / pickles[0]}: a pickle, which can run code when read; convert it once where PyTorch is: "
            f"AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes {SINGLE}, with the class of the model's "
            "task in place of AutoModel"
        )
    return f"{directory}: has neither {SINGLE} nor {INDEX}"
