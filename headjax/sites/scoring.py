"""Scores of the heads of any Flax model: gradients of gates in one pass over the data."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.heads.scores import NO_TARGET, Scores, means, require_finite
from headjax.heads.statistics import sum_over
from headjax.sites.missed import checked
from headjax.sites.program import Applied, Loss, Program, each_example, examples_in, prepare
from headjax.sites.site import AttentionSite, Gates, filled, to_values


def score_module(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    loss: Loss | None,
    *,
    gates: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Scores:
    """Score every head of a model that is not headjax's, see `headjax.sites.functions.score_heads`."""
    started = time.perf_counter()
    program, state = prepare(model, loss)
    at, by_head = filled(program.sites, gates), functools.partial(to_values, program.sites)

    def check(number: int, fetched: _Sums) -> None:
        require_finite(fetched.heads, by_head, number)
        if progress is not None:
            progress(number + 1, {})

    sums = (_batch_sums(program, state, at, batch) for batch in checked(program, state, batches, strict))
    total: _Sums = sum_over(sums, check, NO_TARGET)
    values = means(total.heads, total.examples, total.counted, by_head)
    seconds = time.perf_counter() - started
    return Scores(values, float(total.loss / total.examples), int(total.examples), seconds)


class _Sums(NamedTuple):
    """Sums over the examples of one batch or of several.

    Attributes:
        loss, examples: Summed loss, and number of examples.
        counted: By site, number of positions that can change the loss, of the shape of its gates.
        heads: By score and site, of the shape of its gates.
    """

    loss: Any
    examples: Any
    counted: dict[str, Any]
    heads: dict[str, dict[str, Any]]


@functools.partial(jax.jit, static_argnames="program")
def _batch_sums(program: Program, state: Any, gates: Gates, batch: Any) -> _Sums:
    examples = examples_in(batch)
    found = _derivatives(program, state, gates, batch)
    heads: dict[str, dict[str, Any]] = {}
    counted = {}
    for site in program.sites:
        by_position = found.gradient[site.path]
        by_example = by_position.sum(axis=-2)
        sums = {
            "importance": jnp.abs(by_example).sum(axis=0),
            "fisher": jnp.square(by_example).sum(axis=0),
        }
        if found.positions:
            sums["importance_token"] = jnp.abs(by_position).sum(axis=(0, -2))
        every = jnp.full(site.shape, examples * by_position.shape[-2], jnp.float32)
        counted[site.path] = found.counted.get(site.path, every)
        for name, array in sums.items():
            heads.setdefault(name, {})[site.path] = array
    whole = {name: arrays for name, arrays in heads.items() if len(arrays) == len(program.sites)}
    return _Sums(found.losses.sum(), jnp.float32(examples), counted, whole)


class _Derivatives(NamedTuple):
    """Gradients of the examples' losses.

    Attributes:
        losses: `[batch]`.
        gradient: By site, `[batch, positions, heads]`, or `[batch, layers, positions, heads]`.
        counted: By site, number of positions that can change the loss, of the shape of its gates.
        positions: Whether gradients are by position, at every site.
    """

    losses: jax.Array
    gradient: dict[str, jax.Array]
    counted: dict[str, jax.Array]
    positions: bool


def _derivatives(program: Program, state: Any, gates: Gates, batch: Any) -> _Derivatives:
    """Differentiate every example's loss in one gate for each head and position.

    A loss that returns one number for each example is differentiated as a whole: no example reads another's gates, so
    the gradient of the sum holds every example's gradient. Another one is taken on batches of one example, by a vmap.
    """
    together = program.calls(state, batch).per_example and program.by_position
    example = batch if together else jax.tree.map(_first, batch)
    leads = {path: _common(calls) for path, calls in program.calls(state, example).leads.items()}
    missing = next((site for site in program.sites if site.path not in leads), None)
    if missing is not None and program.by_position:
        raise HeadjaxError(
            f"{missing.path}: the loss never calls its {missing.output or 'layer'}, so its gates do nothing"
        )
    reads = {site.path: jnp.zeros(site.shape) for site in program.sites if site.output}

    def loss(arrays: tuple[Gates, Gates], batch: Any) -> tuple[jax.Array, jax.Array]:
        losses = program.value(state, arrays[0], batch, arrays[1], _positions)
        return losses.sum(), losses

    def differentiate(batch: Any) -> tuple[jax.Array, Gates, Gates]:
        spread = {site.path: _spread(site, gates[site.path], leads.get(site.path)) for site in program.sites}
        (gradient, counted), losses = jax.grad(loss, has_aux=True)((spread, reads), batch)
        return losses, gradient, counted

    if together:
        losses, gradient, counted = differentiate(batch)
        by_example = {site.path: _by_example(site, gradient[site.path], losses.shape[0]) for site in program.sites}
    else:
        losses, gradient, counted = each_example(differentiate, batch)
        losses = losses.reshape(-1)
        counted = {path: array.sum(axis=0) for path, array in counted.items()}
        by_example = {site.path: _flattened(site, gradient[site.path]) for site in program.sites}
    positions = all(len(lead) > 1 and max(lead[1:]) > 1 for lead in leads.values()) and bool(leads)
    return _Derivatives(losses, by_example, counted, positions)


def _positions(contexts: jax.Array, matrix: jax.Array, counted: jax.Array) -> jax.Array:
    """Return the number of counted positions, once for each head."""
    return jnp.full(contexts.shape[-2], counted.sum())


def _first(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, *array.shape[1:])[: array.ndim], array.dtype)


def _common(calls: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the axes of the gates of a site that is called several times: those of all its calls, or the batch's."""
    if len(set(calls)) == 1:
        return calls[0]
    return (calls[0][0], *[1] * (len(calls[0]) - 1))


def _spread(site: AttentionSite, gates: jax.Array, lead: tuple[int, ...] | None) -> jax.Array:
    """Return a site's gates with axes for the positions before the heads."""
    if lead is None:
        return gates
    front = site.shape[:-1]
    return jnp.broadcast_to(gates.reshape(*front, *[1] * len(lead), site.heads), (*front, *lead, site.heads))


def _by_example(site: AttentionSite, gradient: jax.Array, examples: int) -> jax.Array:
    """Return a gradient `[layers?, batch, ..., heads]` as `[batch, layers?, positions, heads]`."""
    front = len(site.shape) - 1
    if gradient.shape[front] != examples:
        raise HeadjaxError(
            f"{site.path}: {site.output} is called with shape {list(gradient.shape[front:-1])} before its heads, which "
            f"does not begin with the {examples} examples; return one number from the loss, and it is taken by example"
        )
    return _flattened(site, jnp.moveaxis(gradient, front, 0))


def _flattened(site: AttentionSite, gradient: jax.Array) -> jax.Array:
    return gradient.reshape(gradient.shape[0], *site.shape[:-1], -1, site.heads)
