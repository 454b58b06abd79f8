"""Dense maps: into and out of heads, feed-forward, pooling, and logits with the cross-entropy of their labels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from headjax.core.class_names import IGNORED
from headjax.core.tensors import bias_weight, weight
from headjax.nn.norms import Norm, small_norm
from headjax.nn.operands import Dropout

Weight = jax.Array | nnx.Param[Any]
"""An array, by itself or in a module."""


def into_heads(inputs: jax.Array, weight: Weight, bias: Weight | None = None) -> jax.Array:
    """Return X W + b: `[..., width]` by `[width, *features]` to `[..., *features]`."""
    tokens = inputs.reshape(-1, inputs.shape[-1])
    flat = tokens @ weight.reshape(weight.shape[0], -1)
    outputs = flat.reshape(*inputs.shape[:-1], *weight.shape[1:])
    return outputs if bias is None else outputs + bias.reshape((1,) * (outputs.ndim - bias.ndim) + bias.shape)


class HeadOutput(nnx.Module):
    """sum_h context_h W_O^h + b_O: the one place where heads are gated, read, refitted and cut.

    The kernel W_O is `[heads, value_dim, width]`; None without heads, of which the sum is zero.
    """

    def __init__(self, heads: int, value_dim: int, width: int, *, bias: bool) -> None:
        self.width, axes = width, ("heads", "head_dim", "embed")
        shape = (heads, value_dim, width)
        self.kernel = weight(shape, axes, inputs=(0, 1), drawn_as_module=True) if heads else None
        self.bias = bias_weight(bias, (width,), ("embed",))

    def __call__(self, contexts: jax.Array) -> jax.Array:
        """Map `[batch, query, heads * value_dim]` to `[batch, query, width]`."""
        if self.kernel is None:
            outputs = jnp.zeros((*contexts.shape[:-1], self.width), contexts.dtype)
        else:
            outputs = into_heads(contexts, self.kernel.reshape(-1, self.kernel.shape[-1]))
        return outputs if self.bias is None else outputs + self.bias.reshape(1, 1, -1)


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """The Gaussian error linear unit, x Phi(x) with Phi the normal cumulative function (Hendrycks and Gimpel 2016).

    Computed in float32. Phi is (1 + erf(x / sqrt 2)) / 2, as in PyTorch: its error is one rounding of 1. The function
    erfc is exact in the negative tail too, but takes several times the work. The derivative in closed form keeps one
    array for the backward pass, the slope, where that of single steps keeps several.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 * (1.0 + jax.lax.erf(wide * math.sqrt(0.5))))).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Tangent: d gelu = (Phi(x) + x phi(x)) dx, with phi the normal density."""
    ((x,), (change,)) = primals, tangents
    wide = x.astype(jnp.float32)
    cumulative = 0.5 * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * jnp.square(wide)) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = (cumulative + wide * density).astype(x.dtype)
    return (wide * cumulative).astype(x.dtype), slope * change


ActivationName = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class FeedForward(nnx.Module):
    """phi(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2).

    Gated it is (phi(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020): SwiGLU with `silu`, GEGLU with `gelu`.
    """

    def __init__(
        self, width: int, hidden: int, activation: ActivationName = "gelu", *, gated: bool = False, bias: bool = True
    ) -> None:
        axes = ("embed", "feed_forward")
        self.activation = activation
        self.gate = weight((width, hidden), axes) if gated else None  # W_g
        self.up = weight((width, hidden), axes)  # W_1
        self.down = weight((hidden, width), axes[::-1])  # W_2
        self.gate_bias = bias_weight(gated and bias, (hidden,), ("feed_forward",))
        self.up_bias = bias_weight(bias, (hidden,), ("feed_forward",))
        self.down_bias = bias_weight(bias, (width,), ("embed",))

    @property
    def hidden(self) -> int:
        return self.up.shape[-1]

    def __call__(self, inputs: jax.Array, dropout: Dropout = Dropout()) -> jax.Array:
        """Return the outputs `[batch, length, width]`; dropout acts on the inner activations."""
        inner = dropout(self.inner(inputs))  # [batch, length, hidden]
        return into_heads(inner, self.down, self.down_bias)

    def inner(self, inputs: jax.Array) -> jax.Array:
        """Return the inner activations `[batch, length, hidden]` of inputs `[batch, length, width]`."""
        phi, up = ACTIVATIONS[self.activation], into_heads(inputs, self.up, self.up_bias)
        return phi(up) if self.gate is None else phi(into_heads(inputs, self.gate, self.gate_bias)) * up


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


@functools.partial(jax.jit, static_argnames="smoothing")
def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats of each label, 0 where the label is `IGNORED`, and which labels count (1.0 or 0.0)."""
    present = labels != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(present, labels, 0))
    if smoothing > 0.0:
        even = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)
        losses = (1.0 - smoothing) * losses + smoothing * even
    return jnp.where(present, losses, 0.0), present.astype(jnp.float32)


class Linear(nnx.Module):
    """X W + b, or X W."""

    bias: nnx.Param[Any] | None

    def __init__(self, width: int, size: int, config: Any = None, *, bias: bool = True) -> None:
        self.config = config
        self.kernel = weight((width, size), ("embed", None))
        self.bias = bias_weight(bias, (size,), (None,))

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

    def __call__(self, hidden: jax.Array, key: jax.Array | None, valid_tokens: jax.Array | None = None) -> jax.Array:
        """`[batch, length, width]` to `[batch, width]`, or of each token; the mean is of the `valid_tokens`."""
        x = hidden[:, 0] if self.reads == "first" else hidden
        if self.reads == "mean":
            weights = jnp.ones(hidden.shape[:2]) if valid_tokens is None else valid_tokens
            weights = jnp.broadcast_to(weights, hidden.shape[:2]).astype(hidden.dtype)
            x = jnp.einsum("bl,blw->bw", weights, hidden) / jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
        x = Dropout(self.dropout, key)(x)
        x = ACTIVATIONS[self.activation](into_heads(x, self.kernel, self.bias))
        return x if self.norm is None else self.norm(x)
