"""The observation of every sub-layer of a model as it joins the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.models.compute import StackCall
from headjax.models.hooks import Hooks, Joining, Reports
from headjax.models.layer import LayerCall, TransformerLayer
from headjax.models.stack import TransformerStack

_OBSERVED = "observed"
"""Key under which an observed layer reports, beside the probe's results."""

Observer = Callable[[Joining, Any], tuple[jax.Array, Any, Any]]
"""(sub-layer, state) to the stream after it, the state for the next sub-layer, and its record."""


class _Stream(NamedTuple):
    """The carry from layer to layer of an observed stack: the hidden states and the observer's state."""

    hidden: jax.Array
    state: Any


class Observing(Hooks):
    """Hooks that have an observer compute every sub-layer in the residual connection's place.

    Use one instance for one trace, inside the traced function, which returns `records` with its other results.

    Attributes:
        records: by stack, the records of its sub-layers, in the order of computation; there after the forward pass.
    """

    def __init__(self, observer: Observer, state: Any = ()) -> None:
        self.records: dict[str, list[Any]] = {}
        self._observer, self._state = observer, state

    def stack(self, stack: TransformerStack, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[Reports]]:
        call = stack.prepared(x, call)
        stream: Any = _Stream(x, self._state)
        stream, reports = stack.layers_forward(stream, call)
        self.records[call.stack] = [record for layer in reports for record in layer.pop(_OBSERVED)]
        return stack.end(stream.hidden), reports

    def layer(self, layer: TransformerLayer, x: _Stream, call: LayerCall) -> tuple[_Stream, Reports]:
        joining = _JoinedBy(self._observer, x.state)
        hidden, reports = layer(x.hidden, call._replace(hooks=joining))
        return _Stream(hidden, joining.state), reports | {_OBSERVED: joining.records}


class _JoinedBy(Hooks):
    """Hooks of one layer, whose sub-layers an observer joins with the stream one after another."""

    def __init__(self, observer: Observer, state: Any) -> None:
        self.state, self.records = state, []  # type: ignore[var-annotated]
        self._observer = observer

    def join(self, joining: Joining) -> jax.Array:
        x, self.state, record = self._observer(joining, self.state)
        self.records.append(record)
        return x


def variance(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return the variance of `[batch, length, width]`, or of its values at tokens that `mask` marks, in float32.

    The result is NaN where the mask marks none.
    """
    x = x.astype(jnp.float32)
    if mask is None:
        return jnp.var(x)
    counted = jnp.broadcast_to(mask[:, :, None], x.shape)
    return jnp.var(x, where=counted)
