"""CORP: sizes of queries and keys go, and what the logits lack is folded into the query weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import headjax
from headjax.core.kind import own_copy
from headjax.heads.refit import DAMPING
from headjax.heads.surgery import LayerModule
from headjax.models.config import Batch
from headjax.models.inputs import counted_at
from headjax.models.model import Model
from headjax.nn.block import Probe
from headjax.nn.projections import into_heads


def without_query_key(model: Model, batches: Sequence[Batch], share: float, *, compensated: bool = True) -> Model:
    """CORP (arXiv 2602.05243) for attention: a share of the sizes of every head's queries and keys goes.

        M = argmin sum over examples |Q_S M K_S^T - Q_P K_P^T|^2 + ridge |M|^2,   W_Q[:, S] <- W_Q[:, S] (I + M)

    S are the kept, P the removed sizes; those with the least E[q_i^2] E[k_i^2] go (ours: the text that we have tells no
    ranking, and no ridge). Columns of W_Q of removed sizes are 0, which gives the logits of a smaller head.
    """
    sizes = added(model, batches, squares)
    kept = max(round((1.0 - share) * model.config.sites()[0].attention.head_dim), 1)

    def sort(layer: LayerModule) -> nnx.Module:
        own = sizes[layer.stack][layer.layer]
        order = jnp.argsort(-(own["query"] * own["key"]), axis=1, stable=True)  # [heads, head_dim]
        return _with(layer.module, lambda array: jnp.take_along_axis(array, jnp.broadcast_to(order, array.shape), -1))

    ordered = headjax.map_attention(model, sort)
    sums = added(ordered, batches, functools.partial(_products, kept)) if compensated else {}

    def fold(layer: LayerModule) -> nnx.Module:
        maps = jnp.broadcast_to(jnp.eye(kept), (layer.module.num_heads, kept, kept))
        if compensated:
            normal, right = (
                np.asarray(sums[layer.stack][layer.layer][name], np.float64) for name in ("normal", "right")
            )
            normal = normal.reshape(len(normal), kept**2, kept**2)
            ridge = DAMPING * np.trace(normal, axis1=1, axis2=2) / kept**2
            solved = np.linalg.solve(normal + ridge[:, None, None] * np.eye(kept**2), right.reshape(len(right), -1, 1))
            maps = maps + jnp.asarray(solved.reshape(-1, kept, kept), jnp.float32)

        def folded(array: jax.Array) -> jax.Array:
            own = jnp.einsum("...hi,hij->...hj", array[..., :kept], maps, precision="highest")
            return jnp.concatenate([own, jnp.zeros_like(array[..., kept:])], axis=-1)

        return _with(layer.module, folded, ("query",))

    return headjax.map_attention(ordered, fold)


def _with(module: Any, change: Callable[[jax.Array], jax.Array], names: Sequence[str] = ("query", "key")) -> nnx.Module:
    """Return an attention with changed weights and biases of queries or keys, `[..., heads, head_dim]`."""
    copy: nnx.Module = own_copy(module)
    for name in (name + end for name in names for end in ("", "_bias")):
        variable = getattr(copy, name)
        if variable is not None:
            variable.set_raw_value(change(variable[...]))
    return copy


def added(model: Model, batches: Sequence[Batch], probe: Callable[[Probe], Any]) -> dict[str, list[Any]]:
    """Return what a probe finds at every attention layer, summed over batches."""
    found: Iterator[Any] = (model(batch, probe=probe).require_probes() for batch in batches)
    return functools.reduce(lambda one, other: jax.tree.map(jnp.add, one, other), found)


def operands(probe: Probe) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries and keys `[batch, length, heads, head_dim]` of self-attention, 0 at padding, and which count."""
    counted = counted_at(probe.query_mask, probe.inputs.shape[:2])[..., None, None]
    module, inputs = probe.module, probe.inputs
    query = into_heads(inputs, module.query, module.query_bias) * counted
    return query, into_heads(inputs, module.key, module.key_bias) * counted, counted


def squares(probe: Probe) -> dict[str, jax.Array]:
    """Probe: sums of squares of queries, keys and contexts `[heads, head_dim]`, and the number of tokens."""
    query, key, counted = operands(probe)
    arrays = {"query": query, "key": key, "context": probe.attended.context * counted}
    return {name: jnp.square(array).sum(axis=(0, 1)) for name, array in arrays.items()} | {"tokens": counted.sum()}


def _products(kept: int, probe: Probe) -> dict[str, jax.Array]:
    """Probe: the normal equations of M, `[heads, kept, kept, kept, kept]` and `[heads, kept, kept]`."""
    query, key, _ = operands(probe)
    (q, lost_q), (k, lost_k) = ((array[..., :kept], array[..., kept:]) for array in (query, key))
    product = functools.partial(jnp.einsum, precision="highest")
    of_q, of_k = product("blhi,blhk->bhik", q, q), product("bthj,bthl->bhjl", k, k)
    right = product("bhip,bhpj->hij", product("blhi,blhp->bhip", q, lost_q), product("blhp,blhj->bhpj", lost_k, k))
    return {"normal": product("bhik,bhjl->hijkl", of_q, of_k), "right": right}
