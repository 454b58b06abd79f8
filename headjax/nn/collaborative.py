"""Collaborative attention, whose heads share one query and one key projection."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import ConfigError, require
from headjax.core.fields import Listed, Size
from headjax.core.kind import Kind
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Normal, bias_weight, weight
from headjax.nn.attend import AttentionOptions
from headjax.nn.module import AttentionModule, Ids, formulation
from headjax.nn.operands import Attended, KeyValues
from headjax.nn.projections import HeadOutput, into_heads


@kind("concatenate")
@dataclasses.dataclass(frozen=True)
class Concatenate(Initializer):
    """Blocks of ones: of dim shared dimensions, head h of H starts with h * dim / H to (h + 1) * dim / H for itself.

    With it collaborative attention starts as multi-head attention of concatenated heads (Cordonnier et al. 2020,
    section 3.1).
    """

    def __call__(self, key: jax.Array, tensor: nnx.Param[Any], dtype: Any) -> jax.Array:
        shape = tensor.shape[tensor.stacked :]
        heads, *sizes = shape or (1,)
        if len(sizes) != 1 or sizes[0] % heads:
            raise ConfigError(f"mixing_init: concatenate cannot tile mixing weights {list(shape)} with {heads} blocks")
        owner = jnp.arange(sizes[0]) // (sizes[0] // heads)
        blocks = (owner[None, :] == jnp.arange(heads)[:, None]).astype(dtype)
        return jnp.broadcast_to(blocks, tensor.shape)


@formulation("collaborative")
class CollaborativeAttention(AttentionModule):
    """Collaborative multi-head attention (Cordonnier et al. 2020, equation 6).

        head_h = softmax(((x W_Q + b_Q) diag(m_h) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, shared_dim] and W_K [memory_width, shared_dim] belong to all heads, m_h [shared_dim] and
    u_h [memory_width] to head h. Values and output are those of multi-head attention. The query is mixed, not the key,
    so that a decoding cache holds the one shared key and not one per head.

    A trained multi-head layer becomes this one with W_Q, W_K, M = [m_h] the factors of its stacked W_Q^h W_K^hT and
    u_h = W_K^h b_Q^h (section 3.3). b_K vanishes in the softmax, b_Q turns into the content bias.

        >>> layer = headjax.CollaborativeAttention(16, num_heads=4, shared_dim=8, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)

    Args:
        shared_dim: size of the shared queries and keys.
        value_dim: size of each value.
        head_dim: the head size that sets the logits' scale, 1 / sqrt(head_dim); a conversion keeps the original's,
            whatever the shared size.
        mixing_init: initialiser of the mixing matrix M [heads, shared_dim]: `Concatenate()`, `Ones` or `Normal(0.2)`.
        projection_bias: whether the shared query and key have biases b_Q and b_K.
        content_bias: whether every head has a content bias u_h [memory_width].
        value_bias, output_bias: whether values and output have biases.
        num_heads, head_ids, setting: see `AttentionModule`.
    """

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        num_heads: Listed,
        head_ids: Ids = None,
        shared_dim: Size,
        value_dim: Size,
        head_dim: Size,
        mixing_init: Initializer = Normal(0.2),
        projection_bias: bool = False,
        content_bias: bool = False,
        value_bias: bool = True,
        output_bias: bool = True,
        **setting: Any,
    ) -> None:
        super().__init__(width, memory_width, **setting)
        source = self.memory_width
        self.query = weight((width, shared_dim), ("embed", "shared_dim"))
        self.key = weight((source, shared_dim), ("embed", "shared_dim"))
        self.mixing = weight((num_heads, shared_dim), ("heads", "shared_dim"), mixing_init, inputs=(1,))
        self.value = weight((source, num_heads, value_dim), ("embed", "heads", "head_dim"))
        self.value_bias = bias_weight(value_bias, (num_heads, value_dim), ("heads", "head_dim"))
        self.output = HeadOutput(num_heads, value_dim, width, bias=output_bias)
        self.query_bias = bias_weight(projection_bias, (shared_dim,), ("shared_dim",))
        self.key_bias = bias_weight(projection_bias, (shared_dim,), ("shared_dim",))
        self.content_bias = bias_weight(content_bias, (source, num_heads), ("embed", "heads"))

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        super().check_options(kind)
        # Equal blocks initialise a whole layer; heads that are left after others were removed need not divide its size.
        even = kind.head_ids is not None or kind.shared_dim % kind.num_heads == 0
        needed = f"mixing_init concatenate needs a multiple of the num_heads of {kind.num_heads}, got {kind.shared_dim}"
        require(even or not isinstance(kind.mixing_init, Concatenate), "shared_dim", needed)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key_values = {
            "key": into_heads(inputs, self.key, self.key_bias),  # [batch, key, shared_dim]
            "value": into_heads(inputs, self.value, self.value_bias),  # [batch, key, heads, value_dim]
        }
        if self.content_bias is not None:
            key_values["content"] = into_heads(inputs, self.content_bias)  # [batch, key, heads]
        return key_values

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        query = into_heads(inputs, self.query, self.query_bias)[:, :, None, :]  # [batch, query, 1, shared_dim]
        key, scale = key_values["key"][:, :, None, :], 1.0 / math.sqrt(self.kind.head_dim)
        if self.content_bias is not None:
            content = scale * jnp.swapaxes(key_values["content"], 1, 2)[:, :, None, :]  # [batch, heads, 1, key]
            call = call._replace(bias=content if call.bias is None else content + call.bias)
        return call(query, key, key_values["value"], scale=scale, mixing=self.mixing[...])

    def options_after_pruning(self, heads: Sequence[int]) -> dict[str, Any]:
        tiled = isinstance(self.kind.mixing_init, Concatenate)
        return super().options_after_pruning(heads) | ({"mixing_init": Normal(0.2)} if tiled else {})
