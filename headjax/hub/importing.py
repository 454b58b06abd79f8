"""Hugging Face directories in: strictly matched, each tensor read once into the buffers that become the arrays."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from headjax.core import history
from headjax.core.errors import ConfigError, HeadjaxError, ParameterError
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params, Tensors, all_finite, flatten, map_tensors
from headjax.hub.companions import read_companions
from headjax.hub.families import FAMILIES, REMOTE
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.rules import BoundRule, bind
from headjax.hub.safetensors_files import SafetensorsFiles, shorten
from headjax.hub.sentences import bound_maps, embedding_config, read_cased
from headjax.mesh.memory import check_arrays, memory_of
from headjax.mesh.rules import shardings
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.storage.hub import source_of
from headjax.tokenizers.files import read_tokenizer

_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Endings of names that the first conversions from TensorFlow gave, with today's endings."""

# Resolved, since some installers link every file of a package to their store, where the files are together.
DEMO = Path(__file__).resolve().parent / "demo"
"""The small decoder that headjax carries: its Hugging Face directory, with weights in bfloat16 and a model card."""


def from_huggingface(
    directory: str | Path,
    *,
    family: str | Family | None = None,
    mesh: Mesh | None = None,
    dtype: str | None = None,
    progress: Progress = silent,
) -> Model:
    """Read a Hugging Face directory: `config.json`, safetensors (one file or shards) and tokenizer files.

    The model computes the same as the `transformers` class named in `architectures`. Tensors keep their type. A
    tensor that the model lacks, or that the directory lacks, is an error; nothing is guessed. The model's history keeps
    the `config.json`, so that `to_huggingface` can write back fields that mean nothing here.

        >>> headjax.from_huggingface("headjax/hub/demo").config.width
        128

    Args:
        directory: the directory, or `hf://USER/NAME` of the Hugging Face Hub.
        family: reads the directory as this family; None is the one that `model_type` names. Of CLIP's pair,
            `clip_text_model` or `clip_vision_model` is read. A family of your own goes here (docs/huggingface.md,
            "Adding a family").
        mesh: place the parameters on this mesh by the sharding rules, each device reading its own parts; None is one
            device.
        dtype: `float32`, `bfloat16` or `float16` to convert to; None keeps each tensor's type.
        progress: shows what is read.

    Raises:
        CheckpointError: a file is missing, broken or not safetensors; the message starts with the file.
        ConfigError: `config.json` names no known family, or a field has a value that is not supported; the message
            names the file and the field. The arrays cannot fit into memory.
        ParameterError: tensors are missing, left over or of another shape than the config gives.
    """
    folder = source_of(directory)
    files = SafetensorsFiles(folder)
    fields = Fields.load(folder, files.entries)
    family = family_of(fields, family)
    fields = family.own(fields)
    config, companions = read_config(family, fields), read_companions(folder)
    whole = embedding_config(config, folder, companions)
    bound = match(family, config, files)
    pieces = _by_array(bound)
    kinds = {path: _kind(own, files, dtype) for path, own in pieces.items()}
    sizes = (tensor.size * kinds[path].itemsize for path, tensor in flatten(config.tensors()).items())
    check_arrays(str(directory), sizes, memory_of(mesh))
    params = _load_params(config.tensors(), pieces, files, mesh, kinds, progress)
    entry = history.entry(
        "import",
        family=family.model_type,
        source=str(directory),
        tensors=len(bound),
        bytes=sum(array.nbytes for array in flatten(params).values()),
        config=dict(fields.data),
    )
    if whole is not config:
        params = {**params, "output": _load_maps(folder, whole.tensors(), mesh, dtype, progress)}
    return Model(whole, params, (entry,), read_cased(folder, companions, read_tokenizer(folder)), companions)


def demo_model() -> Model:
    """Return a decoder with about a million parameters, trained on the source code of Python's standard library.

    The model has 4 layers of 8 heads and 256 positions. `headjax/hub/demo/README.md` is its model card.

        >>> print(headjax.demo_model())
        Model: decoder, width 128, output tied
          heads: decoder 32 in 4 layers
          parameters: 1,088,256 (float32)
          tokenizer: yes; history: import

    Raises:
        HeadjaxError: this installation of headjax has no weights.
    """
    if not (DEMO / "model.safetensors").is_file():
        raise HeadjaxError(f"{DEMO}: this installation of headjax carries no weights; install it again")
    return from_huggingface(DEMO, dtype="float32")


def config_of(directory: str | Path) -> ModelConfig:
    """Return the architecture of a Hugging Face directory; no tensor is read."""
    folder = source_of(directory)
    fields = Fields.load(folder, SafetensorsFiles(folder).entries)
    config = read_config(family_of(fields), fields)
    return embedding_config(config, folder, read_companions(folder))


def family_of(fields: Fields, asked: str | Family | None = None) -> Family:
    """Return the family that a `config.json` names, or of several models in it the one asked for."""
    name, families = fields.text("model_type"), (asked,) if isinstance(asked, Family) else (*FAMILIES, *REMOTE)
    fitting = [family for family in families if name in (family.model_type, family.inside and family.inside[0])]
    chosen = [family for family in fitting if asked in (None, family, family.model_type)]
    if len(chosen) == 1:
        return chosen[0]
    if fitting:
        said = f"not as {asked}" if asked else "say which by family, or --family of headjax import"
        kinds = " or ".join(family.model_type for family in fitting)
        raise fields.error("model_type", f"{name!r} is read as {kinds}; {said}")
    known = ", ".join(family.model_type for family in families)
    more = "docs/huggingface.md tells how to add one"
    raise fields.error("model_type", f"{name!r} is not a known family; known: {known}; {more}")


def read_config(family: Family, fields: Fields) -> ModelConfig:
    """Return the architecture that a `config.json` describes."""
    try:
        return family.read(fields)
    except ConfigError as error:
        if str(error).startswith(str(fields.file)):
            raise
        raise ConfigError(f"{fields.file}: {error}") from None


def match(family: Family, config: ModelConfig, files: SafetensorsFiles) -> list[BoundRule]:
    """Return every tensor of a model with its name in the files."""
    bound = bind(family.tensor_rules(config), config, family.model_type)
    expected = {entry.theirs for entry in bound}
    copies = {copy: first for copy, first in family.repeated(config) if first in expected and copy not in expected}
    known = expected | set(copies)
    actual: dict[str, str] = {}
    extra = []
    for name in sorted(files.entries):
        canonical = _canonical(name, known, family.prefix)
        if canonical in known and canonical not in actual:
            actual[canonical] = name
        elif not any(re.fullmatch(pattern, name) for pattern in family.ignored):
            extra.append(name)
    for copy, original in copies.items():
        if copy in actual and original not in actual:
            actual[original] = actual.pop(copy)
    missing = sorted(expected - set(actual))
    if missing or extra:
        what = [f"missing {shorten(missing)}"] if missing else []
        what += [f"left over {shorten(extra)}"] if extra else []
        raise ParameterError(f"{files.source}: not the tensors of {family.class_names(config)[0]}: {'; '.join(what)}")
    for entry in bound:
        found = files.entries[actual[entry.theirs]]
        if found.shape != entry.shape:
            raise ParameterError(
                f"{found.file}: {actual[entry.theirs]} has shape {list(found.shape)}, "
                f"config.json gives {list(entry.shape)}"
            )
    for copy, original in copies.items():
        if copy in actual:
            _check_copy(files, actual[copy], actual[original])
    return [entry._replace(theirs=actual[entry.theirs]) for entry in bound]


def _canonical(name: str, known: Collection[str], prefix: str) -> str:
    """Return the name that a model with a task has today."""
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return prefix + name if name not in known and prefix + name in known else name


def _check_copy(files: SafetensorsFiles, copy: str, original: str) -> None:
    """Raise `ParameterError` unless both names stand for the same values."""
    one, other = files.entries[copy], files.entries[original]
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    if not same or not np.array_equal(files.read(copy), files.read(original)):
        raise ParameterError(f"{one.file}: {copy} differs from {original}; the config says that they are one tensor")


class _Piece(NamedTuple):
    """One layer of a declared tensor."""

    layer: int | None
    bound: BoundRule
    part: int


Index = tuple[slice, ...]
"""Place of a shard in an array."""

Pieces = Mapping[str, Sequence[_Piece]]
"""Layers of each declared tensor, by its path."""


def _by_array(bound: Iterable[BoundRule]) -> Pieces:
    """Return the pieces of every declared tensor."""
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    for entry in bound:
        for part, place in enumerate(entry.ours):
            pieces[place.path].append(_Piece(place.layer, entry, part))
    return pieces


def _load_params(
    tensors: Tensors,
    pieces: Pieces,
    files: SafetensorsFiles,
    mesh: Mesh | None,
    kinds: Mapping[str, np.dtype],
    progress: Progress,
) -> Params:
    """Return the declared parameters; beside them at most one tensor of the file and one array are held."""
    placed = {} if mesh is None else flatten(shardings(tensors, mesh))
    with progress("reading", len(pieces), "arrays") as update:
        numbers = itertools.count(1)

        def load(path: str, tensor: nnx.Param[Any]) -> jax.Array:
            array = _load(tensor, pieces[path], files, placed.get(path), kinds[path])
            update(next(numbers), {})
            return array

        return map_tensors(load, tensors)


def _load_maps(folder: Path, tensors: Tensors, mesh: Mesh | None, dtype: str | None, progress: Progress) -> Params:
    """Return the weights of the maps of sentence vectors."""
    declared, found = tensors.get("output", {}), {}
    for name, files, bound in bound_maps(folder, declared):
        pieces = _by_array(bound)
        kinds = {path: _kind(own, files, dtype) for path, own in pieces.items()}
        found[name] = _load_params(declared[name], pieces, files, mesh, kinds, progress)
    return found


def _load(
    tensor: nnx.Param[Any],
    pieces: Sequence[_Piece],
    files: SafetensorsFiles,
    sharding: NamedSharding | None,
    kind: np.dtype,
) -> jax.Array:
    everything = (slice(None),) * len(tensor.shape)
    if sharding is None:  # arrays that belong to no mesh compute on any one that is set later
        return jax.device_put(_read(tensor, pieces, files, kind, [everything])[0])
    places = {
        device: everything if index is None else index
        for device, index in sharding.addressable_devices_indices_map(tensor.shape).items()
    }
    shards = {_span(index, tensor.shape): index for index in places.values()}
    parts = _read(tensor, pieces, files, kind, list(shards.values()))
    buffers = dict(zip(shards, parts, strict=True))
    arrays = [jax.device_put(buffers[_span(index, tensor.shape)], device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(tensor.shape, sharding, arrays)


def _kind(pieces: Sequence[_Piece], files: SafetensorsFiles, dtype: str | None) -> np.dtype:
    """Return the type of an array: as asked for, or the smallest that holds all its layers."""
    found = {files.dtype(piece.bound.theirs) for piece in pieces}
    return np.dtype(jax.numpy.dtype(dtype)) if dtype else np.dtype(jax.numpy.result_type(*found))


@np.errstate(over="ignore")  # a number beyond the array's type becomes infinite, which `_finite` finds
def _read(
    tensor: nnx.Param[Any], pieces: Sequence[_Piece], files: SafetensorsFiles, kind: np.dtype, shards: Sequence[Index]
) -> list[np.ndarray]:
    """Return shards of an array, each in a separate buffer; every tensor of the files is read once."""

    def load(piece: _Piece) -> np.ndarray:
        return piece.bound.form.load(files.read(piece.bound.theirs), piece.bound.tensors, piece.part)

    if pieces[0].layer is None:
        value = load(pieces[0])
        return [_finite(np.asarray(value[index], kind, order="C"), pieces[0], files) for index in shards]
    spans = [_span(index, tensor.shape) for index in shards]
    buffers = [np.empty(tuple(stop - start for start, stop in span), kind) for span in spans]
    for piece in pieces:
        value, layer = load(piece), piece.layer or 0
        for buffer, index, (layers, *_) in zip(buffers, shards, spans, strict=True):
            if layers[0] <= layer < layers[1]:
                own = buffer[layer - layers[0], ...]
                own[...] = value[index[1:]]
                _finite(own, piece, files)
        del value
    return buffers


def _finite(value: np.ndarray, piece: _Piece, files: SafetensorsFiles) -> np.ndarray:
    """Return the part of a tensor that was read."""
    if not all_finite(value):
        name = piece.bound.theirs
        raise ParameterError(
            f"{files.entries[name].file}: {name} holds values that are NaN or infinite as {value.dtype}"
        )
    return value


def _span(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
