"""Multi-head to latent attention: one short latent from which all keys and values are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import covariance_root
from headjax.conversion.rope import rotated_mean
from headjax.conversion.target import (
    ConversionInput,
    Target,
    bias_or_zeros,
    gain,
    gram,
    multi_head_of,
    require_rank,
)
from headjax.core.fields import Size
from headjax.core.programs import one_by_one
from headjax.core.tensors import Params
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
        require_rank("rank", self.rank, min(memory_width, size), f"min(width, {which} * (head_dim + value_dim))")

    def criteria(self) -> tuple[Target, ...]:
        return self, LatentOfKeys(rank=self.rank)

    def planned(self) -> ToLatent:
        return LatentOfKeys(rank=self.rank)

    def prepare(self, module: AttentionModule) -> AttentionModule:
        return module if must_rebuild(module.kind) else super().prepare(module)

    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        return [self._compressed(layer) if must_rebuild(layer.attention) else self._latent(layer) for layer in layers]

    def _latent(self, layer: ConversionInput) -> AttentionModule:
        source = layer.attention
        weights = None
        if self.by_logits:
            weights = gram(jnp.swapaxes(_query_weight(layer), 0, 1)), _output_grams(layer)
        down, up_key, up_value = _factors(layer, self.rank, weights)
        biased = source.projection_bias or layer.moments is not None
        config = Kind(
            LatentAttention,
            num_heads=source.num_heads,
            head_ids=source.head_ids,
            rank=self.rank,
            head_dim=source.head_dim,
            value_dim=source.value_dim,
            scale=source.scale,
            projection_bias=biased,
            output_bias=source.output_bias,
        )
        kept = {name: array for name, array in layer.params.items() if name in ("query", "output")}
        params: Params = kept | {"latent": down, "key": up_key, "value": up_value}
        if biased:
            value_bias = bias_or_zeros(layer, "value") + _lost_mean(layer, "value", down, up_value)
            params |= {"query_bias": bias_or_zeros(layer, "query"), "value_bias": value_bias}
        return layer.module.like(config, params)

    def _compressed(self, layer: ConversionInput) -> AttentionModule:
        """Return the layer as `CompressedAttention` around its own formulation."""
        source, params = layer.attention, layer.params
        groups = source.groups
        per_key = [
            jnp.asarray([head for head, group in enumerate(groups) if group == key])
            for key in range(params["key"].shape[1])
        ]
        weights: tuple[jax.Array, ...] | None = None
        if self.by_logits:
            grams = _rotated_grams(source, layer), _output_grams(layer)
            weights = tuple(jnp.stack([each[heads].sum(axis=0) for heads in per_key]) for each in grams)
        down, up_key, up_value = _factors(layer, self.rank, weights)
        inner = dict(params) | {"key": up_key, "value": up_value}
        biased = source.projection_bias or layer.moments is not None
        if biased:
            inner["query_bias"] = bias_or_zeros(layer, "query")
            for name, rebuilt in (("key", up_key), ("value", up_value)):
                inner[f"{name}_bias"] = bias_or_zeros(layer, name) + _lost_mean(layer, name, down, rebuilt)
        config = Kind(CompressedAttention, inner=source.replace(projection_bias=biased), rank=self.rank)
        return layer.module.like(config, {"latent": down, "inner": inner})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentOfKeys(ToLatent):
    """`ToLatent` with the least squared error of keys and values, not of logits and outputs."""

    name: ClassVar[str] = "latent by keys"
    by_logits: ClassVar[bool] = False


def must_rebuild(attention: Kind) -> bool:
    """Return whether keys rotate or are normalised: then they must be computed from the latent before the logits."""
    options = (attention.options.get(name) for name in ("rotary", "query_norm", "key_norm"))
    return issubclass(attention.of, GroupedAttention) and any(each is not None for each in options)


def _rotated_grams(source: Kind, layer: ConversionInput) -> jax.Array:
    """Return G_h = mean over t of R(t) E[q_h q_h^T] R(t)^T: an error e of a key has the squared logit e^T G_h e."""
    query = _query_weight(layer)
    if source.of is GroupedAttention and source.query_norm is not None:
        query = query / _root_mean_square(query) * gain(layer.module.query_norm)
    if source.of is GroupedAttention and source.key_norm is not None:  # errors are divided by the keys' size
        key = layer.params["key"]
        key = (
            key if layer.moments is None else jnp.tensordot(covariance_root(layer.moments.key_covariance).root, key, 1)
        )
        size = jnp.take(_root_mean_square(key), jnp.asarray(source.groups), axis=1)
        factor = gain(layer.module.key_norm) / size
    else:
        factor = jnp.ones((1, 1, 1))
    grams = gram(jnp.swapaxes(query, 0, 1))
    if source.rotary is not None:
        grams = jnp.asarray(rotated_mean(source.rotary, np.asarray(grams, np.float64)), jnp.float32)
    factor = jnp.broadcast_to(factor[0], (grams.shape[0], grams.shape[1]))
    return factor[:, :, None] * grams * factor[:, None, :]


def _root_mean_square(weight: jax.Array) -> jax.Array:
    """Return the root mean square of each head's vectors for inputs of identity covariance, `[1, heads, 1]`."""
    return jnp.sqrt(jnp.maximum(jnp.square(weight).sum(axis=0).mean(axis=-1), 1e-30))[None, :, None]


def _lost_mean(layer: ConversionInput, name: str, down: jax.Array, rebuilt: jax.Array) -> jax.Array:
    """Return the part of the mean key or value that the latent loses, `[heads, dim]`; 0 without calibration."""
    if layer.moments is None:
        return jnp.zeros(rebuilt.shape[1:])
    lost = layer.params[name] - jnp.einsum("mr,rhd->mhd", down, rebuilt)
    return jnp.einsum("m,mhd->hd", jnp.asarray(layer.moments.key_mean, jnp.float32), lost)


def _output_grams(layer: ConversionInput) -> jax.Array:
    """Return G_h = W_O^h W_O^hT, `[heads, value_dim, value_dim]`: an error e of a value has the output e^T G_h e."""
    return gram(jnp.swapaxes(layer.params["output"]["kernel"], 1, 2))


def _query_weight(layer: ConversionInput) -> jax.Array:
    """Return W_Q, `[width, heads, head_dim]`; of a calibrated layer for inputs of identity second moment."""
    if layer.moments is None:
        return layer.params["query"]
    second = layer.moments.query_covariance + np.outer(layer.moments.query_mean, layer.moments.query_mean)
    return jnp.einsum("de,ehi->dhi", covariance_root(second).root, layer.params["query"])


def _factors(
    layer: ConversionInput, rank: int, weights: tuple[jax.Array, ...] | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return W_C `[memory width, rank]`, W_UK `[rank, heads, head_dim]` and W_UV `[rank, heads, value_dim]`."""
    key, value = layer.params["key"], layer.params["value"]
    root = None if layer.moments is None else covariance_root(layer.moments.key_covariance)

    def square_root(matrix: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(matrix)
        return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None]) @ vectors.T

    parts = [key, value]
    if weights is not None:  # W_h G_h^(1/2): an error e of W_h costs e^T G_h e
        roots = (one_by_one(square_root, grams) for grams in weights)
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
