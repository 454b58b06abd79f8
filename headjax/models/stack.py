"""Stacks of layers. Consecutive layers of equal structure form a group, which is computed as one scan."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import require
from headjax.core.kind import Kind
from headjax.core.modules import Spec, stacked_module
from headjax.core.norms import Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.mesh.mesh import by_example
from headjax.models.cache import LayerCache
from headjax.models.compute import StackCall
from headjax.models.embeddings import PositionBias
from headjax.models.layer import Layer, LayerCall, TransformerLayer

Layers = TransformerLayer | nnx.List
"""Layers of a group: one module of stacked weights, or a list of each layer's own module."""


class Varying(NamedTuple):
    """Values that differ from layer to layer of a group, along a leading axis.

    Attributes:
        layer: module of the weights; None where layers share them.
        columns: positions of the layer's heads in the self-attention's bias.
        cache: the layer's cache.
        number: the layer's number in the stack.
    """

    layer: Any
    columns: jax.Array | None
    cache: LayerCache | None
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Layers `start` to `stop` (not included), all of the same structure, each with parameters of its own.

    Their parameters are stacked along a leading axis and stored under `name`.
    """

    start: int
    stop: int
    layer: Layer

    @property
    def name(self) -> str:
        """Key of the group's parameters."""
        return f"layers_{self.start}_{self.stop - 1}"

    @property
    def count(self) -> int:
        """Number of layers."""
        return self.stop - self.start

    def module(self, width: int, memory_width: int) -> TransformerLayer:
        """Return the module of one layer, with the weights of all layers of the group stacked in it."""
        return stacked_module(self.layer.module(width, memory_width), self.count)

    def unstack(self, params: Params) -> list[Params]:
        """Return the parameters of each layer."""
        on_device = jax.tree.map(jnp.asarray, params)
        return [_layer(on_device, i) for i in range(self.count)]

    def unstacked(self, layers: TransformerLayer) -> list[TransformerLayer]:
        """Return each layer as a module with its own arrays."""
        return [_layer(layers, i) for i in range(self.count)]

    def one_of(self, params: Params, number: int) -> Params:
        """Return the parameters of one layer alone, by its number in the stack."""
        return _layer(params, number - self.start)

    def restack(self, layers: Sequence[Params]) -> Params:
        """Invert `unstack`."""
        return _stacked(list(layers))

    def tied(self, layer: int) -> tuple[int, ...]:
        """Return the layers that share their parameters with this one, itself included."""
        return (layer,)

    def __call__(self, layers: Layers, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return the last layer's output and the reports of all layers."""
        if call.compute.scan and self.count > 1 and not isinstance(layers, nnx.List):
            x, by_layer = jax.lax.scan(self.body(layers, call), x, self.values(layers, call))
            return x, [_slice(by_layer, i) for i in range(self.count)]
        reports = []
        for i in range(self.count):
            own, varying = self.at(layers, call, i)
            x, report = self.body(own, call)(x, varying)
            reports.append(report)
        return x, reports

    def one(
        self, layer: TransformerLayer, x: jax.Array, call: StackCall, number: jax.Array | int
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Return the output and the report of a single layer."""
        own: Varying = jax.tree.map(
            lambda array: jax.lax.dynamic_index_in_dim(array, number - self.start, keepdims=False),
            self.values(None, call),
        )
        return self.body(layer, call)(x, own._replace(layer=self.varying_weights(layer)))

    def at(self, layers: Layers, call: StackCall, index: int) -> tuple[Any, Varying]:
        """Return `body`'s arguments for the layer at an index of the group: its weights and values."""
        varying = _slice(self.values(None, call), index)
        if isinstance(layers, nnx.List):
            return layers[index], varying._replace(layer=layers[index])
        return layers, varying._replace(layer=_slice(self.varying_weights(layers), index))

    def values(self, layers: TransformerLayer | None, call: StackCall) -> Varying:
        """Return the values that differ between layers in a call of the group."""
        heads = len(self.layer.attention.ids)
        return Varying(
            layer=self.varying_weights(layers),
            columns=None if call.columns is None else call.columns[self.start : self.stop, :heads],
            cache=None,
            number=jnp.arange(self.start, self.stop),
        )

    def body(self, layers: TransformerLayer, call: StackCall) -> Callable[..., tuple[jax.Array, dict[str, Any]]]:
        """Return the function from x and one layer's `Varying` to the layer's output and its reports."""
        implementation = call.compute.attention

        def body(x: jax.Array, own: Varying) -> tuple[jax.Array, dict[str, Any]]:
            attention = call.attention._replace(implementation=implementation)
            if own.columns is not None and attention.bias is not None:
                attention = attention._replace(bias=jnp.take(attention.bias, own.columns, axis=1))
            layer_call = LayerCall(
                attention=attention,
                cross_attention=call.cross_attention._replace(implementation=implementation),
                encoder_output=call.encoder_output,
                query_mask=call.query_mask,
                key=None if call.key is None else jax.random.fold_in(call.key, own.number),
                probe=call.probe,
                number=own.number,
                depth=call.depth,
                cache=own.cache,
                used=call.used,
                join=call.join,
            )
            x, report = self.layer_of(layers, own.layer)(by_example(x), layer_call)
            return by_example(x), report

        return call.compute.rematerialised(body)

    def varying_weights(self, layers: TransformerLayer | None) -> TransformerLayer | None:
        """Return the module of the weights that differ from layer to layer."""
        return layers

    def layer_of(self, layers: TransformerLayer, varying: Any) -> TransformerLayer:
        """Return one layer, from the group's module and the weights of its own."""
        return cast(TransformerLayer, varying)


@jax.jit
def _layer(params: Params, index: int) -> Params:
    """Return one layer of a group's parameters. The index is traced, so that one program takes them all apart."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params)


@jax.jit
def _stacked(layers: Sequence[Params]) -> Params:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


def _slice(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], tree)


@kind("stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(Spec):
    """Layers one after another, and a final normalisation for pre-norm stacks.

    Attributes:
        layers: the layers, any formulation each.
        final_norm: normalisation of the output, or None.
        position_bias: bias of the self-attention's logits, shared by all layers; or None.
    """

    layers: tuple[Layer, ...]
    final_norm: Norm | None = None
    position_bias: PositionBias | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.layers) >= 1, "layers", "a stack needs at least one layer")
        crossed = {layer.cross_attention is not None for layer in self.layers}
        require(len(crossed) == 1, "layers", "either all layers have a cross_attention or none has")
        if self.position_bias is not None:
            heads, used = self.position_bias.num_heads, {i for a in self.attentions("attention") for i in a.ids}
            require(
                max(used, default=0) < heads,
                "position_bias",
                f"num_heads is {heads}, but a layer has a head numbered {max(used, default=0)}",
            )

    @property
    def crossed(self) -> bool:
        """Whether the layers have cross-attention."""
        return self.layers[0].cross_attention is not None

    @functools.cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The longest groups of consecutive layers with equal structure."""
        groups, start = [], 0
        for layer, equal in itertools.groupby(_structures(self.layers)):
            stop = start + len(list(equal))
            groups.append(LayerGroup(start, stop, layer))
            start = stop
        return tuple(groups)

    def tied_layers(self, layer: int) -> tuple[int, ...]:
        """Return the layers that share their parameters with this one, itself included, and only change together."""
        return self.group_of(layer).tied(layer)

    def group_of(self, layer: int) -> LayerGroup:
        """Return the group of a layer, by the layer's number."""
        return self.groups[bisect.bisect_right(self.groups, layer, key=lambda group: group.start) - 1]

    def attentions(self, slot: str) -> tuple[Kind, ...]:
        """Return the formulations in a slot (`attention` or `cross_attention`), by layer."""
        return tuple(getattr(layer, slot) for layer in self.layers)

    def with_fields(self, fields: Mapping[tuple[int, str], Any]) -> Self:
        """Return the stack with other values of its layers' fields, by the layer's number and the field's name."""
        layers = list(self.layers)
        for (number, name), value in fields.items():
            layers[number] = dataclasses.replace(layers[number], **{name: value})
        return dataclasses.replace(self, layers=tuple(layers))

    def module(self, width: int, memory_width: int) -> TransformerStack:
        """Return the module; `memory_width` is the width of the encoder output, for cross-attention."""
        return TransformerStack(self, width, memory_width)

    def biased(self, bias: jax.Array | None, call: StackCall) -> StackCall:
        """Return the call with a bias `[1 or batch, heads, query, key]` of the self-attention's logits."""
        if bias is None:
            return call
        columns = self.columns(bias.shape[1])
        return call._replace(attention=call.attention._replace(bias=bias), columns=columns)

    def columns(self, heads: int) -> jax.Array | None:
        """Return each layer's original head numbers, or None where every layer has all heads in order."""
        ids = [attention.ids for attention in self.attentions("attention")]
        if all(layer == tuple(range(heads)) for layer in ids):
            return None
        longest = max(map(len, ids))
        return jnp.asarray([[*layer, *(0,) * (longest - len(layer))] for layer in ids], jnp.int32)

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Count the floating-point operations of one forward of one sequence, and its encoder output if crossed."""
        return sum(layer.flops(width, length, memory_width, memory_length) for layer in self.layers)

    def unstack(self, params: Params) -> list[Params]:
        """Return the parameters as one dict per layer."""
        return [layer for group in self.groups for layer in group.unstack(params[group.name])]

    def by_layer(self, params: Params) -> Params:
        """Return the parameters with a list of each layer's own arrays in place of a group's stacked arrays.

        A forward takes them too and computes layer after layer. On CPUs that saves a copy: a scan, and a slice of
        stacked arrays, copy a layer's weights before they are used. The program grows with depth, as without a scan.
        Groups that have been taken apart stay.
        """
        stacked = [group for group in self.groups if not isinstance(params[group.name], list)]
        return params | {group.name: group.unstack(params[group.name]) for group in stacked}

    def modules(self, params: Params, width: int) -> list[TransformerLayer]:
        """Return each layer as a module with its own arrays."""
        return [layer.bind(own, width, width) for layer, own in zip(self.layers, self.unstack(params), strict=True)]

    def restack(self, layers: Sequence[Params], params: Params) -> Params:
        """Invert `unstack` for this stack's groups; parameters that belong to no layer are taken from `params`."""
        stacked: Params = {group.name: group.restack(layers[group.start : group.stop]) for group in self.groups}
        return stacked | {name: entry for name, entry in params.items() if not name.startswith("layers_")}


def _structures(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yield the structure of each layer, made once where the same layer is there again and again."""
    last = made = None
    for layer in layers:
        if last is None or made is None or layer is not last:
            last, made = layer, layer.structure()
        yield made


class TransformerStack(nnx.Module):
    """The module of a `Stack`. The layers of a group are one module, `layers_0_5`, of stacked weights.

    Attributes:
        config: the stack.
        final_norm: normalisation of the output, where the stack has one.
        position_bias: bias of the self-attention's logits, where the stack has one.
    """

    def __init__(self, config: Stack, width: int, memory_width: int) -> None:
        self.config = config
        for group in config.groups:
            setattr(self, group.name, group.module(width, memory_width))
        if config.final_norm is not None:
            self.final_norm = config.final_norm.module(width)
        if config.position_bias is not None:
            self.position_bias = config.position_bias.module()

    def __call__(self, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return the output `[batch, length, width]`, and the probe's results by layer."""
        call, reports = self.prepared(x, call), list[dict[str, Any]]()
        for group in self.config.groups:
            x, of_layers = group(getattr(self, group.name), x, call)
            reports.extend(of_layers)
        return self.end(x), reports

    def prepared(self, x: jax.Array, call: StackCall) -> StackCall:
        """Return the call as the layers receive it: with the stack's depth and the position bias of its tokens."""
        call = call._replace(depth=len(self.config.layers))
        if self.config.position_bias is not None:
            positions = call.attention.positions
            positions = jnp.arange(x.shape[1])[None, :] if positions is None else positions
            call = self.config.biased(self.position_bias(positions, positions), call)
        return call

    def end(self, x: jax.Array) -> jax.Array:
        """Return the last layer's output, normalised if the stack has a final norm."""
        return x if self.config.final_norm is None else self.final_norm(x)
