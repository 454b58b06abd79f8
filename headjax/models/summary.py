"""Parameters, FLOPs and cache of a model, and the kernels that can compute it, from its config alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from headjax.core import tensors as declared
from headjax.core.errors import ConfigError, KernelError
from headjax.core.kind import Kind
from headjax.core.modules import declared as declared_weights
from headjax.core.serialize import kind_of, to_data
from headjax.models.config import ModelConfig
from headjax.nn import Call, Dropout
from headjax.nn.attend import choosing_only
from headjax.nn.compute import Compute
from headjax.nn.kernels import KERNELS, target


class LayerSummary(NamedTuple):
    """One attention layer.

    Attributes:
        stack: head stack: `encoder`, `decoder` or `cross`.
        layer: layer within the stack, from 0.
        kind: name of the formulation.
        heads: original numbers of its heads.
        sizes: the formulation's other integers (`head_dim`, `shared_dim`, ...), by name.
        parameters: parameters of the attention.
        flops: floating-point operations of the attention in one forward of one example.
        cache_bytes_per_token: bytes a decoding cache holds for each token attended to; 0 in encoders.
        tied_layers: the layers that use the same parameters, this one included.
    """

    stack: str
    layer: int
    kind: str
    heads: tuple[int, ...]
    sizes: dict[str, int]
    parameters: int
    flops: int
    cache_bytes_per_token: int
    tied_layers: tuple[int, ...]


class ModelSummary(NamedTuple):
    """A model.

    Attributes:
        parameters: number of parameters.
        heads: number of attention heads, all stacks and depths together.
        flops: floating-point operations of one forward of one example, two a multiply-add.
        cache_bytes_per_token: bytes that generating one token adds to the decoding cache; 0 for models that do not
            generate. Cross-attention caches each source token besides, see `layers`.
        length: tokens (or patches and tokens) of the example that `flops` are for.
        layers: every attention layer, stack by stack.
    """

    parameters: int
    heads: int
    flops: int
    cache_bytes_per_token: int
    length: int
    layers: tuple[LayerSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON data."""
        return self._asdict() | {"layers": [to_data(layer._asdict()) for layer in self.layers]}


def summarize(config: ModelConfig, length: int, compute: Compute = Compute()) -> ModelSummary:
    """Count a model's parameters, heads, FLOPs and cache; no array is made.

        >>> headjax.summarize(headjax.demo_model().config, length=64).parameters
        1088256

    Args:
        config: the architecture.
        length: tokens of one example; of each side in encoder-decoders. Vision models have their own.
        compute: its `dtype` is that of the cache.
    """
    layers = [layer for stack in config.attentions() for layer in _summarize_stack(config, stack, length, compute)]
    return ModelSummary(
        parameters=declared.count(config.tensors()),
        heads=sum(len(layer.heads) for layer in layers),
        flops=config.flops(length),
        cache_bytes_per_token=sum(layer.cache_bytes_per_token for layer in layers if layer.stack == "decoder"),
        length=config.attention_lengths(layers[0].stack, length)[0],
        layers=tuple(layers),
    )


def _summarize_stack(config: ModelConfig, head_stack: str, length: int, compute: Compute) -> list[LayerSummary]:
    """Count every layer of a head stack; layers that differ in no more than their heads' numbers are counted once."""
    width = config.width
    query, key = config.attention_lengths(head_stack, length)

    @functools.cache
    def counted(attention: Kind) -> dict[str, Any]:
        module = attention.module(width, width)
        cached = 0 if head_stack == "encoder" else module.cache_size()
        return {
            "kind": kind_of(attention),
            "sizes": _sizes(to_data(attention)),
            "parameters": declared.count(declared_weights(module)),
            "flops": module.flops(query, key),
            "cache_bytes_per_token": cached * compute.type.itemsize,
        }

    return [
        LayerSummary(
            stack=head_stack,
            layer=site.layer,
            heads=site.attention.ids,
            tied_layers=site.tied,
            **counted(site.attention.structure()),
        )
        for site in config.sites([head_stack])
    ]


def _sizes(data: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, entry in data.items():
        if isinstance(entry, Mapping):
            sizes |= _sizes(entry)
        elif isinstance(entry, int) and not isinstance(entry, bool) and name != "num_heads":
            sizes[name] = entry
    return sizes


ATTENTION_SLOTS = ("attention", "cross_attention")


def check_kernels(model: ModelConfig, compute: Compute, *, training: bool) -> None:
    """Refuse a kernel asked for by name that some layer cannot use on any machine and at any length."""
    if compute.attention == "auto":
        return
    for stack, layers in ((name, stack.layers) for name, stack in model.stacks().items()):
        for index, layer in enumerate(layers):
            for slot in ATTENTION_SLOTS:
                attention = getattr(layer, slot)
                if attention is None:
                    continue
                refused = _refusal(attention, compute, layer.attention_dropout if training else 0.0)
                if refused is not None:
                    at = f"{stack}.layers[{index}].{slot} ({kind_of(attention)})"
                    raise ConfigError(f"compute.attention: {compute.attention} cannot compute {at}: {refused}")


def _refusal(attention: Kind, compute: Compute, dropout: float) -> str | None:
    """Return why a kernel cannot compute a layer of 128 tokens; None when it can."""
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, compute.type), attention.module(1, 1))
    x = jax.ShapeDtypeStruct((1, 128, 1), compute.type)
    call = Call(dropout=Dropout(dropout, jax.random.key(0)), implementation=compute.attention)
    try:
        with target(KERNELS[compute.attention].platforms[0]), choosing_only():
            jax.eval_shape(lambda module, x: module.attend(x, module.key_values(x, None), call).context, shapes, x)
    except KernelError as error:
        return error.reason
    return None
