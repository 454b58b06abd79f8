"""Maps from hidden states to logits or to one pooled vector, and the cross-entropy of labels."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from headjax.attention.operands import Dropout
from headjax.attention.projections import Weight, bias_weight, into_heads
from headjax.core.fields import Positive, Rate
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Zeros, weight
from headjax.models.sublayers import ACTIVATIONS, ActivationName

IGNORED = -100
"""The label of positions that carry no loss."""


class TokenLogits(Spec, abc.ABC):
    """Base of the outputs over the vocabulary."""

    bias: bool
    softcap: float | None
    scale_by_width: bool

    @abc.abstractmethod
    def module(self, width: int, vocab_size: int) -> VocabularyLogits:
        """Return the module."""


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

    def module(self, width: int, vocab_size: int) -> VocabularyLogits:
        return VocabularyLogits(self, vocab_size)


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

    scale_by_width: ClassVar[bool] = False  # type: ignore[misc]

    def module(self, width: int, vocab_size: int) -> VocabularyLogits:
        return VocabularyLogits(self, vocab_size, weight((width, vocab_size), ("embed", "vocabulary")))


class VocabularyLogits(nnx.Module):
    """The module of `Tied`, which has no kernel, and of `Untied`."""

    def __init__(self, config: TokenLogits, vocab_size: int, kernel: nnx.Param[Any] | None = None) -> None:
        self.config = config
        self.kernel = kernel
        self.bias = bias_weight(config.bias, (vocab_size,), ("vocabulary",))

    def __call__(self, hidden: jax.Array, embedding: Weight) -> jax.Array:
        """`[batch, length, width]` to float32 `[batch, length, vocabulary]`; `embedding` is the token table E."""
        if self.config.scale_by_width:
            hidden = hidden * jnp.asarray(hidden.shape[-1] ** -0.5, hidden.dtype)
        kernel = embedding.T if self.kernel is None else self.kernel  # [width, vocabulary]
        logits, cap = into_heads(hidden, kernel, self.bias).astype(jnp.float32), self.config.softcap
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
    """X W + b."""

    def __init__(self, width: int, size: int, config: Any = None) -> None:
        self.config = config
        self.kernel = weight((width, size), ("embed", None))
        self.bias = weight((size,), (None,), Zeros(), decay=False)

    def logits(self, inputs: jax.Array) -> jax.Array:
        """`[..., width]` to float32 `[..., size]`."""
        return into_heads(inputs, self.kernel, self.bias).astype(jnp.float32)


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

    def module(self, width: int) -> FirstTokenPooler:
        """Return the module."""
        return FirstTokenPooler(width, width, self)

    def flops(self, width: int) -> int:
        """Floating-point operations for one example."""
        return 2 * width * width


class FirstTokenPooler(Linear):
    """The module of `Pooler`."""

    def __call__(self, hidden: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, length, width]` to `[batch, width]`."""
        first = Dropout(self.config.dropout, key)(hidden[:, 0])  # [batch, width]
        return ACTIVATIONS[self.config.activation](into_heads(first, self.kernel, self.bias))
