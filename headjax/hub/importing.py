"""Hugging Face directories in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.errors import ConfigError, ParameterError
from headjax.core.progress import Progress, silent
from headjax.hub.families import FAMILIES
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.loading import load_params
from headjax.hub.rules import Bound, bind
from headjax.hub.safetensors_files import SafetensorsFiles, shorten
from headjax.models.base import SLOTS, Model, ModelConfig
from headjax.tokenizers.files import read_tokenizer

_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
"""Endings that the first conversions from TensorFlow gave, and what they are called since."""


def from_huggingface(
    directory: str | Path,
    *,
    mesh: Mesh | None = None,
    dtype: str | None = None,
    progress: Progress = silent,
) -> Model:
    """The model of a Hugging Face directory: `config.json`, safetensors (one file or shards) and tokenizer files.

    The function is that of the `transformers` class named in `architectures`. Tensors keep their type. Whatever the
    directory holds beyond what the model is made of, or lacks of it, is an error; nothing is guessed. The model's
    history keeps the `config.json`, so that `to_huggingface` can give back fields that mean nothing here.

    Args:
        directory: the directory.
        mesh: place the parameters on this mesh by the sharding rules, each device reading its own parts; None is one
            device.
        dtype: `float32`, `bfloat16` or `float16` to convert to; None keeps each tensor's type.
        progress: shows what is read.

    Raises:
        CheckpointError: a file that is missing, broken or no safetensors; the message starts with it.
        ConfigError: a `config.json` of no known family, or with a field that is not supported.
        ParameterError: tensors that are missing, left over or of another shape than the config gives.
    """
    folder = Path(directory)
    files = SafetensorsFiles(folder)
    fields = Fields.load(folder)
    family = family_of(fields)
    config = read_config(family, fields, files.entries)
    bound = match(family, config, files)
    params = load_params(config.tensors(), bound, files, mesh=mesh, dtype=dtype, progress=progress)
    entry = history.entry(
        "import",
        family=family.model_type,
        source=str(directory),
        tensors=len(bound),
        config=dict(fields.data),
    )
    return Model(config, params, (entry,), read_tokenizer(folder))


def family_of(fields: Fields) -> Family:
    """The family that a `config.json` names.

    Raises:
        ConfigError: none that is known.
    """
    name = fields.text("model_type")
    for family in FAMILIES:
        if family.model_type == name:
            return family
    known = ", ".join(family.model_type for family in FAMILIES)
    raise fields.error("model_type", f"{name!r} is no known family; known: {known}")


def read_config(family: Family, fields: Fields, names: Collection[str]) -> ModelConfig:
    """The architecture that a `config.json` describes, without the heads that its `pruned_heads` lists.

    Raises:
        ConfigError: a field that is missing, malformed or not supported.
    """
    try:
        config = family.read(fields, names)
    except ConfigError as error:
        if str(error).startswith(str(fields.file)):
            raise
        raise ConfigError(f"{fields.file}: {error}") from None
    pruned = fields.group("pruned_heads")
    return _without_heads(family, config, pruned, fields) if pruned else config


def match(family: Family, config: ModelConfig, files: SafetensorsFiles) -> list[Bound]:
    """Every tensor of a model with its name in the files.

    Raises:
        ParameterError: tensors that are missing, left over, wrongly shaped or differ from what they repeat.
    """
    bound = bind(family.rules(config), config, family.model_type)
    expected = {entry.theirs for entry in bound}
    copies = family.copies(config)
    actual = {_canonical(name, expected | set(copies), family.prefix): name for name in files.entries}
    missing = sorted(expected - set(actual))
    known = expected | set(copies)
    extra = [
        name
        for canonical, name in sorted(actual.items())
        if canonical not in known and not any(re.fullmatch(pattern, name) for pattern in family.ignored)
    ]
    if missing or extra:
        what = [f"missing {shorten(missing)}"] if missing else []
        what += [f"left over {shorten(extra)}"] if extra else []
        raise ParameterError(f"{files.source}: not the tensors of {family.classes(config)[0]}: {'; '.join(what)}")
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
    """The name as a model with a task has it today."""
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return prefix + name if name not in known and prefix + name in known else name


def _check_copy(files: SafetensorsFiles, copy: str, original: str) -> None:
    one, other = files.entries[copy], files.entries[original]
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    if not same or not np.array_equal(files.read(copy), files.read(original)):
        raise ParameterError(f"{one.file}: {copy} differs from {original}; the config says that they are one tensor")


def _without_heads(
    family: Family, config: ModelConfig, pruned: Mapping[str, Sequence[int]], fields: Fields
) -> ModelConfig:
    if family.prunable is None:
        raise fields.error("pruned_heads", f"transformers removes no heads of {family.model_type}")
    name, slot = SLOTS[family.prunable]
    stack = config.stacks()[name]
    layers = list(stack.layers)
    for number, heads in pruned.items():
        if not number.isdecimal() or int(number) >= len(layers):
            raise fields.error("pruned_heads", f"names layer {number!r} of {len(layers)}, counted from 0")
        attention = getattr(layers[int(number)], slot)
        if not isinstance(heads, list) or not set(heads) <= set(attention.ids):
            raise fields.error("pruned_heads", f"layer {number} has {attention.num_heads} heads, not {heads}")
        kept = [head for head in attention.ids if head not in heads]
        if not kept:
            raise fields.error("pruned_heads", f"layer {number} has no heads left")
        for tied in stack.tied_layers(int(number)):
            layers[tied] = dataclasses.replace(layers[tied], **{slot: attention.with_heads(kept)})
    return config.replace_stacks({name: dataclasses.replace(stack, layers=tuple(layers))})
