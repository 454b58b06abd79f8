"""Maps from hidden states to logits or to one pooled vector, and the cross-entropy of labels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from headjax.core.tensors import Zeros, weight
from headjax.nn.feed_forward import ACTIVATIONS, ActivationName
from headjax.nn.operands import Dropout
from headjax.nn.projections import Weight, bias_weight, into_heads

IGNORED = -100
"""The label of positions that carry no loss."""


class VocabularyLogits(nnx.Module):
    """scale * h E^T (+ b), E the token embeddings (Press and Wolf 2017), or h W (+ b) with weights of its own.

    Args:
        width: size of the residual stream.
        vocab_size: number of tokens.
        tied: whether the weights are E.
        bias: whether there is one bias per token.
        scaled: whether scale is 1 / sqrt(width) (T5) and not 1.
        softcap: c of the logits c * tanh(logits / c) that come of these (Gemma); None leaves them.
    """

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        tied: bool = True,
        bias: bool = False,
        scaled: bool = False,
        softcap: float | None = None,
    ) -> None:
        self.scaled, self.softcap = scaled, softcap
        self.kernel = None if tied else weight((width, vocab_size), ("embed", "vocabulary"))
        self.bias = bias_weight(bias, (vocab_size,), ("vocabulary",))

    def __call__(self, hidden: jax.Array, embedding: Weight) -> jax.Array:
        """`[batch, length, width]` to float32 `[batch, length, vocabulary]`; `embedding` is the token table E."""
        if self.scaled:
            hidden = hidden * jnp.asarray(hidden.shape[-1] ** -0.5, hidden.dtype)
        kernel = embedding.T if self.kernel is None else self.kernel  # [width, vocabulary]
        logits, cap = into_heads(hidden, kernel, self.bias).astype(jnp.float32), self.softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats of each label, 0 where the label is `IGNORED`, and which labels count (1.0 or 0.0)."""
    counted = labels != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, labels, 0))
    if smoothing > 0.0:
        even = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)
        losses = (1.0 - smoothing) * losses + smoothing * even
    return jnp.where(counted, losses, 0.0), counted.astype(jnp.float32)


class Linear(nnx.Module):
    """X W + b; `bias` may be None."""

    bias: nnx.Param[Any] | None

    def __init__(self, width: int, size: int, config: Any = None) -> None:
        self.config = config
        self.kernel = weight((width, size), ("embed", None))
        self.bias = weight((size,), (None,), Zeros(), decay=False)

    def logits(self, inputs: jax.Array) -> jax.Array:
        """`[..., width]` to float32 `[..., size]`."""
        return into_heads(inputs, self.kernel, self.bias).astype(jnp.float32)


class Pooler(Linear):
    """phi(dropout(h_0) W + b), h_0 the first token's hidden state.

    BERT pools with tanh in every model; the first layer of RoBERTa's classification output is the same map with a
    dropout before it, and that of DistilBERT's has ReLU for phi.

    Attributes:
        activation: phi.
        dropout: rate on the first token's hidden state.
    """

    def __init__(self, width: int, activation: ActivationName = "tanh", dropout: float = 0.0) -> None:
        super().__init__(width, width)
        self.activation, self.dropout = activation, dropout

    def __call__(self, hidden: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, length, width]` to `[batch, width]`."""
        first = Dropout(self.dropout, key)(hidden[:, 0])  # [batch, width]
        return ACTIVATIONS[self.activation](into_heads(first, self.kernel, self.bias))
