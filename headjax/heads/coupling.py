"""Whether a user's loss is a sum over examples: one that compares the examples of a batch has no slope by example."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.program import Losses, OwnLoss, Program, arrays_of, compiled, examples_in
from headjax.heads.seam import coarsest
from headjax.heads.site import Gates, ones
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import take


def compare_examples(program: Program, state: Any, batch: Any) -> bool:
    """Raise `HeadjaxError` unless a user's loss is one of its examples; return whether the batch has several to tell.

    Losses of examples, [batch], must stay as they are with others in the place of every second one; one number must be
    the mean or the sum of those of the examples alone.
    """
    known = isinstance(program.loss, OwnLoss) and program.read is not arrays_of  # that of a model of headjax
    losses = {} if known else {"loss": program}
    for name, metric in program.metrics:
        one = dataclasses.replace(program, loss=metric, metrics=())
        losses |= {} if one.calls(state, batch).per_example else {name: one}
    return all(_compared(name, one, state, batch) for name, one in losses.items())


def _compared(name: str, program: Program, state: Any, batch: Any) -> bool:
    """Raise `HeadjaxError` unless one loss is one of its examples; return whether there are several."""
    gates = ones(program.sites)
    traced, shapes = jax.make_jaxpr(program.value, return_shape=True)(state, gates, batch)
    by_example = shapes.total.ndim == 1
    count = shapes.total.shape[0] if by_example else examples_in(batch)
    if not any(array.ndim and array.shape[0] == count for array in jax.tree.leaves(batch)):
        raise HeadjaxError(f"{name}: returned {count} numbers for a batch of {examples_in(batch)} examples")
    if count == 1:
        return False
    with jax.default_matmul_precision("highest"):
        found = (_beside_others if by_example else _alone)(program, state, gates, batch, count)
    share = min(0.03, 64 * float(jnp.finfo(coarsest(traced.jaxpr)).eps) * (1.0 if by_example else count**0.5))
    differs = np.abs(found.apart - found.whole) > share * found.scale  # False where a number is not finite
    if differs.any():
        at = np.unravel_index(differs.argmax(), differs.shape)
        raise HeadjaxError(
            f"{name}: {found.whole[at]:.4g} in a batch is {found.apart[at]:.4g} {found.how}, so it is no sum over "
            "examples (in-batch negatives, batch statistics, a balance term, an array of the batch without an axis of "
            "examples); return the loss of every example, [batch], by itself, or make the batch one example by an axis "
            "of length 1 in front of its arrays"
        )
    return True


class _Apart(NamedTuple):
    """Numbers of a whole batch, and what they would be if its examples did not depend on each other."""

    whole: np.ndarray
    apart: np.ndarray
    scale: Any
    how: str


def _beside_others(program: Program, state: Any, gates: Gates, batch: Any, count: int) -> _Apart:
    """Compare the losses of examples, and their numbers of targets, in batches of one shape: rounding is the same."""
    places = np.arange(count)
    even, odd = places // 2 * 2, np.minimum(places // 2 * 2 + 1, count - 1)
    batches = (jax.tree.map(functools.partial(_picked, pick), batch) for pick in (places, even, odd))
    whole, *halves = (np.stack(fetch(_value(program, state, gates, one))) for one in batches)  # [2, batch]
    apart = np.select([(even == places)[None], (odd == places)[None]], halves)
    return _Apart(whole, apart, np.abs(whole).max(axis=-1, keepdims=True), "beside other examples")


def _alone(program: Program, state: Any, gates: Gates, batch: Any, count: int) -> _Apart:
    """Compare the loss of a batch with the mean, or the sum, of those of batches of one example."""
    whole = np.asarray(fetch(_value(program, state, gates, batch)).total)[None]
    alone = fetch(_losses(program, state, gates, batch)).total
    mean = alone.mean(dtype=np.float64)
    factor = 1 if abs(mean - whole[0]) <= abs(count * mean - whole[0]) else count
    return _Apart(whole, np.array([factor * mean]), factor * np.abs(alone).max(), "for its examples alone")


def _picked(examples: np.ndarray, array: jax.Array) -> jax.Array:
    """Return some examples of an array that has an axis of them."""
    return take(array, examples, 0, "batches") if array.ndim and array.shape[0] == len(examples) else array


@compiled()
def _value(program: Program, state: Any, gates: Gates, batch: Any) -> Losses:
    return program.value(state, gates, batch)


@compiled()
def _losses(program: Program, state: Any, gates: Gates, batch: Any) -> Losses:
    return program.losses(state, gates, batch)
