"""Base classes of the conversions, the layers that they work on, and their products of weights, which ranks capture."""

from __future__ import annotations

import abc
import functools
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax import nn
from headjax.conversion.calibration import Moments
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked
from headjax.core.kind import Kind
from headjax.core.programs import one_blas_thread, one_by_one
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadLayer
from headjax.heads.surgery import attention_layers
from headjax.models.model import Model
from headjax.nn.module import AttentionModule

Groups = Sequence[Sequence[int]]
"""Positions of the heads of each group; a group shares a key and a value."""


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
    """One layer to convert, with weights in float32."""

    module: Any  # in the form that the conversion starts from
    moments: Moments | None = None  # of its inputs; None without calibration batches

    @property
    def attention(self) -> Kind:
        return self.module.kind

    @property
    def params(self) -> Params:
        """The layer's arrays as a nested dict."""
        return self.module.params

    def traceable(self) -> ConversionInput:
        """Return the layer as compiled programs take it: without heads' original numbers, with roots of covariances."""
        module = self.module.like(self.attention.structure(), self.params)
        return ConversionInput(module, None if self.moments is None else self.moments.rooted())

    def bias(self, name: str) -> jax.Array:
        """Return the bias `[heads, dim]` of `query`, `key` or `value`; zeros where the layer has none."""
        return self.params.get(f"{name}_bias", jnp.zeros(self.params[name].shape[1:]))

    def with_bias(self, name: str) -> jax.Array:
        """Return the weight with its bias as one more row, `[inputs + 1, heads, dim]`."""
        return jnp.concatenate([self.params[name], self.bias(name)[None]])


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

    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        """Return the layers in their new formulations, with weights in float32, in order."""
        return [self.convert_layer(layer, seed + number) for number, layer in enumerate(layers)]

    def convert_layer(self, layer: ConversionInput, seed: int) -> AttentionModule:
        """Return a layer in its new formulation; a target that converts layers together overrides `convert`."""
        raise NotImplementedError


def as_multi_head(module: AttentionModule) -> AttentionModule:
    """Return the layer as multi-head attention: every query head of a grouped layer gets a copy of key and value."""
    attention = module.kind
    return module.like(multi_head_of(attention), copied_keys(module)) if attention.of is nn.GroupedAttention else module


def copied_keys(module: AttentionModule) -> Params:
    """Return the parameters of a grouped layer with a copy of its key and value for every query head."""
    index, shared = jnp.asarray(module.groups), ("key", "key_bias", "value", "value_bias")
    return {
        name: jnp.take(array, index, axis=array.ndim - 2) if name in shared else array
        for name, array in module.params.items()
    }


def multi_head_of(attention: Kind) -> Kind:
    """Return the config of `as_multi_head`."""
    if attention.of is nn.MultiHeadAttention:
        complete = attention.frequencies is None
        require(complete, "frequencies", "heads that keep some rotary frequencies cannot be converted once more")
        return attention
    if attention.of is not nn.GroupedAttention:
        raise ConfigError(f"attention: {kind_of(attention)} cannot be converted; multi_head and grouped can")
    plain = not is_normalised(attention)
    require(plain, "query_norm", "normalised queries or keys are not products of weights and cannot be converted")
    return attention.become(nn.MultiHeadAttention)


def is_rotary(attention: Kind) -> bool:
    """Return whether a layer has keys that rotate with their positions."""
    return issubclass(attention.of, nn.GroupedAttention) and attention.rotary is not None


def is_normalised(attention: Kind) -> bool:
    """Return whether a layer normalises its queries or keys."""
    norms = attention.options.get("query_norm"), attention.options.get("key_norm")
    return issubclass(attention.of, nn.GroupedAttention) and norms != (None, None)


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
        and site.attention.of is not nn.NoHeadsAttention
        and (layers is None or not set(layers).isdisjoint(site.tied))
    }


Tree = TypeVar("Tree")


def in_float32(tree: Tree) -> Tree:
    """Return a module, or any tree of arrays, with arrays in float32."""
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), tree)


class Products(NamedTuple):
    """Tensor of slices T_h = A_h B_h^T, held as its factors: W_Q^h W_K^hT of logits, W_V^h W_O^h of outputs."""

    left: jax.Array  # A [..., rows, heads, dim]
    right: jax.Array  # B [..., columns, heads, dim]

    def by_head(self) -> tuple[jax.Array, jax.Array]:
        """Return A and B as `[..., heads, rows, dim]` and `[..., heads, columns, dim]`."""
        return jnp.swapaxes(self.left, -3, -2), jnp.swapaxes(self.right, -3, -2)


def gram(matrix: jax.Array) -> jax.Array:
    """Return M^T M over the last two dimensions."""
    return jnp.swapaxes(matrix, -1, -2) @ matrix


def squared_norm(products: Products) -> jax.Array:
    """Return sum_h ||A_h B_h^T||^2 of one tensor, from the Gram matrices: sum_h <A_h^T A_h, B_h^T B_h>."""
    left, right = products.by_head()
    return (gram(left) * gram(right)).sum()


@jax.jit
def relative_distance(products: Products, others: Products) -> jax.Array:
    """Return ||T - T'|| / ||T|| of two tensors of equal shape in the Frobenius norm; 0 where both are zero."""

    def squared_distance(factors: tuple[jax.Array, ...]) -> jax.Array:
        # Slices are subtracted: inner products would lose everything below the square root of the rounding error.
        a, b, c, d = factors
        return jnp.square(a @ b.T - c @ d.T).sum()

    with jax.default_matmul_precision("highest"):
        distance = jax.lax.map(squared_distance, (*products.by_head(), *others.by_head())).sum()
        norm = squared_norm(products)
    return jnp.sqrt(distance / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def head_svd(products: Products) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return U `[heads, rows, dim]`, s `[heads, dim]`, V `[heads, columns, dim]` of every T_h = U_h diag(s_h) V_h^T."""

    def of_head(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        (q_left, r_left), (q_right, r_right) = jnp.linalg.qr(left), jnp.linalg.qr(right)
        u, values, vt = jnp.linalg.svd(r_left @ r_right.T, full_matrices=False)
        return q_left @ u, values, q_right @ vt.T

    factors: tuple[jax.Array, jax.Array, jax.Array] = one_by_one(of_head, *products.by_head())
    return factors


def head_products(module: AttentionModule) -> tuple[Products, Products]:
    """Return T_h = scale * W_Q^h W_K^hT of logits at equal positions and W_V^h W_O^h of outputs, without biases."""
    module = in_float32(module)
    query, key, value = query_key_value(module)
    return Products(query, key), Products(value, jnp.moveaxis(module.output_matrices(), 2, 0))


def query_key_value(module: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return scale * W_Q, W_K and W_V of every head, `[inputs, heads, dim]`, the gains of norms among them."""
    if isinstance(module, nn.GroupedAttention):
        query, key, groups = module.query[...], module.key[...], jnp.asarray(module.groups)
        if module.query_norm is not None:
            query = query * module.query_norm.gain()[None, None]
        if module.key_norm is not None:
            key = key * module.key_norm.gain()[None, None]
        return query * module.logit_scale, key[:, groups], module.value[:, groups]
    if isinstance(module, nn.CollaborativeAttention):
        query, key = module.query[:, None, :] * module.mixing[...][None], module.key[...]
        key = jnp.broadcast_to(key[:, None, :], (key.shape[0], *query.shape[1:]))
        return query / module.kind.head_dim**0.5, key, module.value[...]
    if isinstance(module, nn.CompressedAttention):
        query, *rebuilt = query_key_value(module.inner)
    elif isinstance(module, nn.LatentAttention) and not any(
        module.kind.options[name] for name in ("query_rank", "rotary", "latent_norm")
    ):
        query, rebuilt = module.query[...] * module.logit_scale, [module.key[...], module.value[...]]
    else:
        raise ConfigError(f"attention: {kind_of(module.kind)} has no products of weights for its logits")
    key, value = (jnp.einsum("mr,rhd->mhd", module.latent[...], array) for array in rebuilt)
    return query, key, value


class Captured(NamedTuple):
    """Shares of a layer's squared norm that the best of rank 1, 2, ... capture (Cordonnier et al. 2020, figure 1)."""

    query: np.ndarray  # [rank], of W_Q of all heads side by side
    key: np.ndarray  # [rank], of W_K of all heads side by side
    product: np.ndarray  # [rank], of W_Q W_K^T, the sum over heads
    product_by_head: np.ndarray  # [heads, head_dim], of W_Q^h W_K^hT


def captured_variance(model: Model) -> dict[HeadLayer, Captured]:
    """Return the captured variance of every multi-head or grouped layer, by (head stack, layer), without centring."""
    captured, singular_values = {}, functools.partial(jnp.linalg.svd, compute_uv=False)
    for layer in attention_layers(model):
        if layer.config.of is nn.NoHeadsAttention:
            continue
        try:
            multi_head_of(layer.config)
        except ConfigError as error:
            raise ConfigError(f"{layer.stack}/{layer.layer}: {error}") from None
        params = as_multi_head(in_float32(layer.module)).params
        products = Products(params["query"], params["key"])
        query, key = (factor.reshape(factor.shape[0], -1) for factor in products)
        with one_blas_thread(), jax.default_matmul_precision("highest"):
            product = jnp.linalg.qr(query)[1] @ jnp.linalg.qr(key)[1].T
            values = [*map(singular_values, (query, key, product)), head_svd(products)[1]]
            sums = [np.cumsum(np.square(np.asarray(value, np.float64)), axis=-1) for value in values]
        shares = (each / np.maximum(each[..., -1:], 1e-300) for each in sums)
        captured[layer.stack, layer.layer] = Captured(*shares)
    return captured


def rank_for(captured: np.ndarray, share: float) -> np.ndarray:
    """Return the smallest rank that captures at least this share, along the last dimension."""
    return (np.asarray(captured) < share - 1e-6).sum(axis=-1) + 1
