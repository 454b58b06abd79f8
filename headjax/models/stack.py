"""A stack of layers, computed run by run: consecutive layers of equal structure are one scan."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from headjax.attention.formulation import Attention
from headjax.attention.operands import Mask
from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.cache import Cache
from headjax.models.layer import Layer
from headjax.models.norms import Norm
from headjax.models.position_bias import PositionBias
from headjax.models.run import Run, SharedRun, StackCall

__all__ = ["Run", "SharedRun", "SharedStack", "Stack", "StackCall"]


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

    def empty_cache(self, params: Params, example: jax.Array, slots: int, memory: jax.Array | None = None) -> Cache:
        """A cache of this many empty slots.

        Args:
            params: the stack's parameters.
            example: `[batch, 1, width]`, of the type that hidden states have.
            slots: number of slots.
            memory: `[batch, key, memory_width]` encoder output, for cross-attention.
        """
        batch = example.shape[0]
        return Cache(
            layers={run.name: run.empty_cache(params[run.name], example, slots, memory) for run in self.runs},
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
