"""Stacks of layers, computed run by run: consecutive layers of equal structure are one scan."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention
from headjax.attention.operands import Mask
from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.norms import Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors, stack_tensors
from headjax.mesh.activations import by_example
from headjax.models.cache import Cache, LayerCache
from headjax.models.compute import Compute
from headjax.models.embeddings import PositionBias
from headjax.models.layer import CACHE, Layer, LayerCall, ProbeFunction


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
        columns: `[layers, max_heads]` which heads of the self-attention's bias belong to each layer's heads; None where
            every layer has all.
        used: filled slots of the cache, when decoding.
        depth: number of layers of the stack.
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


class Scanned(NamedTuple):
    """What differs from layer to layer of a run, along a leading axis.

    Attributes:
        weights: parameters; empty where layers share them.
        gates, cross_gates: gates of the self- and cross-attention.
        columns: the layer's heads among those of the self-attention's bias.
        cache: the layer's cache.
        number: the layer's number in the stack.
    """

    weights: Params
    gates: jax.Array | None
    cross_gates: jax.Array | None
    columns: jax.Array | None
    cache: LayerCache | None
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class Run:
    """Layers `start` to `stop` (not included), all of the same structure, each with parameters of its own.

    Their parameters are stacked along a leading axis and stored under `name`.
    """

    start: int
    stop: int
    layer: Layer

    @property
    def name(self) -> str:
        """Key of the run's parameters."""
        return f"layers_{self.start}_{self.stop - 1}"

    @property
    def count(self) -> int:
        """Number of layers."""
        return self.stop - self.start

    def tensors(self, width: int, memory_width: int) -> Tensors:
        """The declared parameters."""
        return stack_tensors(self.layer.tensors(width, memory_width), self.count)

    def unstack(self, params: Params) -> list[Params]:
        """The parameters of each layer."""
        on_device = jax.tree.map(jnp.asarray, params)
        return [_layer(on_device, i) for i in range(self.count)]

    def restack(self, layers: Sequence[Params]) -> Params:
        """The inverse of `unstack`."""
        return _stacked(list(layers))

    def tied(self, layer: int) -> tuple[int, ...]:
        """The layers that share their parameters with this one, itself included."""
        return (layer,)

    def split(self, params: Params) -> Any:
        """The parameters with arrays of its own for each layer, which a forward takes too; see `Stack.split`."""
        return self.unstack(params)

    def __call__(self, params: Any, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """The last layer's output, and what each layer reports.

        The layers are one scan, unless `call.compute` says otherwise or the parameters are split.
        """
        if isinstance(params, list):
            body, scanned = self._body({}, call), self._scanned({}, call)
            reports = []
            for i, weights in enumerate(params):
                x, report = body(x, _slice(scanned, i)._replace(weights=weights))
                reports.append(report)
            return x, reports
        body, scanned = self._body(params, call), self._scanned(params, call)
        if call.compute.scan and self.count > 1:
            x, stacked = jax.lax.scan(body, x, scanned)
            return x, [_slice(stacked, i) for i in range(self.count)]
        reports = []
        for i in range(self.count):
            x, report = body(x, _slice(scanned, i))
            reports.append(report)
        return x, reports

    def decode(self, params: Params, x: jax.Array, call: StackCall, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        """The last layer's output for new tokens, and the cache that has seen them too."""
        scanned = self._scanned(params, call)._replace(cache=cache)
        x, stacked = jax.lax.scan(self._body(params, call), x, scanned)
        return x, cache._replace(attention=stacked[CACHE])

    def empty_cache(
        self, params: Params, example: jax.Array, slots: int, encoder_output: jax.Array | None
    ) -> LayerCache:
        """A cache of this many empty slots, with the cross-attention's memory of an encoder output in it.

        Args:
            params: the run's parameters.
            example: `[batch, 1, width]`, of the type that hidden states have.
            slots: number of slots.
            encoder_output: `[batch, key, memory_width]`, or None.
        """

        def of_layer(_: None, varying: Params) -> tuple[None, LayerCache]:
            weights = self._weights(params, varying)
            one = self.layer.attention.memory(weights["attention"], example, jnp.zeros((1, 1), jnp.int32))
            empty = {name: jnp.zeros((a.shape[0], slots, *a.shape[2:]), a.dtype) for name, a in one.items()}
            crossed = self.layer.cross_attention
            if crossed is None or encoder_output is None:
                return None, LayerCache(empty)
            return None, LayerCache(empty, crossed.memory(weights["cross_attention"], encoder_output, None))

        return jax.lax.scan(of_layer, None, self._varying(params), length=self.count)[1]

    def _scanned(self, params: Params, call: StackCall) -> Scanned:
        heads = self.layer.attention.num_heads
        return Scanned(
            weights=self._varying(params),
            gates=self._gates(call.attention, "attention"),
            cross_gates=self._gates(call.cross_attention, "cross_attention"),
            columns=None if call.columns is None else call.columns[self.start : self.stop, :heads],
            cache=None,
            number=jnp.arange(self.start, self.stop),
        )

    def _body(self, params: Params, call: StackCall) -> Callable[..., tuple[jax.Array, dict[str, Any]]]:
        implementation = call.compute.attention

        def body(x: jax.Array, layer: Scanned) -> tuple[jax.Array, dict[str, Any]]:
            attention = call.attention._replace(gates=layer.gates, implementation=implementation)
            if layer.columns is not None and attention.bias is not None:
                attention = attention._replace(bias=jnp.take(attention.bias, layer.columns, axis=1))
            layer_call = LayerCall(
                attention=attention,
                cross_attention=call.cross_attention._replace(gates=layer.cross_gates, implementation=implementation),
                encoder_output=call.encoder_output,
                query_mask=call.query_mask,
                key=None if call.key is None else jax.random.fold_in(call.key, layer.number),
                probe=call.probe,
                number=layer.number,
                depth=call.depth,
                cache=layer.cache,
                used=call.used,
            )
            x, report = self.layer(self._weights(params, layer.weights), by_example(x), layer_call)
            return by_example(x), report

        return _rematerialised(body, call.compute.remat)

    def _varying(self, params: Params) -> Params:
        return params

    def _weights(self, params: Params, varying: Params) -> Params:
        return varying

    def _gates(self, call: Call, slot: str) -> jax.Array | None:
        attention = getattr(self.layer, slot)
        if call.gates is None or attention is None:
            return None
        return call.gates[self.start : self.stop, ..., : attention.num_heads]


@dataclasses.dataclass(frozen=True)
class SharedRun(Run):
    """A run whose layers all use the same parameters, stored once (ALBERT)."""

    def tensors(self, width: int, memory_width: int) -> Tensors:
        return self.layer.tensors(width, memory_width)

    def unstack(self, params: Params) -> list[Params]:
        return [params] * self.count

    def split(self, params: Params) -> Any:
        """The parameters as they are: one layer's arrays already."""
        return params

    def restack(self, layers: Sequence[Params]) -> Params:
        """The parameters of the first layer; those of the others are the same."""
        return layers[0]

    def tied(self, layer: int) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop))

    def _varying(self, params: Params) -> Params:
        return {}

    def _weights(self, params: Params, varying: Params) -> Params:
        return params


@jax.jit
def _layer(params: Params, index: int) -> Params:
    """One layer of a run's parameters. The index is traced, so that one program takes them all apart."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params)


@jax.jit
def _stacked(layers: Sequence[Params]) -> Params:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


def _slice(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], tree)


def _rematerialised(body: Callable[..., Any], remat: str) -> Callable[..., Any]:
    if remat == "none":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return jax.checkpoint(body, policy=policy)


@kind("stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(Checked):
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

    @functools.cached_property
    def runs(self) -> tuple[Run, ...]:
        """Maximal runs of consecutive layers with equal structure."""
        runs, start = [], 0
        for layer, group in itertools.groupby(layer.structure() for layer in self.layers):
            stop = start + len(list(group))
            runs.append(Run(start, stop, layer))
            start = stop
        return tuple(runs)

    def tied_layers(self, layer: int) -> tuple[int, ...]:
        """The layers that share their parameters with this one, itself included: they can only change together."""
        return next(run.tied(layer) for run in self.runs if run.start <= layer < run.stop)

    def attentions(self, slot: str) -> tuple[Attention, ...]:
        """The formulations in a slot (`attention` or `cross_attention`), by layer."""
        return tuple(getattr(layer, slot) for layer in self.layers)

    def tensors(self, width: int, memory_width: int) -> Tensors:
        """The declared parameters, by run."""
        tensors: Tensors = {run.name: run.tensors(width, memory_width) for run in self.runs}
        if self.final_norm is not None:
            tensors["final_norm"] = self.final_norm.tensors(width)
        if self.position_bias is not None:
            tensors["position_bias"] = self.position_bias.tensors()
        return tensors

    def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """The output `[batch, length, width]`, and per layer what the probe made of it."""
        call = call._replace(depth=len(self.layers))
        if self.position_bias is not None:
            positions = call.attention.positions
            positions = jnp.arange(x.shape[1])[None, :] if positions is None else positions
            call = self._biased(self.position_bias(params["position_bias"], positions, positions), call)
        reports: list[dict[str, Any]] = []
        for run in self.runs:
            x, per_layer = run(params[run.name], x, call)
            reports.extend(per_layer)
        return self.end(params, x), reports

    def decode(self, params: Params, x: jax.Array, call: StackCall, cache: Cache) -> tuple[jax.Array, Cache]:
        """The output `[batch, new, width]` for new tokens that the cache has admitted, and the cache with them in it.

        Queries see the slots before them and those of tokens before them among the new: the same function as a forward
        of all tokens at once.

        Args:
            params, x, call: as for a forward of the new tokens; the mask of the self-attention is made here.
            cache: `Cache.admit`'s result for these tokens.
        """
        mask = Mask(causal=True, keys=cache.present, query_offset=cache.used)
        positions = jax.lax.dynamic_slice_in_dim(cache.positions, cache.used, x.shape[1], axis=1)
        call = call._replace(attention=call.attention._replace(mask=mask, positions=positions), used=cache.used)
        if self.position_bias is not None:
            call = self._biased(self.position_bias(params["position_bias"], positions, cache.positions), call)
        layers = {}
        for run in self.runs:
            x, layers[run.name] = run.decode(params[run.name], x, call, cache.layers[run.name])
        return self.end(params, x), cache._replace(layers=layers, used=cache.used + x.shape[1])

    def empty_cache(
        self, params: Params, example: jax.Array, slots: int, encoder_output: jax.Array | None = None
    ) -> Cache:
        """A cache of this many empty slots.

        Args:
            params: the stack's parameters.
            example: `[batch, 1, width]`, of the type that hidden states have.
            slots: number of slots.
            encoder_output: `[batch, key, memory_width]`, for cross-attention.
        """
        batch = example.shape[0]
        return Cache(
            layers={run.name: run.empty_cache(params[run.name], example, slots, encoder_output) for run in self.runs},
            positions=jnp.zeros((batch, slots), jnp.int32),
            present=jnp.zeros((batch, slots), bool),
            used=jnp.zeros((), jnp.int32),
        )

    def _biased(self, bias: jax.Array, call: StackCall) -> StackCall:
        return call._replace(attention=call.attention._replace(bias=bias), columns=self._columns(bias.shape[1]))

    def _columns(self, heads: int) -> jax.Array | None:
        """Each layer's original head numbers, or None where every layer has all heads in order."""
        ids = [attention.ids for attention in self.attentions("attention")]
        if all(layer == tuple(range(heads)) for layer in ids):
            return None
        longest = max(map(len, ids))
        return jnp.asarray([[*layer, *(0,) * (longest - len(layer))] for layer in ids], jnp.int32)

    def end(self, params: Params, x: jax.Array) -> jax.Array:
        """The last layer's output, normalised where the stack says so."""
        return x if self.final_norm is None else self.final_norm(params["final_norm"], x)

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Floating-point operations of one forward of one sequence (and its encoder output, with cross-attention)."""
        return sum(layer.flops(width, length, memory_width, memory_length) for layer in self.layers)

    def unstack(self, params: Params) -> list[Params]:
        """The parameters as one dict per layer."""
        return [layer for run in self.runs for layer in run.unstack(params[run.name])]

    def split(self, params: Params) -> Params:
        """The parameters with arrays of their own for each layer; a forward then computes layer after layer.

        On CPUs that saves a copy: a scan, and a slice of stacked arrays, copy a layer's weights before they are used.
        The program grows with depth, as without a scan.
        """
        return params | {run.name: run.split(params[run.name]) for run in self.runs}

    def restack(self, layers: Sequence[Params], params: Params) -> Params:
        """The inverse of `unstack` for this stack's runs; what belongs to no layer is taken from `params`."""
        stacked: Params = {run.name: run.restack(layers[run.start : run.stop]) for run in self.runs}
        return stacked | {name: entry for name, entry in params.items() if not name.startswith("layers_")}


@kind("shared_stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedStack(Stack):
    """One layer applied again and again: all layers use the same parameters (ALBERT, Lan et al. 2020, section 3.1).

    Gates, probes and head numbers tell the depths apart; whatever changes parameters changes every depth.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(set(self.layers)) == 1, "layers", "those of a shared stack must be equal, they are one layer")

    @functools.cached_property
    def runs(self) -> tuple[Run, ...]:
        return (SharedRun(0, len(self.layers), self.layers[0].structure()),)
