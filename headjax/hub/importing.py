"""Hugging Face directories in: strictly matched, each tensor read into the buffer that becomes the array."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from headjax.core.errors import ConfigError, ParameterError
from headjax.core.memory import check_memory, memory_of
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params, Tensors, flatten, map_tensors
from headjax.hub.companions import model_type_of, read_companions
from headjax.hub.families import FAMILIES, REMOTE
from headjax.hub.family import BUFFERS, Family
from headjax.hub.fields import Fields
from headjax.hub.rules import BoundRule, bind
from headjax.hub.safetensors_files import SafetensorsFiles, shorten
from headjax.hub.sentences import pipeline_config, read_cased, read_maps, transformer_folder
from headjax.mesh.rules import shardings
from headjax.models.config import ModelConfig
from headjax.models.model import Model, history_entry
from headjax.models.tasks import SentenceSimilarity
from headjax.storage.paths import source_of
from headjax.tokenizers.files import digest, read_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer

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
        mesh: place the parameters on this mesh by the sharding rules; None is one device.
        dtype: `float32`, `bfloat16` or `float16` to convert to; None keeps each tensor's type.
        progress: shows what is read.

    Raises:
        CheckpointError: a file is missing, broken or not safetensors; the message starts with the file.
        ConfigError: `config.json` names no known family, or a field has a value that is not supported; the message
            names the file and the field. The arrays cannot fit into memory.
        ParameterError: tensors are missing, left over or of another shape than the config gives.
    """
    folder = source_of(directory)
    model_folder = transformer_folder(folder)
    files = SafetensorsFiles(model_folder)
    fields = Fields.load(model_folder, files.entries)
    fields = (family := family_of(fields, family)).own(fields)
    config, companions = read_config(family, fields), read_companions(folder)
    full_config = pipeline_config(config, folder, companions, fields.data)
    bound = match(family, config, files)
    params = _load_params(str(directory), config.tensors(), bound, files, mesh, dtype, progress)
    # The demo's files are what AutoTokenizer reads of them, and a first example should not wait for transformers.
    tokenizer = Tokenizer.load(model_folder) if model_folder == DEMO else read_tokenizer(model_folder)
    tokenizer = read_cased(folder, companions, tokenizer)
    entry = history_entry(
        "import",
        family=family.model_type,
        source=str(directory),
        tensors=len(bound),
        bytes=sum(array.nbytes for array in flatten(params).values()),
        config=dict(fields.data),
        tokenizer=digest(tokenizer, model_type_of(model_folder)),
    )
    if isinstance(getattr(full_config, "task", None), SentenceSimilarity):  # with maps behind the pooling
        tensors: Tensors = full_config.tensors().get("output", {})
        maps, places = read_maps(folder, tensors), {} if mesh is None else flatten(shardings(tensors, mesh))
        arrays = {path: np.array(array, dtype, order="C") for path, array in maps.items()}
        params["output"] = map_tensors(lambda path, _: _placed(arrays[path], places.get(path)), tensors)
    return Model(full_config, params, (entry,), tokenizer, companions)


def demo_model() -> Model:
    """Return a decoder with about a million parameters, trained on the source code of Python's standard library.

    The model has 4 layers of 8 heads and 256 positions. `headjax/hub/demo/README.md` is its model card.

        >>> print(headjax.demo_model())
        Model: decoder, width 128, output tied
          heads: decoder 32 in 4 layers
          parameters: 1,088,256 (float32)
          tokenizer: yes; history: import
    """
    return from_huggingface(DEMO, dtype="float32")


def config_of(directory: str | Path) -> ModelConfig:
    """Return the architecture of a Hugging Face directory; no tensor is read."""
    folder = source_of(directory)
    place = transformer_folder(folder)
    fields = Fields.load(place, SafetensorsFiles(place).entries)
    config = read_config(family_of(fields), fields)
    return pipeline_config(config, folder, read_companions(folder), fields.data)


def family_of(fields: Fields, family: str | Family | None = None) -> Family:
    """Return the family that a `config.json` names, or of several models in it the one asked for."""
    name, families = fields.text("model_type"), (family,) if isinstance(family, Family) else (*FAMILIES, *REMOTE)
    fitting = [each for each in families if name in (each.model_type, each.inside and each.inside[0])]
    chosen = [each for each in fitting if family in (None, each, each.model_type)]
    if len(chosen) == 1:
        return chosen[0]
    if fitting:
        hint = f"not as {family}" if family else "say which by family, or --family of headjax import"
        types = " or ".join(each.model_type for each in fitting)
        raise fields.error("model_type", f"{name!r} is read as {types}; {hint}")
    known = ", ".join(each.model_type for each in families)
    hint = "docs/huggingface.md tells how to add one"
    raise fields.error("model_type", f"{name!r} is not a known family; known: {known}; {hint}")


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
        canonical = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)  # as converted from TensorFlow
        canonical = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", canonical)
        if canonical not in known and family.prefix + canonical in known:
            canonical = family.prefix + canonical
        if canonical in known and canonical not in actual:
            actual[canonical] = name
        elif not any(re.fullmatch(pattern, name) for pattern in (BUFFERS, *family.ignored)):
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
        name = actual[entry.theirs]
        file, _, shape = files.entries[name]
        if shape != entry.shape:
            raise ParameterError(f"{file}: {name} has shape {list(shape)}, config.json gives {list(entry.shape)}")
    for copy, original in copies.items():
        if copy in actual and not np.array_equal(files.read(actual[copy]), files.read(actual[original])):
            file, differs = files.entries[actual[copy]].file, f"{actual[copy]} differs from {actual[original]}"
            raise ParameterError(f"{file}: {differs}; the config says that they are one tensor")
    return [entry._replace(theirs=actual[entry.theirs]) for entry in bound]


def _load_params(
    directory: str,
    tensors: Tensors,
    bound: Iterable[BoundRule],
    files: SafetensorsFiles,
    mesh: Mesh | None,
    dtype: str | None,
    progress: Progress,
) -> Params:
    """Return the declared parameters; beside them at most one tensor of the file and one array are held."""
    # Of each of our tensors, for each of its layers: its number, the tensor of the file, and which part of that it is.
    pieces: dict[str, list[tuple[int | None, BoundRule, int]]] = defaultdict(list)
    for rule in bound:
        for part, place in enumerate(rule.ours):
            pieces[place.path].append((place.layer, rule, part))
    kinds: dict[str, np.dtype] = {}
    for path, rules in pieces.items():
        smallest = jax.numpy.result_type(*{files.dtype(rule.theirs) for _, rule, _ in rules})  # that holds all layers
        kinds[path] = np.dtype(jax.numpy.dtype(dtype) if dtype else smallest)
    sizes = (tensor.size * kinds[path].itemsize for path, tensor in flatten(tensors).items())
    check_memory(directory, sum(sizes), memory_of(mesh), "its arrays")
    placed = {} if mesh is None else flatten(shardings(tensors, mesh))
    with progress("reading", len(pieces), "arrays") as update:
        numbers = itertools.count(1)

        def load(path: str, tensor: nnx.Param[Any]) -> jax.Array:
            buffer = np.empty(tensor.shape, kinds[path])
            for layer, rule, part in pieces[path]:
                name, target = rule.theirs, buffer if layer is None else buffer[layer, ...]
                with np.errstate(over="ignore"):  # a number beyond the array's type becomes infinite
                    target[...] = rule.form.load(files.read(name), rule.tensors, part)
                if not np.isfinite(np.asarray(target)).all():
                    what = f"{name} holds values that are NaN or infinite as {kinds[path]}"
                    raise ParameterError(f"{files.entries[name].file}: {what}")
            update(next(numbers), {})
            return _placed(buffer, placed.get(path))

        return map_tensors(load, tensors)


def _placed(buffer: np.ndarray, sharding: NamedSharding | None) -> jax.Array:
    if sharding is None:  # arrays that belong to no mesh compute on any one that is set later
        return jax.device_put(buffer)
    return jax.make_array_from_callback(buffer.shape, sharding, lambda index: buffer[index])
