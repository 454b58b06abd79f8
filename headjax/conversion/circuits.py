"""What any formulation computes per head, as products: which query meets which key, and what is read and written."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Collaborative, Gated, Grouped, Latent, MultiHead, Tucker
from headjax.attention.shared_key import SharedKey
from headjax.conversion.products import Products
from headjax.core.errors import ConfigError
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params


def query_key(attention: Attention, params: Params) -> Products:
    """The logits' bilinear forms, x T_h y^T: T_h = scale * W_Q^h W_K^hT or what stands for it.

    Biases are left out. With rotary embeddings this is the form between equal positions.

    Returns:
        Products of `[width, heads, dim]` and `[memory width, heads, dim]` in float32.

    Raises:
        ConfigError: the formulation has no such form.
    """
    found = _query_key(attention, _float32(params))
    return Products(jnp.asarray(found.left), jnp.asarray(found.right))


def value_output(attention: Attention, params: Params) -> Products:
    """What a head writes of what it reads, y T_h: T_h = W_V^h W_O^h, without biases.

    Returns:
        Products of `[memory width, heads, dim]` and `[width, heads, dim]` in float32.

    Raises:
        ConfigError: the formulation has no such form.
    """
    params = _float32(params)
    if isinstance(attention, Gated):
        inner = value_output(attention.inner, params["inner"])
        gate = jax.nn.sigmoid(params["gate_bias"])
        return inner._replace(left=inner.left * gate[None, :, None])
    output = jnp.moveaxis(params["output"], 2, 0)
    if isinstance(attention, Grouped):
        return Products(params["value"][:, jnp.asarray(attention.groups)], output)
    if isinstance(attention, Latent):
        return Products(jnp.einsum("mr,rhv->mhv", params["latent"], params["value"]), output)
    if isinstance(attention, MultiHead | SharedKey):
        return Products(params["value"], output)
    raise ConfigError(f"attention: {kind_of(attention)} has no products of values and outputs")


@functools.singledispatch
def _query_key(attention: Attention, params: Params) -> Products:
    raise ConfigError(f"attention: {kind_of(attention)} has no products of queries and keys")


@_query_key.register
def _(attention: MultiHead, params: Params) -> Products:
    return Products(params["query"] * attention.logit_scale, params["key"])


@_query_key.register
def _(attention: Grouped, params: Params) -> Products:
    return Products(params["query"] * attention.logit_scale, params["key"][:, jnp.asarray(attention.groups)])


@_query_key.register
def _(attention: Latent, params: Params) -> Products:
    if attention.query_rank is not None or attention.rotary is not None or attention.latent_norm is not None:
        raise ConfigError("attention: latent attention with norms, rotary parts or a query latent has no such products")
    return Products(params["query"] * attention.logit_scale, jnp.einsum("mr,rhd->mhd", params["latent"], params["key"]))


@_query_key.register
def _(attention: Collaborative, params: Params) -> Products:
    left = params["query"][:, None, :] * params["mixing"][None]
    return _shared(attention, left, params["key"])


@_query_key.register
def _(attention: Tucker, params: Params) -> Products:
    return _shared(attention, jnp.einsum("dr,hrk->dhk", params["query"], params["mixing"]), params["key"])


@_query_key.register
def _(attention: Gated, params: Params) -> Products:
    return _query_key(attention.inner, params["inner"])


def _shared(attention: SharedKey, left: jax.Array, key: jax.Array) -> Products:
    right = jnp.broadcast_to(key[:, None, :], (key.shape[0], *left.shape[1:]))
    return Products(left / attention.head_dim**0.5, right)


def _float32(params: Params) -> Params:
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), params)
