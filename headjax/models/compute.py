"""The computation of layers: options of a forward pass, and groups of equal layers, each of which is one scan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.kernels import KERNELS
from headjax.core.deferred import any_deferred, layer_of, stacked
from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.modules import stacked_module
from headjax.core.serialize import unknown_name
from headjax.core.tensors import Params
from headjax.mesh.mesh import by_example
from headjax.models.cache import GroupCache, LayerCache, stored
from headjax.models.hooks import Hooks
from headjax.models.layer import CACHE, Layer, LayerCall, ProbeFunction, TransformerLayer


@dataclasses.dataclass(frozen=True)
class Compute(Checked):
    """Options of one forward pass that change neither parameters nor, up to rounding, results.

    Attributes:
        dtype: type of activations and of the parameters as used; normalisations, softmax and losses stay in float32.
        attention: attention implementation, `auto` or a name in `headjax.attention.kernels.KERNELS`.
        remat: activations that the backward pass recomputes: `none`, `dots` for all but matrix products, `full` for all
            but each layer's input.
        scan: whether the layers of a group are scanned (compile time independent of depth) or unrolled.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = "auto"
    remat: Literal["none", "dots", "full"] = "none"
    scan: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention == "auto":
            return
        known = [*KERNELS, "auto"]
        require(self.attention in known, "attention", unknown_name("attention kernel", self.attention, known))
        dtypes = KERNELS[self.attention].can.dtypes
        takes = " and ".join(dtypes)
        require(self.dtype in dtypes, "attention", f"{self.attention} computes in {takes}, and dtype is {self.dtype}")

    def cast(self, params: Params) -> Params:
        """Return the parameters in the compute type."""
        return jax.tree.map(lambda array: array.astype(self.dtype), params)

    @property
    def type(self) -> jnp.dtype:
        """The compute type as a dtype."""
        return jnp.dtype(self.dtype)

    def rematerialised(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return the body of a layer with the recomputation that `remat` names."""
        if self.remat == "none":
            return body
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
        return jax.checkpoint(body, policy=policy)


class StackCall(NamedTuple):
    """Everything about one stack call that is neither parameter nor input.

    Attributes:
        attention: self-attention call; its gates are `[layers, ..., max_heads]`, see `headjax.heads.gates`.
        cross_attention: cross-attention call, with gates likewise.
        encoder_output: `[batch, key, memory_width]`, for cross-attention.
        query_mask: `[batch, length]` bool, False at padding.
        key: PRNG key of dropout, None outside training.
        probe: statistics to take from each attention call.
        compute: how to compute.
        columns: `[layers, max_heads]` positions of each layer's heads in the self-attention's bias; None where every
            layer has all heads.
        used: number of tokens in the cache, when decoding.
        depth: number of layers of the stack.
        stack: the stack's name.
        hooks: what the trace does besides.
    """

    attention: Call
    cross_attention: Call = Call()
    encoder_output: jax.Array | None = None
    query_mask: jax.Array | None = None
    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    columns: jax.Array | None = None
    used: jax.Array | int = 0
    depth: int = 1
    stack: str = ""
    hooks: Hooks | None = None


Layers = TransformerLayer | nnx.List
"""Layers of a group: one module of stacked weights, or a list of each layer's own module."""


class Varying(NamedTuple):
    """Values that differ from layer to layer of a group, along a leading axis.

    Attributes:
        layer: module of the weights; None where layers share them.
        gates, cross_gates: gates of the self- and cross-attention.
        columns: positions of the layer's heads in the self-attention's bias.
        cache: the layer's cache.
        number: the layer's number in the stack.
    """

    layer: Any
    gates: jax.Array | None
    cross_gates: jax.Array | None
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
        """Return the parameters of each layer, deferred where they are."""
        if any_deferred(params):
            return [jax.tree.map(functools.partial(layer_of, index=i), params) for i in range(self.count)]
        on_device = jax.tree.map(jnp.asarray, params)
        return [_layer(on_device, i) for i in range(self.count)]

    def one_of(self, params: Params, number: int) -> Params:
        """Return the parameters of one layer alone, by its number in the stack."""
        return _layer(params, number - self.start)

    def restack(self, layers: Sequence[Params]) -> Params:
        """Invert `unstack`."""
        if any_deferred(layers):
            return jax.tree.map(lambda *arrays: stacked(arrays), *layers)
        return _stacked(list(layers))

    def tied(self, layer: int) -> tuple[int, ...]:
        """Return the layers that share their parameters with this one, itself included."""
        return (layer,)

    def __call__(self, layers: Layers, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return the last layer's output and the reports of all layers.

        Args:
            layers: the group's module, or a list of each layer's own, which cannot be scanned.
            x: `[batch, length, width]`.
            call: options; `call.compute.scan` chooses between a scan and unrolled layers.
        """
        if call.compute.scan and self.count > 1 and not isinstance(layers, nnx.List):
            x, by_layer = jax.lax.scan(self._body(layers, call), x, self._varying(layers, call))
            return x, [_slice(by_layer, i) for i in range(self.count)]
        reports = []
        for i in range(self.count):
            own, varying = self._own(layers, call, i)
            x, report = self._body(own, call)(x, varying)
            reports.append(report)
        return x, reports

    def one(
        self, layer: TransformerLayer, x: jax.Array, call: StackCall, number: jax.Array | int
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Return the output and the report of a single layer.

        Args:
            layer: the layer's own module.
            x: `[batch, length, width]`, the layer's input.
            call: options, with the gates of all layers of the stack.
            number: number of the layer in the stack; it may be traced, so that one program computes every layer.
        """
        own: Varying = jax.tree.map(
            lambda array: jax.lax.dynamic_index_in_dim(array, number - self.start, keepdims=False),
            self._varying(None, call),
        )
        return self._body(layer, call)(x, own._replace(layer=layer))

    def decode(self, layers: Layers, x: jax.Array, call: StackCall, cache: GroupCache) -> tuple[jax.Array, GroupCache]:
        """Return the last layer's output for new tokens, and the cache with them in it.

        Layers in a list are computed one by one, and the cache is a list, too: a scan copies the caches of all layers
        for every token.
        """
        if isinstance(cache, list):
            held = []
            for i, one in enumerate(cache):
                own, varying = self._own(layers, call, i)
                x, report = self._body(own, call)(x, varying._replace(cache=one))
                held.append(one._replace(attention=report[CACHE]))
            return x, held
        together = cast(TransformerLayer, layers)
        varying = self._varying(together, call)._replace(cache=cache)
        x, stacked = jax.lax.scan(self._body(together, call), x, varying)
        return x, cache._replace(attention=stacked[CACHE])

    def empty_cache(
        self, layers: Layers, example: jax.Array, capacity: int, encoder_output: jax.Array | None
    ) -> GroupCache:
        """Return an empty cache, with the cross-attention's keys and values of an encoder output in it.

        Args:
            layers: the group's module, or each layer's own, for a list of caches.
            example: `[batch, 1, width]`, of the type that hidden states have.
            capacity: number of tokens that the cache has room for.
            encoder_output: `[batch, key, memory_width]`, or None.
        """

        def of_layer(layer: TransformerLayer) -> LayerCache:
            return _empty_layer_cache(layer, example, capacity, encoder_output)

        if isinstance(layers, nnx.List):
            return [of_layer(layer) for layer in layers]
        return jax.lax.scan(
            lambda _, varying: (None, of_layer(self._layer(layers, varying))),
            None,
            self._varying_weights(layers),
            length=self.count,
        )[1]

    def _own(self, layers: Layers, call: StackCall, index: int) -> tuple[Any, Varying]:
        """Return what `_body` takes for the layer at an index of the group: the weights, and the values of its own."""
        varying = _slice(self._varying(None, call), index)
        if isinstance(layers, nnx.List):
            return layers[index], varying._replace(layer=layers[index])
        return layers, varying._replace(layer=_slice(self._varying_weights(layers), index))

    def _varying(self, layers: TransformerLayer | None, call: StackCall) -> Varying:
        heads = len(self.layer.attention.bias_ids)
        return Varying(
            layer=self._varying_weights(layers),
            gates=self._gates(call.attention, "attention"),
            cross_gates=self._gates(call.cross_attention, "cross_attention"),
            columns=None if call.columns is None else call.columns[self.start : self.stop, :heads],
            cache=None,
            number=jnp.arange(self.start, self.stop),
        )

    def _body(self, layers: TransformerLayer, call: StackCall) -> Callable[..., tuple[jax.Array, dict[str, Any]]]:
        implementation = call.compute.attention

        def body(x: jax.Array, own: Varying) -> tuple[jax.Array, dict[str, Any]]:
            attention = call.attention._replace(gates=own.gates, implementation=implementation)
            if own.columns is not None and attention.bias is not None:
                attention = attention._replace(bias=jnp.take(attention.bias, own.columns, axis=1))
            layer_call = LayerCall(
                attention=attention,
                cross_attention=call.cross_attention._replace(gates=own.cross_gates, implementation=implementation),
                encoder_output=call.encoder_output,
                query_mask=call.query_mask,
                key=None if call.key is None else jax.random.fold_in(call.key, own.number),
                probe=call.probe,
                number=own.number,
                depth=call.depth,
                cache=own.cache,
                used=call.used,
                hooks=call.hooks,
            )
            module, x = self._layer(layers, own.layer), by_example(x)
            x, report = module(x, layer_call) if call.hooks is None else call.hooks.layer(module, x, layer_call)
            return by_example(x), report

        return call.compute.rematerialised(body)

    def _varying_weights(self, layers: TransformerLayer | None) -> TransformerLayer | None:
        """Return the module of the weights that differ from layer to layer."""
        return layers

    def _layer(self, layers: TransformerLayer, varying: Any) -> TransformerLayer:
        """Return one layer, from the group's module and the weights of its own."""
        return cast(TransformerLayer, varying)

    def _gates(self, call: Call, slot: str) -> jax.Array | None:
        attention = getattr(self.layer, slot)
        if call.gates is None or attention is None:
            return None
        return call.gates[self.start : self.stop, ..., : attention.num_heads]


@dataclasses.dataclass(frozen=True)
class SharedLayerGroup(LayerGroup):
    """A group whose layers all use the same parameters, stored once (ALBERT)."""

    def module(self, width: int, memory_width: int) -> TransformerLayer:
        return self.layer.module(width, memory_width)

    def unstack(self, params: Params) -> list[Params]:
        return [params] * self.count

    def one_of(self, params: Params, number: int) -> Params:
        return params

    def restack(self, layers: Sequence[Params]) -> Params:
        """Return the parameters of the first layer; those of the others are the same."""
        return layers[0]

    def tied(self, layer: int) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop))

    def _varying_weights(self, layers: TransformerLayer | None) -> None:
        return None

    def _layer(self, layers: TransformerLayer, varying: Any) -> TransformerLayer:
        return layers


def _empty_layer_cache(
    layer: TransformerLayer, example: jax.Array, capacity: int, encoder_output: jax.Array | None
) -> LayerCache:
    attention, width = layer.attention, example.shape[-1]
    one = attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
    if layer.config.attention.keeps_rebuilt(width, width, capacity, example.shape[0]):
        one = attention.rebuilt(one)
    room = {name: jnp.zeros((a.shape[0], capacity, *a.shape[2:]), a.dtype) for name, a in one.items()}
    empty = {name: stored(array) for name, array in room.items()}
    if layer.config.cross_attention is None or encoder_output is None:
        return LayerCache(empty)
    return LayerCache(empty, layer.cross_attention.key_values(encoder_output, None))


@jax.jit
def _layer(params: Params, index: int) -> Params:
    """Return one layer of a group's parameters. The index is traced, so that one program takes them all apart."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params)


@jax.jit
def _stacked(layers: Sequence[Params]) -> Params:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


def _slice(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], tree)
