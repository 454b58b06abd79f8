"""Maps from hidden states to logits or to one pooled vector, and the cross-entropy of labels."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from headjax.core.class_names import IGNORED
from headjax.core.tensors import Zeros, weight
from headjax.nn.feed_forward import ACTIVATIONS, ActivationName
from headjax.nn.norms import Norm, small_norm
from headjax.nn.operands import Dropout
from headjax.nn.projections import Weight, bias_weight, into_heads


class VocabularyLogits(nnx.Module):
    """scale * h E^T (+ b), E the token embeddings (Press and Wolf 2017), or h W (+ b) with weights of its own."""

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        tied: bool = True,  # whether the weights are E
        bias: bool = False,
        scaled: bool = False,  # whether scale is 1 / sqrt(width) (T5) and not 1
        softcap: float | None = None,  # c of the logits c * tanh(logits / c) that come of these (Gemma)
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
    """X W + b, or X W."""

    bias: nnx.Param[Any] | None

    def __init__(self, width: int, size: int, config: Any = None, *, bias: bool = True) -> None:
        self.config = config
        self.kernel = weight((width, size), ("embed", None))
        self.bias = weight((size,), (None,), Zeros(), decay=False) if bias else None

    def logits(self, inputs: jax.Array) -> jax.Array:
        """`[..., width]` to float32 `[..., size]`."""
        return into_heads(inputs, self.kernel, self.bias).astype(jnp.float32)


PoolerInputs = Literal["first", "mean", "tokens"]


class Pooler(Linear):
    """norm(phi(dropout(h) W + b)), h the first token's hidden state, the tokens' mean, or that of each token.

    BERT pools with tanh in every model; the first layer of RoBERTa's classification output is the same map with a
    dropout before it, and that of DistilBERT's has ReLU for phi. ModernBERT's outputs begin with the map and a norm.
    """

    def __init__(
        self,
        width: int,
        activation: ActivationName = "tanh",
        dropout: float = 0.0,
        *,
        reads: PoolerInputs = "first",
        norm: Norm | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(width, width, bias=bias)
        self.activation, self.dropout, self.reads = activation, dropout, reads
        self.norm = small_norm(norm, width)

    def __call__(self, hidden: jax.Array, key: jax.Array | None, counted: jax.Array | None = None) -> jax.Array:
        """`[batch, length, width]` to `[batch, width]`, or of each token; the mean is of those that are `counted`."""
        x = hidden[:, 0] if self.reads == "first" else hidden
        if self.reads == "mean":
            weights = jnp.ones(hidden.shape[:2]) if counted is None else counted
            weights = jnp.broadcast_to(weights, hidden.shape[:2]).astype(hidden.dtype)
            x = jnp.einsum("bl,blw->bw", weights, hidden) / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
        x = Dropout(self.dropout, key)(x)
        x = ACTIVATIONS[self.activation](into_heads(x, self.kernel, self.bias))
        return x if self.norm is None else self.norm(x)
