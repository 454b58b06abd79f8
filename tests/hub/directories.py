"""Tiny Hugging Face directories that the tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from headjax.hub.families import FAMILIES
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.models.base import Model

BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "num_labels": 3,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
T5 = {
    "model_type": "t5",
    "vocab_size": 20,
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
}


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.model_type == name)


def model_of(fields: Mapping[str, Any], names: tuple[str, ...] = (), seed: int = 0) -> Model:
    """The model of these config fields, every parameter drawn at random."""
    config = family(fields["model_type"]).read(Fields(fields, tensors=names))
    leaves, structure = jax.tree.flatten(config.initialize(jax.random.key(seed)))
    generator = np.random.default_rng(seed)
    noisy = [leaf + 0.2 * generator.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves]
    return Model(config, jax.tree.unflatten(structure, noisy))


def rewrite(folder: Path, change: Any = None, **fields: Any) -> None:
    """Changes a directory: `change` the dict of its tensors, and fields of its config."""
    if change is not None:
        tensors = dict(load_file(folder / "model.safetensors"))
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
