"""Parameters, FLOPs and cache of a model, from its config alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from headjax.core import tensors as declared
from headjax.core.kind import Kind
from headjax.core.modules import declared as declared_weights
from headjax.core.serialize import kind_of, to_data
from headjax.models.config import ModelConfig
from headjax.nn.block import Compute


class LayerSummary(NamedTuple):
    """One attention layer."""

    stack: str  # head stack: `encoder`, `decoder` or `cross`
    layer: int  # within the stack, from 0
    kind: str  # name of the formulation
    heads: tuple[int, ...]  # original numbers
    sizes: dict[str, int]  # the formulation's other integers (`head_dim`, `shared_dim`, ...), by name
    parameters: int
    flops: int  # floating-point operations of the attention in one forward of one example
    cache_bytes_per_token: int  # that a decoding cache holds for each token attended to; 0 in encoders
    tied_layers: tuple[int, ...]  # the layers that use the same parameters, this one included


class ModelSummary(NamedTuple):
    """A model.

    Attributes:
        parameters: number of all weights.
        heads: of all stacks and depths together.
        flops: floating-point operations of one forward pass of one example, two a multiply-add.
        cache_bytes_per_token: that generating a token adds to the KV cache; 0 for models that do not generate.
            Cross-attention caches each source token besides, see `layers`.
        length: tokens (or patches and tokens) of the example that `flops` are for.
        layers: every attention layer: `stack`, `layer`, `kind`, `heads`, `sizes`, `parameters`, `flops`,
            `cache_bytes_per_token`, `tied_layers`.
    """

    parameters: int
    heads: int
    flops: int
    cache_bytes_per_token: int
    length: int
    layers: tuple[LayerSummary, ...]


def summarize(config: ModelConfig, length: int, compute: Compute = Compute()) -> ModelSummary:
    """Count a model's parameters, heads, FLOPs and cache; no array is made.

        >>> headjax.summarize(headjax.demo_model().config, length=64).parameters
        1088256

    Args:
        config: the architecture.
        length: tokens of one example; of each side in encoder-decoders. Vision models have their own.
        compute: its `dtype` is that of the cache.
    """
    length = config.example_length(length)
    layers = summarize_layers(config, length, compute)
    return ModelSummary(
        parameters=declared.count(config.tensors()),
        heads=sum(len(layer.heads) for layer in layers),
        flops=config.flops(length),
        cache_bytes_per_token=sum(layer.cache_bytes_per_token for layer in layers if layer.stack == "decoder"),
        length=length,
        layers=layers,
    )


def summarize_layers(config: ModelConfig, length: int, compute: Compute = Compute()) -> tuple[LayerSummary, ...]:
    """Count every attention layer, on examples of `length` vectors."""
    width = config.width

    @functools.cache
    def counts(attention: Kind, stack: str) -> dict[str, Any]:
        """Count a layer; those that differ in no more than their heads' numbers are counted once."""
        module = attention.module(width, width)
        cached = 0 if stack == "encoder" else module.cache_size()
        return {
            "kind": kind_of(attention),
            "sizes": _sizes(to_data(attention)),
            "parameters": declared.count(declared_weights(module)),
            "flops": module.flops(length, length),
            "cache_bytes_per_token": cached * compute.type.itemsize,
        }

    return tuple(
        LayerSummary(
            stack=site.head_stack,
            layer=site.layer,
            heads=site.attention.ids,
            tied_layers=site.tied,
            **counts(site.attention.structure(), site.head_stack),
        )
        for site in config.sites()
    )


def _sizes(data: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, entry in data.items():
        if isinstance(entry, Mapping):
            sizes |= _sizes(entry)
        elif isinstance(entry, int) and not isinstance(entry, bool) and name != "num_heads":
            sizes[name] = entry
    return sizes
