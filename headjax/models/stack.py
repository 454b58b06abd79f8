"""A stack of layers, computed run by run: consecutive layers of equal structure are one scan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.base import Attention, Call
from headjax.errors import require
from headjax.models.compute import Compute
from headjax.models.layer import Layer, LayerCall, ProbeFunction
from headjax.models.norms import Norm
from headjax.serialize import kind
from headjax.tensors import Params, Tensors, stack_tensors


class Run(NamedTuple):
    """Layers `start` to `stop` (not included), all of the same structure.

    Their parameters are stacked along a leading axis and stored under `name`.
    """

    start: int
    stop: int
    layer: Layer

    @property
    def name(self) -> str:
        """Key of the run's parameters."""
        return f"layers_{self.start}_{self.stop - 1}"


class StackCall(NamedTuple):
    """Everything about one stack call that is neither parameter nor input.

    Attributes:
        attention: self-attention call; its gates are `[layers, ..., max_heads]`, see `headjax.heads.gates`.
        cross_attention: cross-attention call, with gates likewise.
        memory: `[batch, key, memory_width]` encoder output.
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


@kind("stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """Layers one after another, and a final normalisation for pre-norm stacks.

    Attributes:
        layers: the layers, any formulation each.
        final_norm: normalisation of the output, or None.
    """

    layers: tuple[Layer, ...]
    final_norm: Norm | None = None

    def __post_init__(self) -> None:
        require(len(self.layers) >= 1, "layers", "a stack needs at least one layer")
        crossed = {layer.cross_attention is not None for layer in self.layers}
        require(len(crossed) == 1, "layers", "either all layers have a cross_attention or none has")

    @property
    def runs(self) -> tuple[Run, ...]:
        """Maximal runs of consecutive layers with equal structure."""
        runs, start = [], 0
        for layer, group in itertools.groupby(layer.structure() for layer in self.layers):
            stop = start + len(list(group))
            runs.append(Run(start, stop, layer))
            start = stop
        return tuple(runs)

    def attentions(self, slot: str) -> tuple[Attention, ...]:
        """The formulations in a slot (`attention` or `cross_attention`), by layer."""
        return tuple(getattr(layer, slot) for layer in self.layers)

    def tensors(self, width: int, memory_width: int) -> Tensors:
        """The declared parameters, stacked by run."""
        tensors: Tensors = {
            run.name: stack_tensors(run.layer.tensors(width, memory_width), run.stop - run.start) for run in self.runs
        }
        if self.final_norm is not None:
            tensors["final_norm"] = self.final_norm.tensors(width)
        return tensors

    def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """The output `[batch, length, width]`, and per layer what the probe made of it."""
        probed: list[dict[str, Any]] = []
        for run in self.runs:
            x, per_layer = _apply_run(run, params[run.name], x, call)
            probed.extend(per_layer)
        if self.final_norm is not None:
            x = self.final_norm(params["final_norm"], x)
        return x, probed

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Floating-point operations of one forward of one sequence (and its encoder output, with cross-attention)."""
        total = 0
        for layer in self.layers:
            total += layer.attention.flops(width, width, length, length) + layer.feed_forward.flops(width, length)
            if layer.cross_attention is not None:
                total += layer.cross_attention.flops(width, memory_width, length, memory_length)
        return total

    def unstack(self, params: Params) -> list[Params]:
        """The parameters as one dict per layer."""
        layers: list[Params] = []
        for run in self.runs:
            stacked = params[run.name]
            layers.extend(jax.tree.map(lambda array, i=i: array[i], stacked) for i in range(run.stop - run.start))
        return layers

    def restack(self, layers: Sequence[Params], params: Params) -> Params:
        """The inverse of `unstack` for this stack's runs; what belongs to no layer is taken from `params`."""
        stacked: Params = {
            run.name: jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers[run.start : run.stop])
            for run in self.runs
        }
        return stacked | {name: entry for name, entry in params.items() if not name.startswith("layers_")}


def _apply_run(run: Run, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
    count = run.stop - run.start
    indices = jnp.arange(run.start, run.stop)
    scanned = (
        params,
        _gates(call.attention, run, "attention"),
        _gates(call.cross_attention, run, "cross_attention"),
        indices,
    )

    def body(x: jax.Array, inputs: tuple[Params, Any, Any, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        weights, gates, cross_gates, index = inputs
        layer_call = LayerCall(
            attention=call.attention._replace(gates=gates, implementation=call.compute.attention),
            cross_attention=call.cross_attention._replace(gates=cross_gates, implementation=call.compute.attention),
            memory=call.memory,
            query_mask=call.query_mask,
            key=None if call.key is None else jax.random.fold_in(call.key, index),
            probe=call.probe,
        )
        return run.layer(weights, x, layer_call)

    body = _rematerialised(body, call.compute.remat)
    if call.compute.scan and count > 1:
        x, stacked = jax.lax.scan(body, x, scanned)
        return x, [jax.tree.map(lambda array, i=i: array[i], stacked) for i in range(count)]
    probed = []
    for i in range(count):
        x, seen = body(x, jax.tree.map(lambda array, i=i: array[i], scanned))
        probed.append(seen)
    return x, probed


def _gates(call: Call, run: Run, slot: str) -> jax.Array | None:
    attention = getattr(run.layer, slot)
    if call.gates is None or attention is None:
        return None
    return call.gates[run.start : run.stop, ..., : attention.num_heads]


def _rematerialised(body: Callable[..., Any], remat: str) -> Callable[..., Any]:
    if remat == "none":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return jax.checkpoint(body, policy=policy)
