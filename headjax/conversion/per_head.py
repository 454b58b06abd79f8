"""Heads of another size, and keys and values that heads share: the best ones in closed form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import Root, covariance_root
from headjax.conversion.rope import is_fully_rotary, keep_frequencies
from headjax.conversion.target import ConversionInput, Groups, Target, is_rotary, multi_head_of
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.memory import check_memory, memory_of
from headjax.core.modules import declared
from headjax.core.programs import one_by_one
from headjax.core.tensors import Params, flatten, nested
from headjax.nn import Kind
from headjax.nn.module import AttentionModule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToFixed(Target):
    """Heads of a given size (Bhojanapalli et al. 2020), independent of width / num_heads.

    Larger heads are the old ones with zeros appended, an exact embedding of the standard layer in the larger class
    (section 3.1 of the ICLR version). Smaller heads are, one by one, the best of their size for the products
    W_Q^h W_K^hT and W_V^h W_O^h, so that going up and down again changes nothing. The logits keep their scale.
    Heads that rotate with their positions keep the rotary frequencies that carry most of their squared logits instead.

    Attributes:
        head_dim: New size of queries and keys.
        value_dim: New size of values; None is head_dim.
    """

    name: ClassVar[str] = "fixed"

    head_dim: Size
    value_dim: Size | None = None

    @property
    def values(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        if is_rotary(source) and self.head_dim < source.head_dim:
            require(is_fully_rotary(source), "rotary", "rotates some dimensions alone, which cannot be fewer")
            message = f"heads that rotate keep whole pairs of dimensions, so it must be even, got {self.head_dim}"
            require(self.head_dim % 2 == 0, "head_dim", message)
        memory = memory_of()
        for name, size in {"head_dim": self.head_dim, "value_dim": self.values}.items():
            field = "head_dim" if self.value_dim is None else name
            needed = 4 * source.num_heads * size * (width + memory_width)  # in float32
            check_memory(field, needed, memory, f"{source.num_heads} heads of {size:,} dimensions")

    def convert_layer(self, layer: ConversionInput, seed: int) -> AttentionModule:
        source, kept, frequencies = layer.attention, Params(), None
        if self.head_dim < source.head_dim and is_rotary(source):
            frequencies, kept = keep_frequencies(layer, self.head_dim // 2)
        config = self._kind(layer, frequencies)
        weights = flatten(declared(config.module(layer.module.width, layer.module.memory_width)))
        shapes = tuple((path, weight.shape) for path, weight in weights.items())
        return layer.module.like(config, _resized(self, shapes, layer.traceable(), kept))

    def _kind(self, layer: ConversionInput, frequencies: Any) -> Kind:
        source = layer.attention
        rotary = source.rotary
        if rotary is not None and rotary.dim is None:
            # Appended dimensions must neither rotate nor change the rates of the others.
            rotary = dataclasses.replace(rotary, dim=source.head_dim)
        shrinks = self.head_dim < source.head_dim or self.values < source.values
        return source.replace(
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            scale=source.logit_scale,
            rotary=rotary,
            frequencies=frequencies,
            projection_bias=source.projection_bias or (layer.moments is not None and shrinks),
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _resized(
    target: ToFixed, shapes: Sequence[tuple[str, tuple[int, ...]]], layer: ConversionInput, kept: Params
) -> Params:
    """Return arrays of these shapes, by path, of a layer in its new size; `kept` are those of heads that rotate."""
    source = layer.attention
    heads, params = [(head,) for head in range(source.num_heads)], layer.params | kept
    if target.head_dim < source.head_dim and not kept:
        params |= fit_query_key(layer, heads, target.head_dim)
    if target.values < source.values:
        params |= fit_value_output(layer, heads, target.values)
    # Zeros stand where a tensor is larger than what is known of it.
    known, arrays = flatten(params), {}
    for path, shape in shapes:
        array = known.get(path, jnp.zeros(shape))
        arrays[path] = jnp.pad(array, [(0, size - present) for size, present in zip(shape, array.shape, strict=True)])
    return nested(arrays)


class Extended(NamedTuple):
    """Weights with their bias as one more row, in coordinates of inputs of identity covariance and mean zero."""

    rows: jax.Array  # [inputs + 1, heads, dim]; the last row is the output for the mean input, bias included
    inverse: jax.Array | None  # [inputs, inputs], map back to the inputs' own coordinates; None is the identity
    mean: jax.Array | None  # [inputs], mean input; None is zero

    def restore(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return weights `[inputs, ...]` and bias `[...]` of `[inputs + 1, ...]` rows in these coordinates."""
        weight, bias = rows[:-1], rows[-1]
        if self.inverse is not None:
            weight = jnp.tensordot(self.inverse, weight, 1)
        return weight, bias if self.mean is None else bias - jnp.tensordot(self.mean, weight, 1)


def extended(layer: ConversionInput, name: str) -> Extended:
    """Return W_Q, W_K or W_V with its bias as one more row, see `Extended`."""
    if layer.moments is None:
        return Extended(layer.with_bias(name), None, None)
    weight, bias = layer.params[name], layer.bias(name)
    centre, covariance = layer.moments.of(name)
    mean, root = jnp.asarray(centre, jnp.float32), covariance_root(covariance)
    rows = [jnp.tensordot(root.root, weight, 1), (bias + jnp.tensordot(mean, weight, 1))[None]]
    return Extended(jnp.concatenate(rows), root.inverse, mean)


def seen_keys(layer: ConversionInput) -> tuple[jax.Array, Root | None]:
    """Return W_K in coordinates in which inputs have identity covariance, and the root that leads back."""
    key = layer.params["key"]
    if layer.moments is None:
        return key, None
    root = covariance_root(layer.moments.key_within)
    return jnp.tensordot(root.root, key, 1), root


def fit_query_key(layer: ConversionInput, groups: Groups, dim: int) -> Params:
    """Return queries of every head and one key per group, of size `dim`, whose logits are nearest to the layer's."""
    # minimise  sum_(h in g) ||[W_Q^h; b_Q^h] W_K^hT - [W_Q'^h; b_Q'^h] W_K'^gT||^2;  b_K' would vanish
    query, (seen, root) = extended(layer, "query"), seen_keys(layer)
    queries, keys = fit_groups(query.rows, seen, np.asarray(groups), dim)
    weight, bias = query.restore(queries)
    key = keys if root is None else jnp.tensordot(root.inverse, keys, 1)
    return {"query": weight, "query_bias": bias, "key": key, "key_bias": jnp.zeros(key.shape[1:])}


def fit_value_output(layer: ConversionInput, groups: Groups, dim: int) -> Params:
    """Return one value per group and outputs of every head, of size `dim`, whose result is nearest to the layer's."""
    # minimise  sum_(h in g) ||[W_V^h; b_V^h] W_O^h - [W_V'^g; b_V'^g] W_O'^h||^2
    # Rows of probabilities sum to one: the error for the mean input is a constant, which the output bias takes.
    value, output = extended(layer, "value"), dict(layer.params["output"])
    written = jnp.moveaxis(output["kernel"], 2, 0)
    outputs, values = fit_groups(written, value.rows, np.asarray(groups), dim)
    weight, bias = value.restore(values)
    output["kernel"] = jnp.moveaxis(outputs, 0, 2)
    if "bias" in output:
        constants = values[-1, np.asarray([number for number, group in enumerate(groups) for _ in group])]
        lost = jnp.einsum("hi,whi->w", value.rows[-1], written) - jnp.einsum("hk,whk->w", constants, outputs)
        output["bias"] = output["bias"] + lost
    return {"value": weight, "value_bias": bias, "output": output}


@functools.partial(jax.jit, static_argnames="dim")
def fit_groups(left: jax.Array, right: jax.Array, groups: np.ndarray, dim: int) -> tuple[jax.Array, jax.Array]:
    """Return A' of every head in the order of the groups, and one B' per group, nearest to the slices A_h B_h^T.

    B'^g `[columns, dim]` spans the leading right singular vectors of the group's slices, one below another. `groups`,
    `[groups, heads]` numbers of heads, is an array, so layers that differ in it alone share a program.
    """
    rows, columns = left.shape[0], right.shape[0]

    def fit(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
        basis = leading_columns(left, right, dim)
        return jnp.einsum("rhi,mhi,mk->hrk", left, right, basis), basis

    fitted, shared = one_by_one(fit, jnp.moveaxis(left[:, groups], 1, 0), jnp.moveaxis(right[:, groups], 1, 0))
    return jnp.moveaxis(fitted.reshape(-1, rows, dim), 0, 1), jnp.moveaxis(shared.reshape(-1, columns, dim), 0, 1)


@functools.partial(jax.jit, static_argnames="dim")
def leading_columns(left: jax.Array, right: jax.Array, dim: int) -> jax.Array:
    """Return orthonormal `[columns, dim]` that span most of the rows of all slices L_h R_h^T."""
    _, _, vt = jnp.linalg.svd(_compressed(left, right).reshape(-1, right.shape[0]), full_matrices=False)
    basis = vt[:dim].T
    return jnp.pad(basis, ((0, 0), (0, dim - basis.shape[1])))


def _compressed(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the slices L_h R_h^T as `[heads, dim, columns]`, in an orthonormal basis of each L_h."""
    inner = one_by_one(lambda matrix: jnp.linalg.qr(matrix)[1], jnp.swapaxes(left, 0, 1))
    return jnp.einsum("hij,mhj->him", inner, right)


def sharing_losses(layer: ConversionInput) -> tuple[jax.Array, jax.Array]:
    """Return the cost of sharing a key, and a value, for every pair of heads: the minima of both fits of the pair."""
    keys = _pair_losses(extended(layer, "query").rows, seen_keys(layer)[0])
    written = jnp.moveaxis(layer.params["output"]["kernel"], 2, 0)
    return keys, _pair_losses(written, extended(layer, "value").rows)


@jax.jit
def _pair_losses(left: jax.Array, right: jax.Array) -> jax.Array:
    slices = _compressed(left, right)
    dim = slices.shape[1]

    def loss(first: jax.Array, second: jax.Array) -> jax.Array:
        stacked = jnp.concatenate([first, second])
        values = jnp.linalg.eigvalsh(stacked @ stacked.T)
        return jnp.maximum(values[:-dim], 0.0).sum()

    pairs = one_by_one(lambda first: one_by_one(lambda second: loss(first, second), slices), slices)
    return pairs / jnp.maximum(jnp.square(slices).sum(axis=(1, 2)).mean(), 1e-30)
