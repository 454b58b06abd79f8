"""Stacks of layers. Consecutive layers of equal structure form a group, which is computed as one scan."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.kind import Kind, fresh
from headjax.core.modules import LayerGate, bind, stacked_module
from headjax.core.tensors import Params, in_host_memory
from headjax.nn.block import Block, ForwardOptions, LayerConfig, State
from headjax.nn.embeddings import RelativeBuckets, RelativePositionBias
from headjax.nn.norms import BEFORE, Norm


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Layers `start` to `stop` (not included), of equal structure: parameters stacked, or once where all share them."""

    start: int
    stop: int
    layer: LayerConfig
    shared: bool = False

    @functools.cached_property
    def name(self) -> str:
        return f"layers_{self.start}_{self.stop - 1}"

    @functools.cached_property
    def count(self) -> int:
        return self.stop - self.start

    def unstacked(self, layers: Any, *, backwards: bool = False) -> Iterator[Any]:
        """Yield the modules or parameters of each layer, copied out of the stacked ones one at a time."""
        places = range(self.count)[:: -1 if backwards else 1]
        return (layers if self.shared else _layer(layers, i) for i in places)

    def restack(self, layers: Sequence[Params]) -> Params:
        """Invert `unstacked`."""
        return layers[0] if self.shared else _stacked(list(layers))


def _with_shared(layers: Any, gates: Any) -> Block:
    """Return one layer, from the module of shared weights and the `LayerGate`s of its depth."""
    graph, *states = nnx.split(layers, LayerGate, ...)
    layer: Block = nnx.merge(graph, gates, states[1])
    return layer


def _layer(params: Params, index: int) -> Params:
    """Return one layer of a group's parameters."""
    if in_host_memory(params):
        return jax.device_put(jax.tree.map(lambda array: np.asarray(array)[index], params))
    return _sliced(params, index)


@jax.jit
def _sliced(params: Params, index: int) -> Params:
    """Return one layer of a group's parameters. The index is traced, so that one program serves all layers."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), params)


def _stacked(layers: Sequence[Params]) -> Params:
    if in_host_memory(layers):
        return jax.device_put(jax.tree.map(lambda *arrays: np.stack(arrays), *layers))
    return _joined(layers)


@jax.jit
def _joined(layers: Sequence[Params]) -> Params:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


def _split(tree: Any, count: int) -> list[Any]:
    """Return a stacked tree's slices. The gradient is one concatenation, where that of indexing adds padded arrays."""
    if in_host_memory(tree):
        return [_layer(tree, i) for i in range(count)]
    arrays, kind = jax.tree.flatten(tree)
    slices = [[part[0] for part in jax.lax.split(array, (1,) * count)] for array in arrays]
    return [jax.tree.unflatten(kind, each) for each in zip(*slices, strict=True)] if arrays else [tree] * count


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Layers one after another, as their family's config gives them.

    If they are shared, all layers are one layer, with one set of parameters (ALBERT, Lan et al. 2020, section 3.1).
    Probes and gates distinguish the depths; a change of parameters changes every depth.
    """

    layers: tuple[LayerConfig, ...]
    position_bias: RelativeBuckets | None = None  # of the self-attention's logits, for all layers
    causal: bool = False
    normed: bool = True  # whether layers that leave the stream as it is are followed by a norm
    shared: bool = False

    @property
    def final_norm(self) -> Norm | None:
        """Normalisation of the output, where the layers do not normalise the stream."""
        return self.layers[0].norm if self.layers[0].residual in BEFORE and self.normed else None

    @functools.cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The longest groups of consecutive layers with equal structure."""
        groups, start = [], 0
        for layer, equal in itertools.groupby(self.layers, key=functools.cache(LayerConfig.structure)):
            stop = start + len(list(equal))
            groups.append(LayerGroup(start, stop, layer, self.shared))
            start = stop
        return tuple(groups)

    def tied_layers(self, layer: int) -> tuple[int, ...]:
        """Return the layers that share their parameters with this one, itself included, and only change together."""
        return tuple(range(len(self.layers))) if self.shared else (layer,)

    def attentions(self, slot: str) -> tuple[Kind, ...]:
        """Return the formulations in a slot (`attention` or `cross_attention`), by layer."""
        return tuple(getattr(layer, slot) for layer in self.layers)

    @functools.cached_property
    def columns(self) -> np.ndarray | None:
        """Where each layer's heads are in a position bias of all heads, `[layers, max_heads]`; None where in order."""
        ids = [attention.ids for attention in self.attentions("attention")]
        if self.position_bias is None or all(layer == tuple(range(self.position_bias.num_heads)) for layer in ids):
            return None
        longest = max(map(len, ids))
        return np.asarray([[*layer, *(0,) * (longest - len(layer))] for layer in ids], np.int32)

    def unstack(self, params: Params) -> list[Params]:
        return [layer for group in self.groups for layer in group.unstacked(params[group.name])]

    def modules(self, params: Params) -> list[Block]:
        pairs = zip(self.layers, self.unstack(params), strict=True)
        return [bind(fresh(Block, layer), arrays) for layer, arrays in pairs]

    def restack(self, layers: Sequence[Params], params: Params) -> Params:
        """Invert `unstack` for this stack's groups; parameters that belong to no layer are taken from `params`."""
        stacked: Params = {group.name: group.restack(layers[group.start : group.stop]) for group in self.groups}
        return stacked | {name: entry for name, entry in params.items() if not name.startswith("layers_")}


class Stack(nnx.Module):
    """The module of a `StackConfig`. The layers of a group are one module, `layers_0_5`, of stacked weights."""

    def __init__(self, config: StackConfig) -> None:
        self.config = config
        for group in config.groups:
            layer = Block(group.layer)
            setattr(self, group.name, layer if group.shared else stacked_module(layer, group.count))
        self.final_norm = None if config.final_norm is None else config.final_norm.module(config.layers[0].width)
        if config.position_bias is not None:
            self.position_bias = RelativePositionBias(config.position_bias, not config.causal)

    def __call__(
        self, state: State, options: ForwardOptions = ForwardOptions(), caches: Sequence[Any] | None = None
    ) -> tuple[State, list[dict[str, Any]]]:
        """Return the state after the last layer, and the layers' reports: what a probe returned, and new caches."""
        reports: list[dict[str, Any]] = []
        for group in self.config.groups:
            columns: Any = self.config.columns
            if columns is not None:
                columns = jnp.asarray(columns[group.start : group.stop, : len(group.layer.attention.ids)])
            if caches is None and options.compute.scan and group.count > 1 and self.is_stacked(group):
                x, of_layers = self._scanned(group, state, options, columns)
            else:
                x, of_layers = self._unrolled(group, state, options, columns, caches)
            state = state._replace(x=x)
            reports += of_layers
        return state, reports

    def _scanned(
        self, group: LayerGroup, state: State, options: ForwardOptions, columns: jax.Array | None
    ) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return the output and the reports of a group, whose layers are one loop in the program."""
        layers = getattr(self, group.name)

        def body(x: jax.Array, of_layer: Any) -> tuple[jax.Array, dict[str, Any]]:
            weights, number, columns = of_layer
            layer = _with_shared(layers, weights) if group.shared else weights
            result: tuple[jax.Array, dict[str, Any]] = layer(state._replace(x=x), options, number, columns)
            return result

        weights = nnx.state(layers, LayerGate) if group.shared else layers
        by_layer = weights, jnp.arange(group.start, group.stop), columns
        x, reports = jax.lax.scan(options.compute.rematerialised(body), state.x, by_layer)
        return x, [jax.tree.map(lambda array, i=i: array[i], reports) for i in range(group.count)] if reports else []

    def _unrolled(
        self, group: LayerGroup, state: State, options: ForwardOptions, columns: Any, caches: Sequence[Any] | None
    ) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return the output and the reports of a group, whose layers follow each other in the program."""
        x, reports = state.x, []

        def run(layer: Block, x: jax.Array, number: jax.Array, columns: jax.Array | None, cache: Any) -> Any:
            return layer(state._replace(x=x), options, number, columns, cache)

        for i, layer in enumerate(self._layers_of(group)):
            of_layer = functools.partial(run, cache=None if caches is None else caches[group.start + i])
            number, places = jnp.int32(group.start + i), None if columns is None else columns[i]
            x, report = options.compute.rematerialised(of_layer)(layer, x, number, places)
            reports.append(report)
        return x, reports

    def is_stacked(self, group: LayerGroup) -> bool:
        """Return whether the layers of a group are one module, and not a list of modules as for generation."""
        return not isinstance(getattr(self, group.name), nnx.List)

    def layers(self) -> list[Block]:
        """Return the module of each layer, in the program that computes them."""
        return [layer for group in self.config.groups for layer in self._layers_of(group)]

    def _layers_of(self, group: LayerGroup) -> list[Block]:
        layers = getattr(self, group.name)
        if not self.is_stacked(group):
            return list(layers)
        if not group.shared:
            return _split(layers, group.count)
        return [_with_shared(layers, gates) for gates in _split(nnx.state(layers, LayerGate), group.count)]

    def biased(self, state: State, keys: jax.Array | None = None) -> State:
        """Return the state with the position bias of its tokens; `keys` are positions of keys that are not theirs."""
        if self.config.position_bias is None:
            return state
        positions = state.positions
        if positions is None:  # counted so that lengths may be symbols, as in an ONNX graph
            positions = jnp.cumsum(jnp.ones((1, state.x.shape[1]), jnp.int32), axis=1) - 1
        return state._replace(bias=self.position_bias(positions, positions if keys is None else keys))

    def end(self, x: jax.Array) -> jax.Array:
        """Return the last layer's output, normalised if the stack has a final norm."""
        return x if self.final_norm is None else self.final_norm(x)
