"""Attention whose heads share one query and one key projection: collaborative attention and its Tucker form."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call, default_scale
from headjax.attention.formulation import Attention, KeyValues
from headjax.attention.module import AttentionModule, Rngs
from headjax.attention.operands import Attended
from headjax.attention.projections import bias_weight, into_heads
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import FanIn, Initializer, Normal, Ones, Params, weight


@kind("concatenate")
@dataclasses.dataclass(frozen=True)
class Concatenate(Initializer):
    """Blocks of ones: of dim shared dimensions, head h of H starts with h * dim / H to (h + 1) * dim / H for itself.

    With it collaborative attention starts as multi-head attention of concatenated heads (Cordonnier et al. 2020,
    section 3.1). A full mixing matrix per head (Tucker) has the blocks on its diagonal.
    """

    def __call__(self, key: jax.Array, tensor: nnx.Param[Any], dtype: Any) -> jax.Array:
        shape = tensor.shape[tensor.stacked :]
        heads, *sizes = shape or (1,)
        if len(set(sizes)) != 1 or sizes[0] % heads:
            raise ConfigError(f"mixing_init: concatenate cannot tile mixing weights {list(shape)} with {heads} blocks")
        owner = jnp.arange(sizes[0]) // (sizes[0] // heads)
        blocks = (owner[None, :] == jnp.arange(heads)[:, None]).astype(dtype)
        if len(sizes) == 2:
            blocks = blocks[:, :, None] * jnp.eye(sizes[0], dtype=dtype)[None]
        return jnp.broadcast_to(blocks, tensor.shape)


MIXINGS: dict[str, Initializer] = {"concatenate": Concatenate(), "ones": Ones, "normal": Normal(0.2)}
"""The initialisations that Cordonnier et al. (2020) name, `normal` being the default of their code."""


def check_mixing(attention: Attention, field: str) -> None:
    """Refuse `Concatenate` for a size that the heads cannot share evenly, unless heads were removed since."""
    size = getattr(attention, field)
    require(
        attention.head_ids is not None or size % attention.num_heads == 0,
        field,
        f"mixing_init concatenate needs a multiple of the num_heads of {attention.num_heads}, got {size}",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedKey(Attention):
    """Attention whose heads share one query and one key projection and differ in how they mix the query.

        head_h = softmax((mix_h(x W_Q + b_Q) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, query_size] and W_K [memory_width, key_size] belong to all heads; the map mix_h from query_size to
    key_size is the subclass's. Values and output are those of multi-head attention. The query is mixed, not the key, so
    that a decoding cache holds one key for all heads.

    Attributes:
        value_dim: size of each value.
        head_dim: the head size that sets the logits' scale, 1 / sqrt(head_dim); a conversion keeps the original's,
            whatever the shared size.
        projection_bias: whether the shared query and key have biases b_Q and b_K.
        content_bias: whether every head has a content bias u_h [memory_width].
        value_bias, output_bias: whether values and output have biases.
    """

    value_dim: Size
    head_dim: Size
    projection_bias: bool = False
    content_bias: bool = False
    value_bias: bool = True
    output_bias: bool = True

    @property
    @abc.abstractmethod
    def query_size(self) -> int:
        """Size of the shared query."""

    @property
    @abc.abstractmethod
    def key_size(self) -> int:
        """Size of the shared key."""

    @abc.abstractmethod
    def mixing_flops(self) -> int:
        """Number of multiply-adds that mix one query for all heads in matrix products."""

    def with_heads(self, heads: Sequence[int]) -> Attention:
        kept = super().with_heads(heads)
        if not isinstance(getattr(self, "mixing_init", None), Concatenate):
            return kept
        # Equal blocks initialise a whole layer; the remaining heads need not divide its size.
        return dataclasses.replace(kept, mixing_init=Normal(0.2))  # type: ignore[call-arg]

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        heads, values = self.num_heads, self.num_heads * self.value_dim
        queries = query_length * (width * self.query_size + self.mixing_flops())
        content = memory_width * heads if self.content_bias else 0
        stored = key_length * (memory_width * (self.key_size + values) + content)
        pairs = query_length * key_length * (heads * self.key_size + values)
        outputs = query_length * values * width
        return 2 * (queries + stored + pairs + outputs)


@kind("collaborative")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Collaborative(SharedKey):
    """Collaborative multi-head attention (Cordonnier et al. 2020, equation 6).

        head_h = softmax(((x W_Q + b_Q) diag(m_h) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, shared_dim] and W_K [memory_width, shared_dim] belong to all heads, m_h [shared_dim] and
    u_h [memory_width] to head h. Values and output are those of multi-head attention. The query is mixed, not the key,
    so that a decoding cache holds the one shared key and not one per head.

    A trained multi-head layer becomes this one with W_Q, W_K, M = [m_h] the factors of its stacked W_Q^h W_K^hT and
    u_h = W_K^h b_Q^h (section 3.3). b_K vanishes in the softmax, b_Q turns into the content bias.

    Attributes:
        shared_dim: size of the shared queries and keys.
        mixing_init: initialiser of the mixing matrix M [heads, shared_dim]; the paper's three are in `MIXINGS`.
    """

    shared_dim: Size
    mixing_init: Initializer = Normal(0.2)

    def validate(self) -> None:
        if isinstance(self.mixing_init, Concatenate):
            check_mixing(self, "shared_dim")

    @property
    def query_size(self) -> int:
        return self.shared_dim

    @property
    def key_size(self) -> int:
        return self.shared_dim

    def mixing_flops(self) -> int:
        return 0

    def module(self, width: int, memory_width: int) -> CollaborativeAttention:
        return CollaborativeAttention(width, memory_width=memory_width, config=self)


@kind("tucker")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tucker(SharedKey):
    """Collaborative attention with full mixing matrices, the Tucker form of the stacked W_Q^h W_K^hT.

        head_h = softmax(((x W_Q + b_Q) M_h (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, query_rank] and W_K [memory_width, key_rank] belong to all heads, M_h [query_rank, key_rank] and
    u_h [memory_width] to head h. Collaborative attention (Cordonnier et al. 2020) is the case of diagonal M_h, a CP
    instead of a Tucker decomposition; multi-matrix factorisation attention (Hu et al. 2024) shares bases, too.

    Attributes:
        query_rank, key_rank: sizes of the shared query and key.
        mixing_init: initialiser of the mixing matrices [heads, query_rank, key_rank].
    """

    query_rank: Size
    key_rank: Size
    mixing_init: Initializer = FanIn()

    def validate(self) -> None:
        if isinstance(self.mixing_init, Concatenate):
            same = self.query_rank == self.key_rank
            sizes = f"{self.query_rank} and {self.key_rank}"
            require(same, "query_rank", f"mixing_init concatenate needs query_rank equal to key_rank, got {sizes}")
            check_mixing(self, "query_rank")

    @property
    def query_size(self) -> int:
        return self.query_rank

    @property
    def key_size(self) -> int:
        return self.key_rank

    def mixing_flops(self) -> int:
        return self.num_heads * self.query_rank * self.key_rank

    def module(self, width: int, memory_width: int) -> TuckerAttention:
        return TuckerAttention(width, memory_width=memory_width, config=self)


class SharedKeyAttention(AttentionModule):
    """Base of the modules of `SharedKey` formulations, which differ in `mix`."""

    config: Any

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config, memory_width, heads, size = self.config, self.memory_width, self.config.num_heads, self.config.value_dim
        self.query = weight((width, config.query_size), ("embed", "shared_dim"))
        self.key = weight((memory_width, config.key_size), ("embed", "shared_dim"))
        self.mixing = self.mixing_weight()
        self.value = weight((memory_width, heads, size), ("embed", "heads", "head_dim"))
        self.value_bias = bias_weight(config.value_bias, (heads, size), ("heads", "head_dim"))
        self.output = weight((heads, size, width), ("heads", "head_dim", "embed"), inputs=(0, 1))
        self.output_bias = bias_weight(config.output_bias, (width,), ("embed",))
        self.query_bias = bias_weight(config.projection_bias, (config.query_size,), ("shared_dim",))
        self.key_bias = bias_weight(config.projection_bias, (config.key_size,), ("shared_dim",))
        self.content_bias = bias_weight(config.content_bias, (memory_width, heads), ("embed", "heads"))
        self.fill(rngs, params)

    @abc.abstractmethod
    def mixing_weight(self) -> nnx.Param[Any]:
        """Declare the mixing weights."""

    @abc.abstractmethod
    def mix(self, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Return the query and the mixing that `attend` takes, from the shared query `[batch, query, query_size]`."""

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key_values = {
            "key": into_heads(inputs, self.key, self.key_bias),  # [batch, key, key_size]
            "value": into_heads(inputs, self.value, self.value_bias),  # [batch, key, heads, value_dim]
        }
        if self.content_bias is not None:
            key_values["content"] = into_heads(inputs, self.content_bias)  # [batch, key, heads]
        return key_values

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query, mixing = self.mix(into_heads(inputs, self.query, self.query_bias))
        scale = default_scale(self.config.head_dim)
        if self.content_bias is not None:
            content = scale * jnp.swapaxes(key_values["content"], 1, 2)[:, :, None, :]  # [batch, heads, 1, key]
            call = call._replace(bias=content if call.bias is None else content + call.bias)
        return call(query, key_values["key"][:, :, None, :], key_values["value"], scale=scale, mixing=mixing)


class CollaborativeAttention(SharedKeyAttention):
    """Collaborative attention: the module of `Collaborative`.

    >>> layer = headjax.CollaborativeAttention(16, num_heads=4, shared_dim=8, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = Collaborative
    config: Collaborative

    def mixing_weight(self) -> nnx.Param[Any]:
        shape = (self.config.num_heads, self.config.shared_dim)
        return weight(shape, ("heads", "shared_dim"), self.config.mixing_init, inputs=(1,))

    def mix(self, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return shared[:, :, None, :], self.mixing[...]


class TuckerAttention(SharedKeyAttention):
    """Collaborative attention with full mixing matrices: the module of `Tucker`.

    >>> layer = headjax.TuckerAttention(16, num_heads=4, query_rank=8, key_rank=8, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = Tucker
    config: Tucker

    def mixing_weight(self) -> nnx.Param[Any]:
        shape = (self.config.num_heads, self.config.query_rank, self.config.key_rank)
        return weight(shape, ("heads", "shared_dim", None), self.config.mixing_init, inputs=(1,))

    def mix(self, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return jnp.einsum("bqr,hrk->bqhk", shared, self.mixing[...]), None  # [batch, query, heads, key_rank]
