"""Tiny models and batches that tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

import headjax
from headjax.core.modules import bind, declared
from headjax.core.tensors import Constant, Normal, Params, Zeros, check, map_tensors
from headjax.models import DecoderConfig, EncoderConfig, Model
from headjax.models.tasks import TaskOutput
from headjax.nn import CollaborativeAttention, GroupedAttention, Kind, MultiHeadAttention, NoHeadsAttention
from headjax.tokenizers.tokenizer import Tokenizer

WIDTH = 16
VOCABULARY = 50
MAX_LENGTH = 12

LAYER_SUMS = 4 * WIDTH + 2 * WIDTH + 4 + 2 * MAX_LENGTH + 16 + 32
"""Terms added up on the way through one layer: mean and variance of two normalisations, the projections to queries and
to the feed-forward's 32 units, logits, softmax and context over the keys, the heads' outputs, the feed-forward's."""
SUMS = 3 * LAYER_SUMS + 3 * WIDTH + VOCABULARY + 2 * MAX_LENGTH
"""Terms on the way to a loss: three layers (few tiny models have more), the last normalisation, the logits, their
softmax and the mean over the targets. A gradient goes the way twice, there and back."""


def multi_head(num_heads: int = 4, head_dim: int = 4, **fields: Any) -> Kind:
    """A small multi-head formulation."""
    return Kind(MultiHeadAttention, num_heads=num_heads, head_dim=head_dim, **fields)


def grouped(num_heads: int = 4, kv_heads: int = 2, head_dim: int = 4, **fields: Any) -> Kind:
    """A small grouped formulation."""
    return Kind(GroupedAttention, num_heads=num_heads, kv_heads=kv_heads, head_dim=head_dim, **fields)


def collaborative(num_heads: int = 4, **fields: Any) -> Kind:
    """A small collaborative formulation with every bias."""
    fields = {"shared_dim": 8, "value_dim": 4, "head_dim": 4, "content_bias": True, "projection_bias": True} | fields
    return Kind(CollaborativeAttention, num_heads=num_heads, **fields)


def no_heads() -> Kind:
    """What a layer that lost every head has."""
    return Kind(NoHeadsAttention)


def layer(attention: Kind | None = None, **fields: Any) -> dict[str, Any]:
    """The fields of a small layer that may differ from layer to layer."""
    return {"attention": attention or multi_head(), "hidden": 32} | fields


def decoder_config(*layers: dict[str, Any], **fields: Any) -> DecoderConfig:
    """A small pre-norm decoder of these layers, by default two equal multi-head ones."""
    layers = layers or (layer(),) * 2
    by_layer = {name: tuple(own[name] for own in layers) for name in layers[0]}
    sizes: dict[str, Any] = {"width": WIDTH, "vocab_size": VOCABULARY, "max_length": MAX_LENGTH}
    return DecoderConfig(**sizes | {"num_layers": len(layers), "initializer": Normal(0.3)} | by_layer | fields)


def text_encoder(task: TaskOutput, tokenizer: Tokenizer, max_length: int = 64) -> Model:
    """A BERT of one layer for these tokens, with an output for a task."""
    config = EncoderConfig(
        attention=multi_head(), hidden=16, vocab_size=tokenizer.vocab_size, max_length=max_length,
        width=WIDTH, num_layers=1, task=task, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    return model(config).replace(tokenizer=tokenizer)


def random_params(tensors: Params, default: Any, spread: float, seed: int = 0) -> Params:
    """Parameters drawn at random, biases and normalisations included, so that none hides a bug.

    Drawn by NumPy where the initialiser is a normal or a constant one, because nothing has to be compiled for that;
    `jnp.asarray` would compile a program for each shape.
    """
    generator = np.random.default_rng(seed)

    def draw(path: str, tensor: nnx.Param) -> jax.Array:
        init = tensor.init or default
        noise = generator.standard_normal(tensor.shape).astype(np.float32)
        if isinstance(init, Normal):
            return jax.device_put((init.stddev + spread) * noise)
        if isinstance(init, Zeros | Constant):
            return jax.device_put(getattr(init, "value", 0.0) + spread * noise)
        return init(jax.random.key(seed), tensor, jnp.float32) + spread * noise

    return map_tensors(draw, tensors)


def model(config: Any, seed: int = 0) -> Model:
    """The model with every parameter drawn at random."""
    return Model(config, random_params(config.tensors(), config.initializer, 0.1, seed))


RUN: dict[str, Any] = {
    "model": {
        "kind": "decoder", "vocab_size": 300, "max_length": 16, "width": 16, "num_layers": 2,
        "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 8},
        "hidden": 16,
    },
    "data": {"task": str(Path(__file__).parents[1] / "LICENSE"), "length": 16, "tokenizer": "bytes"},
    "batch_size": 8, "steps": 2, "tensorboard": False,
    "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.001}},
}  # fmt: skip
"""A training run of two steps on bytes; it waits for its text."""


def config_file(**fields: Any) -> str:
    """The text of a config file of `RUN` with other fields."""
    return f"""
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({RUN | fields!r})
"""


def weights(attention: Kind, width: int, memory_width: int) -> dict[str, Any]:
    """The declared weights of a formulation."""
    return declared(attention.module(width, memory_width))


def bound(attention: Kind, params: Params, width: int, memory_width: int) -> Any:
    """The module of a formulation with these arrays."""
    return bind(attention.module(width, memory_width), params)


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict of arrays as one dict from paths such as `a/b/c`."""
    return flatten_dict(tree, sep="/")


def assert_as_declared(model: Model) -> None:
    """Its arrays are those that its config declares."""
    check(model.config.tensors(), model.params)
    assert model.num_parameters == headjax.summarize(model.config, 8).parameters


def tokens(batch: int = 2, length: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of random `input_ids`."""
    generator = np.random.default_rng(seed)
    return {"input_ids": generator.integers(0, VOCABULARY, (batch, length), dtype=np.int32)}


def fetches(monkeypatch: Any, steps: Callable[[], int]) -> set[int]:
    """The numbers of `steps()` at which the host took a floating-point scalar from the device; filled as it happens."""
    found: set[int] = set()
    array = type(jnp.zeros(()))
    value = array._value

    def fetched(self: Any) -> Any:
        if self.ndim == 0 and jnp.issubdtype(self.dtype, jnp.floating):
            found.add(steps())
        return value.fget(self)

    monkeypatch.setattr(array, "_value", property(fetched))
    return found
