"""A stack of layers, computed run by run: consecutive layers of equal structure are one scan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax

from headjax.attention.base import Attention
from headjax.errors import require
from headjax.models.layer import Layer
from headjax.models.norms import Norm
from headjax.models.run import Run, SharedRun, StackCall
from headjax.serialize import kind
from headjax.tensors import Params, Tensors

__all__ = ["Run", "SharedRun", "SharedStack", "Stack", "StackCall"]


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
        return tensors

    def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
        """The output `[batch, length, width]`, and per layer what the probe made of it."""
        probed: list[dict[str, Any]] = []
        for run in self.runs:
            x, per_layer = run(params[run.name], x, call)
            probed.extend(per_layer)
        if self.final_norm is not None:
            x = self.final_norm(params["final_norm"], x)
        return x, probed

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Floating-point operations of one forward of one sequence (and its encoder output, with cross-attention)."""
        return sum(layer.flops(width, length, memory_width, memory_length) for layer in self.layers)

    def unstack(self, params: Params) -> list[Params]:
        """The parameters as one dict per layer."""
        return [layer for run in self.runs for layer in run.unstack(params[run.name])]

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

    @property
    def runs(self) -> tuple[Run, ...]:
        return (SharedRun(0, len(self.layers), self.layers[0].structure()),)
