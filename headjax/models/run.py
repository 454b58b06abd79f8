"""Runs: consecutive layers of equal structure, whose parameters are stacked and which compute as one scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.base import Call
from headjax.models.compute import Compute
from headjax.models.layer import Layer, LayerCall, ProbeFunction
from headjax.tensors import Params, Tensors, stack_tensors


class StackCall(NamedTuple):
    """Everything about one stack call that is neither parameter nor input.

    Attributes:
        attention: self-attention call; its gates are `[layers, ..., max_heads]`, see `headjax.heads.gates`.
        cross_attention: cross-attention call, with gates likewise.
        memory: `[batch, key, memory_width]` encoder output, for cross-attention.
        query_mask: `[batch, length]` bool, False at padding.
        key: PRNG key of dropout, None outside training.
        probe: statistics to take from each attention call.
        compute: how to compute.
    """

    attention: Call
    cross_attention: Call = Call()
    memory: jax.Array | None = None
    query_mask: jax.Array | None = None
    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    compute: Compute = Compute()


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
        return [jax.tree.map(lambda array, i=i: array[i], params) for i in range(self.count)]

    def restack(self, layers: Sequence[Params]) -> Params:
        """The inverse of `unstack`."""
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)

    def tied(self, layer: int) -> tuple[int, ...]:
        """The layers that share their parameters with this one, itself included."""
        return (layer,)

    def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """The last layer's output, and per layer what the probe made of it."""
        return self.apply_layers(lambda weights: weights, params, x, call)

    def apply_layers(
        self, weights_of: Callable[[Any], Params], varying: Any, x: jax.Array, call: StackCall
    ) -> tuple[jax.Array, list[dict[str, Any]]]:
        """One layer after another, scanned where `call.compute` says so.

        Args:
            weights_of: a layer's parameters, from its slice of `varying`.
            varying: arrays with a leading axis of layers.
            x: `[batch, length, width]`.
            call: the stack's call.
        """
        gates = (self._gates(call.attention, "attention"), self._gates(call.cross_attention, "cross_attention"))
        scanned = (varying, gates, jnp.arange(self.start, self.stop))

        def body(x: jax.Array, inputs: Any) -> tuple[jax.Array, dict[str, Any]]:
            own, (gates, cross_gates), index = inputs
            layer_call = LayerCall(
                attention=call.attention._replace(gates=gates, implementation=call.compute.attention),
                cross_attention=call.cross_attention._replace(gates=cross_gates, implementation=call.compute.attention),
                memory=call.memory,
                query_mask=call.query_mask,
                key=None if call.key is None else jax.random.fold_in(call.key, index),
                probe=call.probe,
                number=index,
            )
            return self.layer(weights_of(own), x, layer_call)

        body = _rematerialised(body, call.compute.remat)
        if call.compute.scan and self.count > 1:
            x, stacked = jax.lax.scan(body, x, scanned)
            return x, [_slice(stacked, i) for i in range(self.count)]
        probed = []
        for i in range(self.count):
            x, seen = body(x, _slice(scanned, i))
            probed.append(seen)
        return x, probed

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

    def restack(self, layers: Sequence[Params]) -> Params:
        """The parameters of the first layer; those of the others are the same."""
        return layers[0]

    def tied(self, layer: int) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop))

    def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        return self.apply_layers(lambda _: params, (), x, call)


def _slice(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], tree)


def _rematerialised(body: Callable[..., Any], remat: str) -> Callable[..., Any]:
    if remat == "none":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return jax.checkpoint(body, policy=policy)
