"""One forward pass: what it is told, and what may look at it or take part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax

from headjax.core.kind import Kind
from headjax.core.modules import arrays
from headjax.core.tensors import Params
from headjax.nn.attend import Call
from headjax.nn.compute import Compute
from headjax.nn.operands import Attended, Mask
from headjax.nn.residuals import Residual


class Probe(NamedTuple):
    """One attention call as a probe function sees it.

    Attributes:
        slot: `attention` or `cross_attention`.
        module: the attention.
        inputs: `[batch, query, width]`, from which queries are computed.
        attended: contexts and probabilities.
        mask: which keys each query may see.
        query_mask: `[batch, query]` bool, False at padding; None without padding.
        memory_inputs: `[batch, key, width]`, from which keys and values are computed; None if they come from a cache.
    """

    slot: str
    module: Any
    inputs: jax.Array
    attended: Attended
    mask: Any
    query_mask: jax.Array | None
    memory_inputs: jax.Array | None = None

    @property
    def attention(self) -> Kind:
        """The formulation."""
        return cast(Kind, self.module.kind)

    @property
    def params(self) -> Params:
        """Its parameters."""
        return arrays(self.module)


ProbeFunction = Callable[[Probe], Any]
"""Reduces one attention call to the statistics wanted; stacked over layers by the model."""


SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""


class Joining(NamedTuple):
    """A sub-layer about to join the residual stream.

    Attributes:
        slot: `attention`, `cross_attention` or `feed_forward`.
        residual: the residual connection.
        x: `[batch, length, width]`, the stream.
        f: the sub-layer.
        mask: `[batch, length]` bool, False at padding; None without padding.
        read: the stream that f reads: x, or in a parallel layer what enters the layer.
    """

    slot: str
    residual: Residual
    x: jax.Array
    f: SubLayer
    mask: jax.Array | None
    read: jax.Array

    @property
    def inputs(self) -> jax.Array:
        """What f is given."""
        return self.residual.enter(self.read)

    def joined(self) -> jax.Array:
        """Return the stream after the sub-layer."""
        return self.residual.join(self.x, self.f(self.inputs))


Join = Callable[[Joining], jax.Array]
"""What a trace does where a sub-layer joins the stream: `Joining.joined`, or something in its place."""


class Pass(NamedTuple):
    """Everything about one forward pass that is neither parameter nor batch; a family adds what its stacks read.

    Attributes:
        key: PRNG key of dropout; None outside training.
        probe: statistics to take from each attention call.
        compute: how to compute.
        join: how sub-layers join the stream; None is as their residual connections do.
        attention, cross_attention: calls of both.
        memory: `[batch, key, width]`, an encoder's output, for cross-attention.
        query_mask: `[batch, length]` bool, False at padding; None without padding.
        used: number of tokens in the cache, when decoding.
    """

    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    join: Join | None = None
    attention: Call = Call()
    cross_attention: Call = Call()
    memory: jax.Array | None = None
    query_mask: jax.Array | None = None
    used: jax.Array | int = 0

    def reading(self, *, mask: Mask | None = None, positions: jax.Array | None = None, **changes: Any) -> Pass:
        """Return the pass of a stack whose self-attention has this mask and these positions."""
        return self._replace(attention=self.attention._replace(mask=mask, positions=positions), **changes)
