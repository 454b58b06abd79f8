"""Small models with attention as other people write it; none knows of headjax."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import headjax

WIDTH, HEADS, SIZE = 8, 4, 3
SUMS = 2 * (4 * WIDTH + 2 * HEADS * SIZE + 16) + WIDTH
"""Terms added up on the way through two layers."""


class Einsum(nnx.Module):
    """A projection that holds its einsum string, as Tunix and Gemma write it."""

    def __init__(self, einsum_str: str, shape: tuple[int, ...], rngs: nnx.Rngs, dtype: Any = jnp.float32) -> None:
        self.einsum_str, self.shape = einsum_str, shape
        self.w = nnx.Param((rngs.params.normal(shape) * 0.4).astype(dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.einsum(self.einsum_str, x.astype(self.w[...].dtype), self.w[...])


class EinsumAttention(nnx.Module):
    """Grouped attention of einsum projections, with biases of its own and a static n_rep."""

    def __init__(
        self, rngs: nnx.Rngs, heads: int = HEADS, kv: int = 2, size: int = SIZE, width: int = WIDTH, dtype: Any = None
    ) -> None:
        dtype = dtype or jnp.float32
        self.q_proj = Einsum("BTD,DNH->BTNH", (width, heads, size), rngs, dtype)
        self.kv_einsum = Einsum("BSD,CKDH->CBSKH", (2, kv, width, size), rngs, dtype)
        self.o_proj = Einsum("BTNH,NHD->BTD", (heads, size, width), rngs, dtype)
        self.q_bias = nnx.Param((rngs.params.normal((heads * size,)) * 0.3).astype(dtype))
        self.n_rep = heads // kv

    def __call__(self, x: jax.Array) -> jax.Array:
        q = self.q_proj(x)
        q = (q.reshape(*q.shape[:2], -1) + self.q_bias[...][None, None]).reshape(q.shape)
        k, v = self.kv_einsum(x)
        k, v = (jnp.repeat(y, self.n_rep, axis=2) for y in (k, v))
        weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5)
        return self.o_proj(jnp.einsum("bnts,bsnh->btnh", weights.astype(v.dtype), v))


class FlatAttention(nnx.Module):
    """Attention of flat linear maps beside num_heads and num_kv_heads, recomputed in the backward pass."""

    def __init__(self, rngs: nnx.Rngs, heads: int = HEADS, kv: int = 2, size: int = SIZE) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = heads, kv, size
        self.wq = nnx.Linear(WIDTH, heads * size, rngs=rngs)
        self.wk = nnx.Linear(WIDTH, kv * size, rngs=rngs)
        self.wv = nnx.Linear(WIDTH, kv * size, use_bias=False, rngs=rngs)
        self.wo = nnx.Linear(heads * size, WIDTH, rngs=rngs)

    def attend(self, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        q = self.wq(x).reshape(batch, length, self.num_kv_heads, -1, self.head_dim)
        k, v = (w(x).reshape(batch, length, self.num_kv_heads, self.head_dim) for w in (self.wk, self.wv))
        weights = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k))
        return self.wo(jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(batch, length, -1))

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.remat(self.attend.__func__)(self, x)


class Block(nnx.Module):
    """A pre-norm layer around any attention."""

    def __init__(self, attention: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attn = attention(rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.dropout(self.attn(self.norm(x)).astype(x.dtype))


class Classifier(nnx.Module):
    """Layers one by one, and a mean over positions."""

    def __init__(self, attention: Callable[[nnx.Rngs], nnx.Module], seed: int = 0, layers: int = 2) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([Block(attention, rngs) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, 3, rngs=rngs)

    def hidden(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.hidden(x).mean(axis=1))


class Scanned(Classifier):
    """Layers that lie along an axis in front of every parameter, as MaxText has them."""

    def __init__(self, attention: Callable[[nnx.Rngs], nnx.Module], seed: int = 0) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def blocks(rngs: nnx.Rngs) -> Block:
            return Block(attention, rngs)

        self.layers = blocks(nnx.Rngs(seed))
        self.head = nnx.Linear(WIDTH, 3, rngs=nnx.Rngs(seed + 1))

    def hidden(self, x: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: jax.Array, layer: Block) -> jax.Array:
            return layer(x)

        return forward(x, self.layers)


class Shared(Classifier):
    """One layer, called twice."""

    def __init__(self, attention: Callable[[nnx.Rngs], nnx.Module], seed: int = 0) -> None:
        super().__init__(attention, seed, layers=1)

    def hidden(self, x: jax.Array) -> jax.Array:
        return self.layers[0](self.layers[0](x))


def flax_attention(rngs: nnx.Rngs, **options: Any) -> nnx.MultiHeadAttention:
    """Flax's attention, with dropout of its own."""
    options = {"num_heads": HEADS, "in_features": WIDTH, "qkv_features": HEADS * SIZE} | options
    options = {"decode": False, "dropout_rate": 0.2} | options
    return nnx.MultiHeadAttention(**options, bias_init=nnx.initializers.normal(0.3), rngs=rngs)


def grouped_flax_attention(rngs: nnx.Rngs) -> nnx.MultiHeadAttention:
    """Flax's attention, with key heads for two query heads each and normalised queries and keys."""
    attention = flax_attention(rngs, num_kv_heads=2, qkv_features=HEADS * 2, normalize_qk=True)
    # Flax's default variance, E[x^2] - E[x]^2, loses most digits where two entries are nearly equal: gradients were
    # 8e-5 from those in float64, by as much as the processor rounds. Of centred values they are 2e-7 from them.
    attention.query_ln.use_fast_variance = attention.key_ln.use_fast_variance = False
    return attention


def bf16_attention(rngs: nnx.Rngs) -> EinsumAttention:
    """Attention in bfloat16."""
    return EinsumAttention(rngs, dtype=jnp.bfloat16)


def own_attention(rngs: nnx.Rngs) -> nnx.Module:
    """headjax's own grouped attention."""
    return headjax.GroupedAttention(WIDTH, num_heads=HEADS, kv_heads=2, head_dim=SIZE, rngs=rngs)


HOUSES: dict[str, Callable[[], Classifier]] = {
    "flax": lambda: Classifier(flax_attention),
    "flax_grouped": lambda: Classifier(grouped_flax_attention),
    "einsum": lambda: Classifier(EinsumAttention),
    "flat_remat": lambda: Classifier(FlatAttention),
    "scanned": lambda: Scanned(EinsumAttention),
    "scanned_flax": lambda: Scanned(flax_attention),
    "shared": lambda: Shared(FlatAttention),
    "bf16": lambda: Classifier(bf16_attention),
    "own": lambda: Classifier(own_attention),
    "scanned_own": lambda: Scanned(own_attention),
}


def batches(count: int = 2, size: int = 4, length: int = 5) -> list[dict[str, np.ndarray]]:
    """Random inputs and labels."""
    drawn = np.random.default_rng(0)
    return [
        {"x": drawn.normal(size=(size, length, WIDTH)).astype(np.float32), "y": drawn.integers(0, 3, size)}
        for _ in range(count)
    ]


def loss(model: Any, batch: Any) -> jax.Array:
    """The cross-entropy of every example."""
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"])


def mean_loss(model: Any, batch: Any) -> jax.Array:
    """The mean cross-entropy of a batch."""
    return loss(model, batch).mean()


def scaled(model: nnx.Module, gates: dict[str, Any]) -> nnx.Module:
    """A copy in evaluation mode whose W_O are multiplied by gates, without a line of what is tested."""
    copy = nnx.clone(model)
    copy.eval()
    for site in headjax.attention_sites(model):
        holder = copy
        for part in filter(None, f"{site.path}.{site.kernel}".split(".")):
            holder = holder[int(part)] if part.isdecimal() else getattr(holder, part)
        kernel = holder[...]
        gate = jnp.repeat(gates[site.path], kernel[..., 0].size // gates[site.path].size, axis=-1)
        holder.set_value(kernel * gate.reshape(*kernel.shape[:-1], 1).astype(kernel.dtype))
    return copy


def without(model: nnx.Module, removed: Iterable[headjax.HeadId | str]) -> nnx.Module:
    """A copy in evaluation mode in which these heads write nothing."""
    closed, gates = set(map(str, removed)), {}
    for site in headjax.attention_sites(model):
        rows = jnp.asarray([float(str(head) not in closed) for head in site.head_ids()]).reshape(-1, site.heads)
        gates[site.path] = rows.min(axis=0) if site.layers is None or site.tied else rows
    return scaled(model, gates)


forward = nnx.jit(lambda model, *inputs: model(*inputs))
"""One program of a model's call."""


def evaluated(model: nnx.Module, batch: Any) -> jax.Array:
    """A model's output in evaluation mode."""
    copy: Any = nnx.clone(model)
    copy.eval()
    return forward(copy, batch["x"])


def snapshot(model: nnx.Module) -> tuple[Any, dict[Any, Any], list[type]]:
    """All that a model is: structure, arrays and classes."""
    graph, state = nnx.split(model)
    arrays = {path: np.asarray(value) for path, value in jax.tree_util.tree_leaves_with_path(_raw(state))}
    return graph, arrays, [type(module) for _, module in nnx.iter_modules(model)]


def _raw(state: Any) -> Any:
    def plain(array: Any) -> Any:
        return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array

    return jax.tree.map(plain, state)


@dataclasses.dataclass
class Config:
    """A config without a hash, as Tunix's."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def trained(model: nnx.Module, batch: Any, steps: int) -> list[float]:
    """Train a model on one batch and return its losses."""
    model.eval()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: nnx.Module, optimizer: nnx.Optimizer) -> jax.Array:
        value, gradient = nnx.value_and_grad(lambda model: loss(model, batch).mean())(model)
        optimizer.update(model, gradient)
        return value

    return [float(step(model, optimizer)) for _ in range(steps)]
