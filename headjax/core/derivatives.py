"""Elementwise and row-wise functions with derivatives in closed form.

Differentiated step by step, each of them keeps several arrays as large as its input for the backward pass, and reads
them all again. Stated in closed form, the derivative needs one: the slope, or the output. The values are the same.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]
"""A value and its tangent."""


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """The Gaussian error linear unit, x Phi(x) with Phi the normal cumulative function (Hendrycks and Gimpel 2016).

    Computed in float32. Phi is (1 + erf(x / sqrt 2)) / 2, as in PyTorch: its error is one rounding of 1. The function
    erfc is exact in the negative tail too, but takes several times the work.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 * (1.0 + jax.lax.erf(wide * math.sqrt(0.5))))).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Pair:
    """Tangent: d gelu = (Phi(x) + x phi(x)) dx, with phi the normal density."""
    ((x,), (change,)) = primals, tangents
    wide = x.astype(jnp.float32)
    cumulative = 0.5 * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * jnp.square(wide)) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = (cumulative + wide * density).astype(x.dtype)
    return (wide * cumulative).astype(x.dtype), slope * change


@jax.custom_jvp
def softmax(logits: jax.Array) -> jax.Array:
    """exp(l_k) / sum_j exp(l_j) over the last axis."""
    return jax.nn.softmax(logits, axis=-1)


@softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Pair:
    """Tangent: d p = p (d l - sum_j p_j d l_j)."""
    ((logits,), (change,)) = primals, tangents
    p = softmax(logits)
    return p, p * (change - (p * change).sum(axis=-1, keepdims=True))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def standardised(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over the last axis."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)


@standardised.defjvp
def _standardised_jvp(epsilon: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Pair:
    """Tangent: d n = (d x - mean(d x) - n mean(n d x)) / sqrt(variance + epsilon)."""
    ((x,), (change,)) = primals, tangents
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    normal = centred * rate
    shift = jnp.mean(change, axis=-1, keepdims=True)
    stretch = jnp.mean(normal * change, axis=-1, keepdims=True)
    return normal, rate * (change - shift - normal * stretch)
