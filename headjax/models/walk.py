"""A model block by block: what enters the first one, the blocks, and what follows the last one.

Any `nnx.Module` may offer this walk. Heads are then ablated from their own block on, and not by whole passes:

    model.embed(batch, compute)     # the state that enters the first block: arrays, in any tree
    model.blocks()                  # modules of the model in the order of computation, each from state to state
    model.finish(state, compute)    # what model(batch) returns, from the state after the last block
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.modules import IgnoredStatic
from headjax.models.config import HEAD_STACKS, ModelConfig
from headjax.nn.block import Block, Compute, ForwardOptions, Probe, ResidualStep, State

FEED_FORWARD = "feed_forward"
"""Slot of the feed-forward sub-layer, beside `attention` and `cross_attention`."""


class Walkable(Protocol):
    """A model that offers the walk."""

    def embed(self, batch: Any, compute: Compute = ...) -> Any: ...


class Stacks(Protocol):
    """A model whose layers lie in stacks, each under its name."""

    @property
    def config(self) -> ModelConfig: ...


class SubLayerSeen(NamedTuple):
    """A sub-layer as it joins the residual stream: the stream becomes shortcut * stream + branch * output.

    The output is a linear map of the features: the heads' contexts side by side, or the inner activations of the
    feed-forward.
    """

    stream: jax.Array  # [batch, length, width], before the sub-layer
    output: jax.Array  # [batch, length, width], bias included
    features: jax.Array  # [batch, length, features]
    mask: jax.Array | None  # [batch, length] bool, False at padding; None without padding
    shortcut: jax.Array  # [width]
    branch: jax.Array  # [width]


class WalkBlock(nnx.Module):
    """Base of the blocks of a model of headjax."""

    def __call__(self, state: State, compute: Compute = Compute()) -> State:
        """Return the state after the block."""
        return self.run(state, ForwardOptions(compute=compute))

    def run(self, state: State, options: ForwardOptions) -> State:
        raise NotImplementedError

    def named_sites(self, sites: tuple[Any, ...]) -> list[Any]:
        """Return the sites that are the block's own, with heads named by head stack, layer and original number."""
        return []


class LayerBlock(WalkBlock):
    """One layer of a stack. Layers of equal structure share programs, whatever their numbers."""

    def __init__(
        self, config: ModelConfig, stack: str, layer: Block, number: int, columns: jax.Array | None = None
    ) -> None:
        self.config, self.stack, self.layer = config, stack, layer
        # Columns are the places of the layer's heads in the position bias; None where the config tells them.
        self.number, self.columns = nnx.data(np.int32(number)), nnx.data(columns)
        self.place = nnx.static(IgnoredStatic(number))

    def run(self, state: State, options: ForwardOptions) -> State:
        stacks = self.config.stacks()
        options, columns = options.of_stack(list(stacks).index(self.stack)), self.columns
        if columns is None and stacks[self.stack].columns is not None:
            columns = jnp.asarray(stacks[self.stack].columns)[self.number, : self.layer.attention.num_heads]
        layer = options.compute.cast(self.layer)
        run = options.compute.rematerialised(lambda layer, x: layer(state._replace(x=x), options, self.number, columns))
        x, _ = run(layer, state.x)
        return state._replace(x=x)

    def sub_layers(
        self,
        state: State,
        compute: Compute = Compute(),
        added: Mapping[str, jax.Array] | None = None,
        probe: Callable[[Probe], None] | None = None,
        passed: Mapping[str, jax.Array] | None = None,
    ) -> tuple[State, dict[str, SubLayerSeen]]:
        """Return the state after the layer, and its sub-layers by slot; `added` is what joins each one's output.

        `passed` is the stream after one of the sub-layers, where it is known: up to that one nothing is computed.
        """
        contexts: dict[str, jax.Array] = {}
        seen: dict[str, SubLayerSeen] = {}
        slots = self.layer.slots

        def note(call: Probe) -> None:
            contexts[call.slot] = call.attended.context
            if probe is not None:
                probe(call)

        def join(joining: ResidualStep) -> jax.Array:
            slot, residual, x = joining.slot, joining.residual, joining.x
            for known, stream in (passed or {}).items():
                if slots.index(slot) <= slots.index(known):
                    return stream
            inputs = residual.enter(joining.read)
            output = joining.f(inputs)
            if added is not None and slot in added:
                output = output + added[slot]
            inner = compute.cast(self.layer).feed_forward.inner(inputs) if slot == FEED_FORWARD else contexts[slot]
            shortcut, branch = (jnp.broadcast_to(factor, x.shape[-1:]) for factor in residual.factors())
            features = inner.reshape(*x.shape[:2], -1)
            seen[slot] = SubLayerSeen(x, output, features, joining.mask, shortcut, branch)
            return residual.join(x, output)

        compute = dataclasses.replace(compute, remat="none")  # what is noted leaves no recomputation
        return self.run(state, ForwardOptions(compute=compute, probe=note, join=join)), seen

    def holding(self, layer: Block, columns: jax.Array | None = None) -> LayerBlock:
        """Return the block with another layer; `columns` are its heads' places in the position bias, where others."""
        columns = self.columns if columns is None else columns
        return LayerBlock(self.config, self.stack, layer, self.place.value, columns)

    def named_sites(self, sites: tuple[Any, ...]) -> list[Any]:
        number, named = self.place.value, {site.path: site for site in sites}
        for head_stack, (stack, slot) in HEAD_STACKS.items():
            site = named.get(f"layer.{slot}") if stack == self.stack else None
            if site is not None:
                ids = getattr(self.config.stacks()[stack].layers[number], slot).ids
                names = ids if len(ids) == site.heads else None
                named[site.path] = dataclasses.replace(site, first=(head_stack, number), ids=names)
        return list(named.values())


class NextStack(WalkBlock):
    """The step from the state after the encoder's last layer to the state before the decoder's first one."""

    def __init__(self, model: Stacks) -> None:
        self.model = model

    def run(self, state: State, options: ForwardOptions) -> State:
        encoder_decoder: Any = self.model
        entered: State = encoder_decoder.enter_decoder(state, options.compute, options.key)
        return entered


def blocks_of(model: Stacks, *, backwards: bool = False) -> Iterator[LayerBlock | NextStack]:
    """Yield the blocks of a model of headjax, each with copies of its layer's arrays; or from the last one on."""
    stacks, direction = model.config.stacks(), -1 if backwards else 1
    for place, name in [*enumerate(stacks)][::direction]:
        following = [NextStack(model) for _ in list(stacks)[place + 1 :]]
        yield from following if backwards else ()
        for group in stacks[name].groups[::direction]:
            layers = group.unstacked(getattr(getattr(model, name), group.name), backwards=backwards)
            for number, layer in zip(range(group.start, group.stop)[::direction], layers, strict=True):
                yield LayerBlock(model.config, name, layer, number)
        yield from () if backwards else following


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Kept:
    """Stands for an array that a block does not change, by its index among the arrays of the state."""

    place: int


def marked(state: Any, after: Any) -> Any:
    """Return, in a trace, the state after a block with a `_Kept` in place of every array that it does not change."""
    places = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(state))}
    return jax.tree.map(lambda leaf: _Kept(places[id(leaf)]) if id(leaf) in places else leaf, after)


def shared(state: Any, after: Any) -> Any:
    """Return a `marked` state with the unchanged arrays of the state before."""
    leaves, kept = jax.tree.leaves(state), lambda leaf: isinstance(leaf, _Kept)
    return jax.tree.map(lambda leaf: leaves[leaf.place] if kept(leaf) else leaf, after, is_leaf=kept)


@functools.partial(jax.jit, static_argnames="compute")
def _step(block: Any, state: Any, compute: Compute) -> Any:
    return marked(state, block(state, compute))


def step(block: Any, state: Any, compute: Compute = Compute()) -> Any:
    """Return the state after a block, jitted once for blocks of equal structure; it shares arrays handed on as is."""
    return shared(state, _step(block, state, compute))


@functools.partial(jax.jit, static_argnames="compute")
def embed(model: Walkable, batch: Any, compute: Compute = Compute()) -> Any:
    """Return the state that enters the first block, jitted."""
    return model.embed(batch, compute=compute)


def shows_sub_layers(model: nnx.Module) -> bool:
    """Return whether a model offers the walk with blocks that show their `sub_layers`, as `LayerBlock` does."""
    blocks, offered = getattr(model, "blocks", None), list[bool]()

    def look() -> None:  # in a trace, which copies no layer out of its stack
        offered.extend(hasattr(block, "sub_layers") for block in (blocks() if callable(blocks) else ()))

    jax.eval_shape(look)
    return any(offered)
