"""Multi-head to latent attention: one short latent from which all keys and values are computed."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import covariance_root
from headjax.conversion.rope import rotated_mean
from headjax.conversion.target import ConversionInput, Target, gram, is_normalised, is_rotary, multi_head_of
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.programs import one_by_one
from headjax.nn import CompressedAttention, GroupedAttention, Kind, LatentAttention
from headjax.nn.module import AttentionModule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToLatent(Target):
    """Keys and values of all heads come from one latent c = y W_C of size `rank`; a cache holds nothing else.

        [W_K^1, ..., W_K^H, W_V^1, ..., W_V^H] ~ W_C [W_UK^1, ..., W_UK^H, W_UV^1, ..., W_UV^H]

    A singular value decomposition gives the best W_C. In it each key counts by its logits, W_K^h W_Q^hT, each value by
    its outputs, W_V^h W_O^h, and keys and values together count alike. A calibrated conversion weights inputs by their
    covariance; their mean goes exactly into the biases of values and keys. The conversion is exact when the rank
    reaches that of all keys and values together. The logits keep their scale.

    Where keys rotate with their positions or are normalised, the layer becomes `CompressedAttention`: keys are rebuilt
    from c, then normalised, then rotated, and grouped layers keep their groups. A key then counts by the mean of its
    logits over the distances 0, 1, ..., 255 between query and key.

    A conversion with calibration batches also tries a second criterion, the squared error of keys and values themselves
    (SVD-LLM's whitening), and takes the one whose model agrees better with the original on batches held out.

    Attributes:
        rank: Size of the latent.
    """

    name: ClassVar[str] = "latent"
    by_logits: ClassVar[bool] = True

    rank: Size

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        source = attention if attention.of is GroupedAttention and must_rebuild(attention) else multi_head_of(attention)
        heads = source.kv_heads if source.of is GroupedAttention else source.num_heads
        size = heads * (source.head_dim + source.values)
        which = "kv_heads" if source.of is GroupedAttention else "num_heads"
        most, text = min(memory_width, size), f"min(width, {which} * (head_dim + value_dim))"
        require(self.rank <= most, "rank", f"must be from 1 to {text} = {most}, got {self.rank}")

    def criteria(self) -> tuple[Target, ...]:
        return self, LatentOfKeys(rank=self.rank)

    def planned(self) -> ToLatent:
        return LatentOfKeys(rank=self.rank)

    def prepare(self, module: AttentionModule) -> AttentionModule:
        return module if must_rebuild(module.kind) else super().prepare(module)

    def convert_layer(self, layer: ConversionInput, seed: int) -> AttentionModule:
        source, params = layer.attention, dict(layer.params)
        down, params["key"], params["value"] = _factors(layer, self.rank, _costs(layer) if self.by_logits else None)
        biased = source.projection_bias or layer.moments is not None
        if biased:
            params |= {f"{name}_bias": layer.bias(name) for name in ("query", "key", "value")}
        if layer.moments is not None:
            mean = jnp.asarray(layer.moments.key_mean, jnp.float32)
            for name in ("key", "value"):
                lost = layer.params[name] - jnp.einsum("mr,rhd->mhd", down, params[name])
                params[f"{name}_bias"] += jnp.einsum("m,mhd->hd", mean, lost)
        if must_rebuild(source):
            config = Kind(CompressedAttention, inner=source.replace(projection_bias=biased), rank=self.rank)
            return layer.module.like(config, {"latent": down, "inner": params})
        params.pop("key_bias", None)  # it adds the same to all logits of a row
        config = source.become(LatentAttention, rank=self.rank, projection_bias=biased)
        return layer.module.like(config, params | {"latent": down})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentOfKeys(ToLatent):
    """`ToLatent` with the least squared error of keys and values, not of logits and outputs."""

    name: ClassVar[str] = "latent by keys"
    by_logits: ClassVar[bool] = False


def must_rebuild(attention: Kind) -> bool:
    """Return whether keys rotate or are normalised: then they must be computed from the latent before the logits."""
    return is_rotary(attention) or is_normalised(attention)


def _costs(layer: ConversionInput) -> tuple[jax.Array, jax.Array]:
    """Return G `[kv_heads, dim, dim]` of keys and of values: an error e has the squared logits or outputs e^T G e.

    For keys G_h = mean over t of R(t) E[q_h q_h^T] R(t)^T, for values G_h = W_O^h W_O^hT, each summed over the query
    heads that read a KV head.
    """
    source, query, key = layer.attention, layer.params["query"], layer.params["key"]
    if layer.moments is not None:  # weights for inputs of identity second moment, and of identity covariance
        mean, covariance = layer.moments.of("query")
        query = jnp.einsum("de,ehi->dhi", covariance_root(covariance + np.outer(mean, mean)).root, query)
        key = jnp.tensordot(covariance_root(layer.moments.key_covariance).root, key, 1)
    groups = jnp.asarray(source.groups)
    if source.options.get("query_norm") is not None:
        query = query / _root_mean_square(query)[None, :, None] * layer.module.query_norm.gain()[None, None]
    of_keys = gram(jnp.swapaxes(query, 0, 1))
    if source.rotary is not None:
        of_keys = jnp.asarray(rotated_mean(source.rotary, np.asarray(of_keys, np.float64)), jnp.float32)
    if source.options.get("key_norm") is not None:  # errors are divided by the keys' size
        factor = layer.module.key_norm.gain()[None] / _root_mean_square(key)[groups, None]
        of_keys = factor[:, :, None] * of_keys * factor[:, None, :]
    of_values = gram(jnp.swapaxes(layer.params["output"]["kernel"], 1, 2))
    kv_heads = key.shape[1]
    return jax.ops.segment_sum(of_keys, groups, kv_heads), jax.ops.segment_sum(of_values, groups, kv_heads)


def _root_mean_square(weight: jax.Array) -> jax.Array:
    """Return the root mean square of each head's vectors for inputs of identity covariance, `[heads]`."""
    return jnp.sqrt(jnp.maximum(jnp.square(weight).sum(axis=0).mean(axis=-1), 1e-30))


def _factors(
    layer: ConversionInput, rank: int, costs: tuple[jax.Array, jax.Array] | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return W_C `[memory width, rank]`, W_UK `[rank, heads, head_dim]` and W_UV `[rank, heads, value_dim]`."""
    key, value = layer.params["key"], layer.params["value"]
    root = None if layer.moments is None else covariance_root(layer.moments.key_covariance)

    def square_root(matrix: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(matrix)
        return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None]) @ vectors.T

    parts = [key, value]
    if costs is not None:  # W_h G_h^(1/2): an error e of W_h costs e^T G_h e
        roots = (one_by_one(square_root, grams) for grams in costs)
        parts = [jnp.einsum("mhi,hij->mhj", part, each) for part, each in zip(parts, roots, strict=True)]
    parts = [part.reshape(part.shape[0], -1) for part in parts]
    if root is not None:
        parts = [root.root @ part for part in parts]
    # Keys and values enter with equal weight, whatever their units.
    norms = [jnp.maximum(jnp.linalg.norm(part), 1e-30) for part in parts]
    basis, _ = low_rank(jnp.concatenate([part / norm for part, norm in zip(parts, norms, strict=True)], axis=1), rank)
    down, seen = (basis, basis) if root is None else (root.inverse @ basis, root.root @ basis)
    return down, jnp.einsum("mr,mhd->rhd", seen, key), jnp.einsum("mr,mhv->rhv", seen, value)


@functools.partial(jax.jit, static_argnums=(1,))
def low_rank(matrix: jax.Array, rank: int) -> tuple[jax.Array, jax.Array]:
    """Return the best X Y of a rank for a matrix: X `[rows, rank]` orthonormal, Y `[rank, columns]`."""
    with jax.default_matmul_precision("highest"):
        u, values, vt = jnp.linalg.svd(matrix, full_matrices=False)
        left, right = u[:, :rank], values[:rank, None] * vt[:rank]
        missing = rank - left.shape[1]
        return jnp.pad(left, ((0, 0), (0, missing))), jnp.pad(right, ((0, missing), (0, 0)))
