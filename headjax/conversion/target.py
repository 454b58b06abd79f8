"""Base classes of the conversions, the layers that they work on, and the products of weights that they keep."""

from __future__ import annotations

import abc
import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from headjax.conversion.calibration import Moments
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked, options_of
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadLayer
from headjax.heads.surgery import attention_layers
from headjax.models.model import Model
from headjax.nn import (
    CollaborativeAttention,
    CompressedAttention,
    GroupedAttention,
    Kind,
    LatentAttention,
    MultiHeadAttention,
    NoHeadsAttention,
)
from headjax.nn.module import AttentionModule
from headjax.nn.norms import Normalisation


class LayerError(NamedTuple):
    """Distance of a converted layer from the original.

    Attributes:
        stack, layer: Head stack and number of the layer.
        relative_error: ||T - T'|| / ||T|| over all heads' scale * W_Q^h W_K^hT; of the outputs of a layer that became
            several.
        value_error: The same over W_V^h W_O^h; None for a layer that became several.
        logit_error: Root mean square error of logits over their own, for inputs of the batches' moments; None without
            batches.
    """

    stack: str
    layer: int
    relative_error: float
    value_error: float | None
    logit_error: float | None = None


class ConversionInput(NamedTuple):
    """One layer to convert, with weights in float32.

    Attributes:
        module: Module in the form that the conversion starts from.
        moments: Moments of its inputs; None without calibration batches.
    """

    module: Any
    moments: Moments | None = None

    @property
    def attention(self) -> Kind:
        """Formulation of the layer."""
        return self.module.kind

    @property
    def params(self) -> Params:
        """The layer's arrays as a nested dict."""
        return self.module.params


class Target(Checked, abc.ABC):
    """Base of the conversions: frozen dataclasses whose fields `--to name:field=value,...` sets."""

    name: ClassVar[str]

    @abc.abstractmethod
    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        """Raise a `ConfigError` that names the field when a layer cannot be converted."""

    def criteria(self) -> tuple[Target, ...]:
        """Return the conversions of which one with held-out batches takes the one that agrees best; else the first."""
        return (self,)

    def planned(self) -> Target:
        """Return a conversion to the same formulation that JAX can trace."""
        return self

    def prepare(self, module: AttentionModule) -> AttentionModule:
        """Return a layer with float32 weights in the form that the conversion starts from."""
        return as_multi_head(module)

    @abc.abstractmethod
    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        """Return the layers in their new formulations, with weights in float32, in order."""


def as_multi_head(module: AttentionModule) -> AttentionModule:
    """Return the layer as multi-head attention: every query head of a grouped layer gets a copy of key and value."""
    attention = module.kind
    return module.like(multi_head_of(attention), copied_keys(module)) if attention.of is GroupedAttention else module


def copied_keys(module: AttentionModule) -> Params:
    """Return the parameters of a grouped layer with a copy of its key and value for every query head."""
    index, shared = jnp.asarray(module.groups), ("key", "key_bias", "value", "value_bias")
    return {
        name: jnp.take(array, index, axis=array.ndim - 2) if name in shared else array
        for name, array in module.params.items()
    }


def multi_head_of(attention: Kind) -> Kind:
    """Return the config of `as_multi_head`."""
    if attention.of is MultiHeadAttention:
        complete = attention.frequencies is None
        require(complete, "frequencies", "heads that keep some rotary frequencies cannot be converted once more")
        return attention
    if attention.of is not GroupedAttention:
        raise ConfigError(f"attention: {kind_of(attention)} cannot be converted; multi_head and grouped can")
    plain = attention.query_norm is None and attention.key_norm is None
    require(plain, "query_norm", "normalised queries or keys are not products of weights and cannot be converted")
    return Kind(MultiHeadAttention, **shared_fields(attention))


def shared_fields(attention: Kind) -> dict[str, Any]:
    """Return the fields that multi-head and grouped attention both have."""
    names = options_of(MultiHeadAttention).keys() & options_of(GroupedAttention).keys()
    return {name: attention.options[name] for name in names}


def require_rank(field: str, rank: int, most: int, what: str) -> None:
    """Raise a `ConfigError` unless 1 <= rank <= most."""
    require(1 <= rank <= most, field, f"must be from 1 to {what} = {most}, got {rank}")


def bias_or_zeros(layer: ConversionInput, name: str) -> jax.Array:
    """Return a bias `[heads, dim]` of a multi-head layer; zeros where it has none."""
    if f"{name}_bias" in layer.params:
        return layer.params[f"{name}_bias"]
    return jnp.zeros(layer.params[name].shape[1:])


def find_layers(model: Model, stacks: Collection[str] | None, layers: Collection[int] | None) -> dict[HeadLayer, Kind]:
    """Return the formulations of the chosen layers with heads; of layers that share their parameters only the first."""
    attentions = model.config.attentions()
    for stack in stacks or ():
        if stack not in attentions:
            raise ConfigError(f"stacks: the model has no head stack {stack!r}; it has {', '.join(attentions)}")
    chosen_stacks = {name: layers_of for name, layers_of in attentions.items() if stacks is None or name in stacks}
    most = max(map(len, chosen_stacks.values()), default=0)
    for number in layers or ():
        if not 0 <= number < most:
            raise ConfigError(f"layers: there is no layer {number}; they are numbered 0 to {most - 1}")
    return {
        (site.head_stack, site.layer): site.attention
        for site in model.config.sites(chosen_stacks)
        if site.first
        and site.attention.of is not NoHeadsAttention
        and (layers is None or not set(layers).isdisjoint(site.tied))
    }


def layers_at(model: Model, places: Iterable[HeadLayer]) -> dict[HeadLayer, AttentionModule]:
    """Return the attention modules of these layers."""
    layers = {(layer.stack, layer.layer): layer.module for layer in attention_layers(model)}
    return {place: layers[place] for place in places}


Tree = TypeVar("Tree")


class Products(NamedTuple):
    """Tensor of slices T_h = A_h B_h^T, held as its factors: W_Q^h W_K^hT of logits, W_V^h W_O^h of outputs.

    Attributes:
        left: A `[..., rows, heads, dim]`.
        right: B `[..., columns, heads, dim]`.
    """

    left: jax.Array
    right: jax.Array

    def by_head(self) -> tuple[jax.Array, jax.Array]:
        """Return A and B as `[..., heads, rows, dim]` and `[..., heads, columns, dim]`."""
        return jnp.swapaxes(self.left, -3, -2), jnp.swapaxes(self.right, -3, -2)


def squared_norm(products: Products) -> jax.Array:
    """Return sum_h ||A_h B_h^T||^2 of one tensor, from the Gram matrices: sum_h <A_h^T A_h, B_h^T B_h>."""
    left, right = products.by_head()
    return (gram(left) * gram(right)).sum()


def squared_distance(products: Products, others: Products) -> jax.Array:
    """Return sum_h ||T_h - T'_h||^2 of two tensors of equal shape."""
    # Slices are subtracted: inner products would lose everything below the square root of the rounding error.
    left, right = products.by_head()
    other_left, other_right = others.by_head()

    def one_head(factors: tuple[jax.Array, ...]) -> jax.Array:
        a, b, c, d = factors
        return jnp.square(a @ b.T - c @ d.T).sum()

    return jax.lax.map(one_head, (left, right, other_left, other_right)).sum()


@jax.jit
def relative_distance(products: Products, others: Products) -> jax.Array:
    """Return ||T - T'|| / ||T|| in the Frobenius norm; 0 where both are zero."""
    with jax.default_matmul_precision("highest"):
        distance, norm = squared_distance(products, others), squared_norm(products)
    return jnp.sqrt(distance / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def gram(matrix: jax.Array) -> jax.Array:
    """Return M^T M over the last two dimensions."""
    return jnp.swapaxes(matrix, -1, -2) @ matrix


def join(factors: jax.Array, mixed: jax.Array) -> jax.Array:
    """Return sum_h F_h X_h: `[rows, heads, dim]` by `[heads, dim, rank]` to `[rows, rank]`."""
    return factors.reshape(factors.shape[0], -1) @ mixed.reshape(-1, mixed.shape[-1])


def project(factors: jax.Array, basis: jax.Array) -> jax.Array:
    """Return F_h^T X of every head: `[rows, heads, dim]` and `[rows, rank]` to `[heads, dim, rank]`."""
    flat = factors.reshape(factors.shape[0], -1).T @ basis
    return flat.reshape(*factors.shape[1:], basis.shape[-1])


def in_float32(tree: Tree) -> Tree:
    """Return a module, or any tree of arrays, with arrays in float32."""
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), tree)


def query_key(module: AttentionModule) -> Products:
    """Return the logits' forms x T_h y^T, T_h = scale * W_Q^h W_K^hT, at equal positions, without biases or norms."""
    return _query_key(in_float32(module))


def value_output(module: AttentionModule) -> Products:
    """Return the linear maps from inputs to outputs of heads, y T_h: T_h = W_V^h W_O^h, without biases."""
    module = in_float32(module)
    return Products(_values(module), jnp.moveaxis(module.output_matrices(), 2, 0))


@functools.singledispatch
def _query_key(module: AttentionModule) -> Products:
    raise ConfigError(f"attention: {kind_of(module.kind)} has no products of queries and keys")


@functools.singledispatch
def _values(module: AttentionModule) -> jax.Array:
    """Return W_V^h of every head, `[memory width, heads, value_dim]`."""
    raise ConfigError(f"attention: {kind_of(module.kind)} has no products of values and outputs")


@_query_key.register
def _(module: GroupedAttention) -> Products:
    query, key = module.query[...], module.key[...]
    if module.query_norm is not None:
        query = query * gain(module.query_norm)
    if module.key_norm is not None:
        key = key * gain(module.key_norm)
    return Products(query * module.logit_scale, key[:, jnp.asarray(module.groups)])


@_values.register
def _(module: GroupedAttention) -> jax.Array:
    return module.value[:, jnp.asarray(module.groups)]


def gain(norm: Normalisation) -> jax.Array:
    """Return gamma `[1, 1, size]` of a norm of heads."""
    return norm.gain()[None, None]


@_query_key.register
def _(module: LatentAttention) -> Products:
    kind = module.kind
    if kind.query_rank is not None or kind.rotary is not None or kind.latent_norm is not None:
        raise ConfigError("attention: latent attention with norms, rotary parts or a query latent has no such products")
    key = jnp.einsum("mr,rhd->mhd", module.latent[...], module.key[...])
    return Products(module.query[...] * module.logit_scale, key)


@_values.register
def _(module: LatentAttention) -> jax.Array:
    return jnp.einsum("mr,rhv->mhv", module.latent[...], module.value[...])


@_query_key.register
def _(module: CollaborativeAttention) -> Products:
    query, key = module.query[:, None, :] * module.mixing[...][None], module.key[...]
    right = jnp.broadcast_to(key[:, None, :], (key.shape[0], *query.shape[1:]))
    return Products(query / module.kind.head_dim**0.5, right)


@_values.register
def _(module: CollaborativeAttention) -> jax.Array:
    return module.value[...]


@_query_key.register
def _(module: CompressedAttention) -> Products:
    inner = _query_key(module.inner)
    return inner._replace(right=jnp.einsum("mr,rhd->mhd", module.latent[...], inner.right))


@_values.register
def _(module: CompressedAttention) -> jax.Array:
    return jnp.einsum("mr,rhv->mhv", module.latent[...], _values(module.inner))
