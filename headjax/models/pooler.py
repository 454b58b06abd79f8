"""One vector for a whole sequence."""

from __future__ import annotations

import dataclasses

import jax

from headjax.attention.projections import into_heads
from headjax.core.fields import Checked, Rate
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.dropout import Dropper
from headjax.models.feed_forward import ACTIVATIONS, ActivationName
from headjax.models.linear import linear_tensors


@kind("pooler")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooler(Checked):
    """phi(dropout(h_0) W + b), h_0 the first token's hidden state.

    BERT pools with tanh in every model; the first layer of RoBERTa's classification output is the same map with a
    dropout before it, and that of DistilBERT's has ReLU for phi.

    Attributes:
        activation: phi.
        dropout: rate on the first token's hidden state.
    """

    activation: ActivationName = "tanh"
    dropout: Rate = 0.0

    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""
        return linear_tensors(width, width)

    def __call__(self, params: Params, hidden: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, length, width]` to `[batch, width]`."""
        first = Dropper(self.dropout, key)(hidden[:, 0])
        return ACTIVATIONS[self.activation](into_heads(first, params["kernel"], params["bias"]))

    def flops(self, width: int) -> int:
        """Floating-point operations for one example."""
        return 2 * width * width
