"""Shared query and key dimensions that no head reads any more once heads were removed."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from headjax.attention import Collaborative, Tucker
from headjax.attention.formulation import Attention
from headjax.core.tensors import Params


def drop_unused(attention: Attention, params: Params) -> tuple[Attention, Params]:
    """The layer without the shared dimensions whose mixing weights are 0 for every head; the same function.

    A converted layer at full rank gives every head dimensions of its own, which are unused as soon as the head is
    gone. Formulations that share no dimensions come back as they are.

    Args:
        attention: the formulation.
        params: its parameters.
    """
    smaller: Attention
    if isinstance(attention, Collaborative):
        queries = keys = _used(params, (0,))
        smaller = dataclasses.replace(attention, shared_dim=len(keys))
        mixing = params["mixing"][:, keys]
    elif isinstance(attention, Tucker):
        queries, keys = _used(params, (0, 2)), _used(params, (0, 1))
        smaller = dataclasses.replace(attention, query_rank=len(queries), key_rank=len(keys))
        mixing = params["mixing"][:, queries][:, :, keys]
    else:
        return attention, params
    kept = {
        name: jnp.take(params[name], index, axis=-1)
        for name, index in (("query", queries), ("query_bias", queries), ("key", keys), ("key_bias", keys))
        if name in params
    }
    return smaller, params | kept | {"mixing": mixing}


def _used(params: Params, others: tuple[int, ...]) -> np.ndarray:
    """The dimensions with a weight other than 0, or the first one if there is none: a layer needs at least one."""
    used = np.flatnonzero(np.any(np.asarray(params["mixing"]) != 0.0, axis=others))
    return used if len(used) else np.array([0])
