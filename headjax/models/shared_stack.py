"""Stacks of one layer that is applied again and again, with its parameters stored once (ALBERT)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from flax import nnx

from headjax.core.errors import require
from headjax.core.modules import Beside
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.models.layer import TransformerLayer
from headjax.models.stack import LayerGroup, Stack


@dataclasses.dataclass(frozen=True)
class SharedLayerGroup(LayerGroup):
    """A group whose layers all use the same parameters, stored once (ALBERT)."""

    def module(self, width: int, memory_width: int) -> TransformerLayer:
        return self.layer.module(width, memory_width)

    def unstack(self, params: Params) -> list[Params]:
        return [params] * self.count

    def unstacked(self, layers: TransformerLayer) -> list[TransformerLayer]:
        return [layers] * self.count

    def one_of(self, params: Params, number: int) -> Params:
        return params

    def restack(self, layers: Sequence[Params]) -> Params:
        """Return the parameters of the first layer; those of the others are the same."""
        return layers[0]

    def tied(self, layer: int) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop))

    def varying_weights(self, layers: TransformerLayer | None) -> Any:
        """Return what differs between the depths of a layer that is gated."""
        return None if layers is None else nnx.state(layers, Beside)

    def layer_of(self, layers: TransformerLayer, varying: Any) -> TransformerLayer:
        graph, *states = nnx.split(layers, Beside, ...)
        shared = states[1]
        layer: TransformerLayer = nnx.merge(graph, varying, shared)
        return layer


@kind("shared_stack")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedStack(Stack):
    """One layer applied again and again: all layers use the same parameters (ALBERT, Lan et al. 2020, section 3.1).

    Gates, probes and head numbers distinguish the depths; a change of parameters changes every depth.
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
