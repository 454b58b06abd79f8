"""The safetensors files of a directory, single or sharded: names and shapes at once, data when asked for."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from headjax.core.errors import CheckpointError
from headjax.storage.files import read_document
from headjax.storage.paths import copy_file, is_bucket

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


class StoredTensor(NamedTuple):
    """The file of a tensor, its type as the format names it, and its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


class SafetensorsFiles:
    """The tensors of a directory by name, each read from a memory map, which is closed so that no pages stay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: dict[str, StoredTensor] = {}
        self._copies: dict[Path, Path] = {}
        if (directory / SINGLE).is_file():
            self.source = directory / SINGLE
            self.entries = self._header(self.source)
        elif (directory / INDEX).is_file():
            self.source = directory / INDEX
            for shard in sorted(set(_weight_map(self.source).values())):
                self.entries |= self._header(directory / shard)
        else:
            raise CheckpointError(_nothing_to_read(directory))

    def dtype(self, name: str) -> np.dtype:
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise CheckpointError(f"{entry.file}: {name} is of type {entry.dtype}; readable: {', '.join(DTYPES)}")
        return DTYPES[entry.dtype]

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's data in a new array."""
        self.dtype(name)
        with self._opened(self.entries[name].file) as file:
            return file.get_tensor(name)

    def _header(self, file: Path) -> dict[str, StoredTensor]:
        with self._opened(file) as opened:
            tensors = ((name, opened.get_slice(name)) for name in opened.keys())  # noqa: SIM118
            return {name: StoredTensor(file, tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in tensors}

    @contextlib.contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        """Open a file with the safetensors library, which checks its header and length."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(self._local(file)), framework="np") as opened:
                yield opened
        except FileNotFoundError:
            raise CheckpointError(f"{file}: missing") from None
        except (SafetensorError, OSError, ValueError) as error:
            message = " ".join(str(error).split())
            raise CheckpointError(f"{file}: not a readable safetensors file ({message})") from None

    def _local(self, file: Path) -> Path:
        """Return the file, or its copy on this machine where it lies in a bucket."""
        if not is_bucket(file):
            return file
        if file not in self._copies:
            folder = tempfile.mkdtemp(prefix="headjax-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._copies[file] = Path(folder, file.name)
            copy_file(file, self._copies[file])
        return self._copies[file]


def write_safetensors(
    path: Path, entries: Mapping[str, np.ndarray | jax.ShapeDtypeStruct], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Write the safetensors library's file byte by byte, each tensor as it comes: one at a time is in memory."""
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
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in tensors:
            file.seek(8 + len(text) + places[name])
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            del array
        file.truncate(8 + len(text) + end)


def shorten(names: Iterable[str], most: int = 6) -> str:
    """Return the names as one readable list: all of them, or the first few and the number of the others."""
    names = list(names)
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index gives it."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        names: dict[str, str] = json.loads(read_document(index))["weight_map"]
        if names and all(isinstance(shard, str) for shard in names.values()):
            return names
    raise CheckpointError(f"{index}: not an index of safetensors files (no weight_map)")


def _nothing_to_read(directory: Path) -> str:
    """Return the message about a directory without safetensors."""
    if not directory.is_dir():
        return f"{directory}: not a directory"
    pickles = [name for name in PICKLES if (directory / name).is_file()]
    if pickles:
        return (
            f"{directory / pickles[0]}: a pickle, which can run code when read; convert it once where PyTorch is: "
            "AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR), with the class of the model's task"
        )
    return f"{directory}: has neither {SINGLE} nor {INDEX}"
