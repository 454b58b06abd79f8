"""A model block by block: what enters the first one, the blocks, and what follows the last one.

Any `nnx.Module` may offer this walk. Heads are then ablated from their own block on, and not by whole passes:

    model.embed(batch)     # the state that enters the first block: arrays, in any tree
    model.blocks()         # modules of the model in the order of computation, each a function from state to state
    model.finish(state)    # what model(batch) returns, from the state after the last block
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.modules import Aside
from headjax.models.compute import Compute, StackCall
from headjax.models.config import HEAD_STACKS, Batch, ModelConfig, Options
from headjax.models.layer import TransformerLayer


class State(NamedTuple):
    """What one block leaves to the next.

    Attributes:
        x: `[batch, length, width]`, the residual stream.
        memory: `[batch, key, width]`, output of the stack before, for cross-attention; None without.
        bias: `[1 or batch, heads, query, key]`, position bias of the stack's logits; None without.
        batch: the arrays of the batch.
    """

    x: jax.Array
    memory: jax.Array | None
    bias: jax.Array | None
    batch: Batch


class LayerBlock(nnx.Module):
    """One layer of a stack. Layers of equal structure share programs, whatever their numbers.

    Attributes:
        layer: the layer's own weights.
        number: of the layer in its stack, an array.
    """

    def __init__(self, config: ModelConfig, stack: str, group: int, layer: TransformerLayer, number: int) -> None:
        self.config, self.stack, self.group, self.layer = config, stack, group, layer
        self.number = nnx.data(jnp.int32(number))
        self.place = nnx.static(Aside(number))

    def __call__(self, state: State, compute: Compute = Compute()) -> State:
        """Return the state after the layer."""
        call = self.call(state, Options(compute=compute))
        group = self.config.stacks()[self.stack].groups[self.group]
        x, _ = group.one(compute.cast(self.layer), state.x, call, self.number)
        return state._replace(x=x)

    def call(self, state: State, options: Options) -> StackCall:
        """Return the call of the stack, as its layers receive it."""
        stack = self.config.stacks()[self.stack]
        call = self.config.call(self.stack, state.batch, options, state.memory)
        return stack.biased(state.bias, call._replace(depth=len(stack.layers)))

    def named_sites(self, sites: tuple[Any, ...]) -> list[Any]:
        """Return the layer's sites with heads named by head stack, layer and original number."""
        layer = self.config.stacks()[self.stack].layers[self.place.value]
        named = []
        for site in sites:
            slot = site.path.removeprefix("layer.")
            stacks = [name for name, place in HEAD_STACKS.items() if place == (self.stack, slot)]
            if stacks:
                ids = tuple(getattr(layer, slot).ids)
                ids = ids if len(ids) == site.heads else None
                site = dataclasses.replace(site, first=(stacks[0], self.place.value), ids=ids)
            named.append(site)
        return named


class NextStack(nnx.Module):
    """The way from the last layer of a stack to the first layer of the next one."""

    def __init__(self, model: Any, stack: str, following: str) -> None:
        self.model, self.stack, self.following = model, stack, following

    def __call__(self, state: State, compute: Compute = Compute()) -> State:
        """Return the state that enters the next stack."""
        model = compute.cast(self.model)
        return entered(model, self.following, state.batch, getattr(model, self.stack).end(state.x), compute)

    def named_sites(self, sites: tuple[Any, ...]) -> list[Any]:
        """Return none: the sites of the model within are those of other blocks."""
        return []


def entered(model: Any, stack: str, batch: Batch, memory: jax.Array | None, compute: Compute) -> State:
    """Return the state that enters the first layer of a stack of a model in the type to compute in."""
    config, options = model.config, Options(compute=compute)
    x, call = config.enter(model, stack, batch, options), config.call(stack, batch, options, memory)
    return State(x, memory, getattr(model, stack).prepared(x, call).attention.bias, batch)


def blocks_of(model: Any) -> Iterator[nnx.Module]:
    """Yield the blocks of a model of headjax."""
    stacks = model.config.stacks()
    for name, stack in stacks.items():
        module = getattr(model, name)
        for index, group in enumerate(stack.groups):
            for number, layer in enumerate(group.unstacked(getattr(module, group.name)), start=group.start):
                yield LayerBlock(model.config, name, index, layer, number)
        following = list(stacks)[list(stacks).index(name) + 1 :]
        if following:
            yield NextStack(model, name, following[0])
