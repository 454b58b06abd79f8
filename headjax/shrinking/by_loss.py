"""Shrink a model by its loss: how many heads each attention layer keeps, chosen together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress
from headjax.heads.head_id import HeadId
from headjax.heads.missed import missed, parameters_of
from headjax.heads.program import Loss, Program, mean_loss, prepare
from headjax.heads.reconstruct import reconstruct
from headjax.heads.scoring import score_heads
from headjax.heads.site import AttentionSite, at_path, kept_along, ones
from headjax.shrinking.choice import QUANTITIES, Choice, Option, Table, choose


class Fewer(NamedTuple):
    """A model with fewer heads, and how they were chosen."""

    model: nnx.Module
    removed: tuple[HeadId, ...]
    choice: Choice
    table: Table


def by_loss(
    model: nnx.Module,
    batches: Sequence[Any],
    limits: Callable[[Table], Mapping[str, float]],
    *,
    loss: Loss | None,
    uniform: bool,
    strict: bool,
    progress: Progress,
) -> Fewer:
    """Return a model with fewer heads, as many in each layer as cost the least loss within limits.

    In every layer the least important heads go first. The rise of the loss is measured, with gates, for every number of
    heads that the layer alone could keep. An integer program takes one number a layer, so that the sum of these rises
    is least. Output projections are then refitted, and the heads are removed.
    """
    program, state = prepare(model, loss)
    for site in program.sites:
        if site.tied:
            raise HeadjaxError(f"{site.path}: its layers share their parameters; none shrinks alone")
    importance = score_heads(model, batches, loss=loss, strict=strict).score("importance")
    removals = {
        site.path: _removals(site, np.array([importance[head] for head in site.head_ids()])) for site in program.sites
    }
    with progress("measuring", sum(map(len, removals.values())), "removal") as bar:
        table = _measured(program, state, model, batches, removals, bar)
    others = missed(program, state, program.read(batches[0]))
    rest = parameters_of(model, others, [site.path for site in program.sites])
    table = table._replace(rest={**table.rest, "parameters": float(rest)})
    choice = choose(table, limits(table), uniform=uniform)
    gone = tuple(
        head
        for site in program.sites
        for head, kept in zip(site.head_ids(), _kept(site, removals, choice).reshape(-1), strict=True)
        if not kept
    )
    smaller = reconstruct(model, batches, gone, loss=loss).model if gone else model
    return Fewer(smaller, gone, choice, table)


def _removals(site: AttentionSite, importance: np.ndarray) -> list[np.ndarray]:
    """Return which heads are kept, `[layers, heads]`, with one after another of the least important groups gone."""
    numbers, own = np.unique(site.groups if site.kv_heads > 1 else np.arange(site.heads), return_inverse=True)
    by_group = importance.reshape(-1, site.heads) @ np.eye(len(numbers))[own]  # [layers, groups]
    rank = by_group.argsort(axis=-1).argsort(axis=-1)
    return [rank[:, own] >= gone for gone in range(1, len(numbers))]


def _measured(
    program: Program,
    state: Any,
    model: nnx.Module,
    batches: Sequence[Any],
    removals: dict[str, list[np.ndarray]],
    bar: Any,
) -> Table:
    """Return the rise of the loss and the parameters of every number of heads of every layer."""
    whole = ones(program.sites)
    baseline, options, done = mean_loss(program, state, whole, batches), {}, 0
    for site in program.sites:
        layer, everything = at_path(model, site.path), np.ones((site.layers or 1, site.heads), bool)
        found = [_option(site, layer, everything, 0.0)]
        for kept in removals[site.path]:
            gates = whole | {site.path: jnp.asarray(kept.reshape(site.shape), jnp.float32)}
            found.append(_option(site, layer, kept, mean_loss(program, state, gates, batches) - baseline))
            done += 1
            bar(done, {})
        options[_place(site)] = tuple(found)
    rest = dict.fromkeys(QUANTITIES, 0.0)
    return Table(options, rest, "loss")


def _option(site: AttentionSite, layer: Any, kept: np.ndarray, damage: float) -> Option:
    whole = bool(kept.all())
    numbers = tuple(np.flatnonzero(kept[0]).tolist())
    level = "" if whole else f"{len(numbers)} heads"
    size = float(_parameters(site, layer, kept))
    kind = "whole" if whole else "heads"
    return Option(_place(site), level, kind, numbers, damage=damage, parameters=size)


def _place(site: AttentionSite) -> str:
    """Return the name of a site among the options: its stack, so that layers can be alike, and its layer."""
    return "{}/{}".format(*site.places[0])


def _kept(site: AttentionSite, removals: dict[str, list[np.ndarray]], choice: Choice) -> np.ndarray:
    """Return which heads of a site the choice keeps, `[layers, heads]`."""
    left = len(choice.options[_place(site)].heads or ())
    everything = np.ones((site.layers or 1, site.heads), bool)
    return next(kept for kept in (everything, *removals[site.path]) if kept[0].sum() == left)


def _parameters(site: AttentionSite, layer: Any, kept: np.ndarray) -> int:
    """Return the number of parameters of a layer, or of the layers along an axis, with these heads."""
    row = kept[0]
    key = np.isin(np.arange(site.kv_heads), site.groups[row])
    total = sum(array.size for array in jax.tree.leaves(nnx.state(layer, nnx.Param)))
    for path, axis, kinds in site.held():
        variable = at_path(layer, path)
        if isinstance(variable, nnx.Param):
            array = variable[...]
            share = kept_along(site, path, array.shape, axis, kinds, row, key).mean()
            total -= round(array.size * (1.0 - share))
    return int(total)
