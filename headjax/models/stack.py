"""Stacks of layers. Consecutive layers of equal structure form a group, which is computed as one scan."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.formulation import Attention
from headjax.attention.operands import Mask
from headjax.core.errors import require
from headjax.core.modules import Spec
from headjax.core.norms import Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.models.cache import Cache, is_empty
from headjax.models.compute import LayerGroup, SharedLayerGroup, StackCall
from headjax.models.embeddings import PositionBias
from headjax.models.layer import Layer


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
            heads, used = self.position_bias.num_heads, {i for a in self.attentions("attention") for i in a.bias_ids}
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

    def attentions(self, slot: str) -> tuple[Attention, ...]:
        """Return the formulations in a slot (`attention` or `cross_attention`), by layer."""
        return tuple(getattr(layer, slot) for layer in self.layers)

    def module(self, width: int, memory_width: int) -> TransformerStack:
        """Return the module; `memory_width` is the width of the encoder output, for cross-attention."""
        return TransformerStack(self, width, memory_width)

    def columns(self, heads: int) -> jax.Array | None:
        """Return each layer's original head numbers, or None where every layer has all heads in order."""
        ids = [attention.bias_ids for attention in self.attentions("attention")]
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

    def restack(self, layers: Sequence[Params], params: Params) -> Params:
        """Invert `unstack` for this stack's groups; parameters that belong to no layer are taken from `params`."""
        stacked: Params = {group.name: group.restack(layers[group.start : group.stop]) for group in self.groups}
        return stacked | {name: entry for name, entry in params.items() if not name.startswith("layers_")}


@kind("shared_stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedStack(Stack):
    """One layer applied again and again: all layers use the same parameters (ALBERT, Lan et al. 2020, section 3.1).

    Gates, probes and head numbers tell the depths apart; a change of parameters changes every depth.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(set(self.layers)) == 1, "layers", "those of a shared stack must be equal, they are one layer")

    @functools.cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        return (SharedLayerGroup(0, len(self.layers), self.layers[0].structure()),)

    def by_layer(self, params: Params) -> Params:
        """Return the parameters as they are, since every layer's arrays are the same."""
        return params


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
        return self.forward(x, call) if call.hooks is None else call.hooks.stack(self, x, call)

    def forward(self, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """Return what `__call__` does, without the hook of the stack itself."""
        x, reports = self.layers_forward(x, self.prepared(x, call))
        return self.end(x), reports

    def layers_forward(self, x: Any, call: StackCall) -> tuple[Any, list[dict[str, Any]]]:
        """Return the last layer's output and the reports of all, for a call that is `prepared`."""
        reports: list[dict[str, Any]] = []
        for group in self.config.groups:
            x, of_layers = group(getattr(self, group.name), x, call)
            reports.extend(of_layers)
        return x, reports

    def prepared(self, x: jax.Array, call: StackCall) -> StackCall:
        """Return the call as the layers receive it: with the stack's depth and the position bias of its tokens."""
        call = call._replace(depth=len(self.config.layers))
        if self.config.position_bias is not None:
            positions = call.attention.positions
            positions = jnp.arange(x.shape[1])[None, :] if positions is None else positions
            call = self._biased(self.position_bias(positions, positions), call)
        return call

    def end(self, x: jax.Array) -> jax.Array:
        """Return the last layer's output, normalised if the stack has a final norm."""
        return x if self.config.final_norm is None else self.final_norm(x)

    def decode(self, x: jax.Array, call: StackCall, cache: Cache) -> tuple[jax.Array, Cache]:
        """Return the output `[batch, new, width]` for new tokens that the cache has admitted, and the cache with them.

        A query sees the tokens in the cache and the new tokens before it: the same function as a forward of all tokens
        at once.

        Args:
            x, call: as for a forward of the new tokens; the mask of the self-attention is made here.
            cache: result of `Cache.admit` for these tokens.
        """
        length = x.shape[1]
        positions = jax.lax.dynamic_slice_in_dim(cache.positions, cache.used, length, axis=1)
        # Windows count tokens, whatever positions a batch gives them.
        keys = cache.indices()
        queries = jax.lax.dynamic_slice_in_dim(keys, cache.used, length, axis=1)
        if is_empty(cache.used):
            seen, keys, mask = positions, queries, Mask(causal=True, keys=cache.present[:, :length])
        else:
            offset = jnp.asarray(cache.used)
            seen, mask = cache.positions, Mask(causal=True, keys=cache.present, query_offset=offset)
        mask = dataclasses.replace(mask, query_positions=queries, key_positions=keys)
        call = call._replace(attention=call.attention._replace(mask=mask, positions=positions), used=cache.used)
        if self.config.position_bias is not None:
            call = self._biased(self.position_bias(positions, seen), call)
        layers = {}
        for group in self.config.groups:
            x, layers[group.name] = group.decode(getattr(self, group.name), x, call, cache.layers[group.name])
        used = jnp.asarray(cache.used, jnp.int32) + length
        return self.end(x), cache._replace(layers=layers, used=used)

    def empty_cache(self, example: jax.Array, capacity: int, encoder_output: jax.Array | None = None) -> Cache:
        """Return an empty cache.

        Args:
            example: `[batch, 1, width]`, of the type that hidden states have.
            capacity: number of tokens that the cache has room for.
            encoder_output: `[batch, key, memory_width]`, for cross-attention.
        """
        batch = example.shape[0]
        return Cache(
            layers={
                group.name: group.empty_cache(getattr(self, group.name), example, capacity, encoder_output)
                for group in self.config.groups
            },
            positions=jnp.zeros((batch, capacity), jnp.int32),
            present=jnp.zeros((batch, capacity), bool),
            used=0,
        )

    def _biased(self, bias: jax.Array, call: StackCall) -> StackCall:
        columns = self.config.columns(bias.shape[1])
        return call._replace(attention=call.attention._replace(bias=bias), columns=columns)
