"""The output maps of attention sites: W_O and b_O of a layer, changes of them, and the contexts that they read."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.heads.program import Program
from headjax.heads.refit import Change
from headjax.heads.site import AttentionSite, at_path, kept_along, ones, output_matrix
from headjax.mesh.explicit import spread_by_compiler


def matrix_of(model: nnx.Module, site: AttentionSite, layer: int) -> jax.Array:
    """Return the W_O of a layer of a site, `[heads * head_dim, width]`, low-rank matrices added."""
    projection = at_path(at_path(model, site.path), site.output)
    return spread_by_compiler(functools.partial(_matrix, site, layer), PartitionSpec(), projection)


def _matrix(site: AttentionSite, layer: int, projection: nnx.Module) -> jax.Array:
    own = output_matrix(site, projection)
    return own.reshape(-1, site.heads * site.head_dim, own.shape[-1])[layer]


def bias_of(model: nnx.Module, site: AttentionSite) -> nnx.Variable | None:
    """Return b_O of a site; None where its map has no bias."""
    bias = vars(at_path(at_path(model, site.path), site.output)).get("bias")
    return bias if isinstance(bias, nnx.Variable) else None


def add_to(model: nnx.Module, site: AttentionSite, layer: int, change: Change) -> None:
    """Add a change to the map of a layer of a site, in a copy of a model."""
    bias = bias_of(model, site)
    changes = [(at_path(at_path(model, site.path), site.kernel), change.weight)]
    changes += [] if bias is None else [(bias, change.bias)]
    for variable, added in changes:
        array = variable[...]
        index = ... if site.layers is None or site.tied else layer
        variable.set_value(spread_by_compiler(functools.partial(_added, index), array, array, jnp.asarray(added)))


def _added(index: Any, array: jax.Array, change: jax.Array) -> jax.Array:
    return array.at[index].add(change.reshape(array[index].shape).astype(array.dtype))


def silence(model: nnx.Module, site: AttentionSite, kept: np.ndarray) -> None:
    """Set the rows of W_O of heads that are not kept `[layers, heads]` to 0, in a copy of a model."""
    rows = kept[:1] if site.tied else kept
    for path, axis in site.query:
        if path in site.rows and not rows.all():
            variable = at_path(at_path(model, site.path), path)
            array = variable[...]
            along = [kept_along(site, path, array.shape, axis, "q", row, row) for row in rows]
            shape = [1] * array.ndim
            shape[axis] = array.shape[axis]
            shape[0] = max(shape[0], len(rows))
            mask = jnp.asarray(np.stack(along).reshape(shape), array.dtype)
            variable.set_value(spread_by_compiler(jnp.multiply, array, array, mask))


def contexts_of(program: Program, site: AttentionSite, layer: int, state: Any, batch: Any) -> jax.Array:
    """Return the contexts of a layer of a site, `[examples, positions..., features + 1]`.

    Those of layers that share W_O lie along the first axis of positions.
    """
    found: jax.Array = every_context(program, state, batch)[site.path]
    if site.tied:
        return jnp.moveaxis(found, 0, 1)
    return found if site.layers is None else found[layer]


@functools.partial(jax.jit, static_argnames="program")
def every_context(program: Program, state: Any, batch: Any) -> dict[str, jax.Array]:
    """Return the contexts of every site, `[layers?, ...]` as `contexts_of`; the last entry is 1 where they count."""
    leads = program.calls(state, batch).leads
    reads = {
        site.path: jnp.zeros((*site.shape[:-1], *leads[site.path][0], site.heads * site.head_dim + 1))
        for site in program.sites
    }

    def loss(reads: dict[str, jax.Array]) -> jax.Array:
        return program.value(state, ones(program.sites), batch, reads=reads, read=_read).total.sum()

    found: dict[str, jax.Array] = jax.grad(loss)(reads)
    return found


def _read(contexts: jax.Array, matrix: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.concatenate([contexts.reshape(*counted.shape, -1), counted[..., None]], axis=-1)
