"""Maps from hidden states to logits or to one pooled vector, and the cross-entropy of labels."""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp
import optax

from headjax.attention.operands import Dropout
from headjax.attention.projections import into_heads
from headjax.core.fields import Positive, Rate
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors, Zeros, weight
from headjax.models.sublayers import ACTIVATIONS, ActivationName

IGNORED = -100
"""The label of positions that carry no loss."""


class TokenLogits(Spec, abc.ABC):
    """Base of the outputs over the vocabulary."""

    @abc.abstractmethod
    def tensors(self, width: int, vocab_size: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        """`[batch, length, width]` to float32 `[batch, length, vocabulary]`; `embedding` is the token table."""


@kind("tied")
@dataclasses.dataclass(frozen=True)
class Tied(TokenLogits):
    """scale * h E^T (+ b): the token embeddings are the output's weights too (Press and Wolf 2017).

    Attributes:
        bias: whether there is one bias per token.
        scale_by_width: whether scale is 1 / sqrt(width) (T5) and not 1.
        softcap: c of the logits c * tanh(logits / c) that come of these (Gemma); None leaves them.
    """

    bias: bool = False
    scale_by_width: bool = False
    softcap: Positive | None = None

    def tensors(self, width: int, vocab_size: int) -> Tensors:
        return {"bias": weight((vocab_size,), ("vocabulary",), Zeros(), decay=False)} if self.bias else {}

    def __call__(self, params: Params, hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        if self.scale_by_width:
            hidden = hidden * jnp.asarray(hidden.shape[-1] ** -0.5, hidden.dtype)
        return _capped(into_heads(hidden, embedding.T, params.get("bias")).astype(jnp.float32), self.softcap)


@kind("untied")
@dataclasses.dataclass(frozen=True)
class Untied(TokenLogits):
    """h W (+ b) with its own weights.

    Attributes:
        bias: whether there is one bias per token.
        softcap: as in `Tied`.
    """

    bias: bool = False
    softcap: Positive | None = None

    def tensors(self, width: int, vocab_size: int) -> Tensors:
        tensors = {"kernel": weight((width, vocab_size), ("embed", "vocabulary"))}
        if self.bias:
            tensors["bias"] = weight((vocab_size,), ("vocabulary",), Zeros(), decay=False)
        return tensors

    def __call__(self, params: Params, hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        return _capped(into_heads(hidden, params["kernel"], params.get("bias")).astype(jnp.float32), self.softcap)


def _capped(logits: jax.Array, cap: float | None) -> jax.Array:
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats of each label, 0 where the label is `IGNORED`, and which labels count (1.0 or 0.0).

    Args:
        logits: `[..., classes]`.
        labels: `[...]` integers.
        smoothing: share of the target spread evenly over all classes (Szegedy et al. 2016, section 7).
    """
    counted = labels != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, labels, 0))
    if smoothing > 0.0:
        even = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)
        losses = (1.0 - smoothing) * losses + smoothing * even
    return jnp.where(counted, losses, 0.0), counted.astype(jnp.float32)


def linear_tensors(width: int, size: int) -> Tensors:
    """Declares `kernel [width, size]` and `bias [size]`."""
    return {"kernel": weight((width, size), ("embed", None)), "bias": weight((size,), (None,), Zeros(), decay=False)}


def linear(params: Params, inputs: jax.Array) -> jax.Array:
    """X W + b in float32: `[..., width]` to `[..., size]`."""
    return into_heads(inputs, params["kernel"], params["bias"]).astype(jnp.float32)


@kind("pooler")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooler(Spec):
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
        first = Dropout(self.dropout, key)(hidden[:, 0])
        return ACTIVATIONS[self.activation](into_heads(first, params["kernel"], params["bias"]))

    def flops(self, width: int) -> int:
        """Floating-point operations for one example."""
        return 2 * width * width
