"""Shrink a model by its loss: how many heads each attention layer keeps, chosen together.

In every layer the least important heads go first, in whole groups where KV heads serve several; layers that lie along
one axis (`nnx.scan`) keep equal numbers. The rise of the loss is measured, with gates, for every number of heads that
the layer alone could keep. An integer program takes one number a layer, so that the sum of these rises is least. Output
projections are then refitted, and the heads are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, Update
from headjax.heads.loss_checks import parameters_of, unrecognised
from headjax.heads.program import Loss, Program, mean_loss, prepare
from headjax.heads.reconstruct import reconstruct
from headjax.heads.scoring import score_heads
from headjax.heads.site import AttentionSite, at_path, kept_along, ones
from headjax.shrinking.choice import QUANTITIES, Choice, Option, Prices, Shrunk, choose, frontier

Removals = dict[str, list[np.ndarray]]
"""By site which heads are kept, `[layers, heads]`, with no group gone, one, two, ..."""


def shrink_by_loss(
    model: nnx.Module,
    batches: Sequence[Any],
    limits: Callable[[Prices], Mapping[str, float]],
    *,
    loss: Loss | None,
    uniform: bool,
    strict: bool,
    progress: Progress,
) -> Shrunk:
    """Return a model with fewer heads, as many in each layer as cost the least loss within limits."""
    program, state = prepare(model, loss)
    for site in program.sites:
        if site.tied:
            raise HeadjaxError(f"{site.path}: its layers share their parameters; none shrinks alone")
    importance = score_heads(model, batches, loss=loss, strict=strict).score("importance")
    removals = {
        site.path: _removals(site, np.array([importance[head] for head in site.head_ids()])) for site in program.sites
    }
    with progress("measuring", sum(map(len, removals.values())) - len(removals), "removal") as bar:
        options = _options(program, state, model, batches, removals, bar)
    others = unrecognised(program, state, program.read(batches[0]))
    rest = float(parameters_of(model, others, [site.path for site in program.sites]))
    prices = Prices(options, dict.fromkeys(QUANTITIES, 0.0) | {"parameters": rest}, "loss")
    choice = choose(prices, limits(prices), uniform=uniform)
    gone = tuple(
        head
        for site in program.sites
        for head, kept in zip(site.head_ids(), _kept(site, removals, choice).reshape(-1), strict=True)
        if not kept
    )
    smaller = reconstruct(model, batches, gone, loss=loss).model if gone else model
    return Shrunk(smaller, gone, choice, frontier(prices, "parameters", uniform=uniform), prices)


def _removals(site: AttentionSite, importance: np.ndarray) -> list[np.ndarray]:
    """Return which heads are kept, `[layers, heads]`, with one after another of the least important groups gone."""
    numbers, group_of = np.unique(site.groups if site.kv_heads > 1 else np.arange(site.heads), return_inverse=True)
    by_group = importance.reshape(-1, site.heads) @ np.eye(len(numbers))[group_of]  # [layers, groups]
    rank = by_group.argsort(axis=-1).argsort(axis=-1)
    return [rank[:, group_of] >= gone for gone in range(len(numbers))]


def _options(
    program: Program, state: Any, model: nnx.Module, batches: Sequence[Any], removals: Removals, bar: Update
) -> dict[str, tuple[Option, ...]]:
    """Return the rise of the loss and the parameters of every number of heads of every layer."""
    gates = ones(program.sites)
    baseline, done = mean_loss(program, state, gates, batches), 0
    options: dict[str, tuple[Option, ...]] = {}
    for site in program.sites:
        layer, name = at_path(model, site.path), _name(site)
        whole, *smaller = removals[site.path]
        options[name] = (_option(site, layer, whole, 0.0),)
        for kept in smaller:
            closed = gates | {site.path: jnp.asarray(kept.reshape(site.shape), jnp.float32)}
            rise = mean_loss(program, state, closed, batches) - baseline
            options[name] += (_option(site, layer, kept, rise),)
            done += 1
            bar(done, {})
    return options


def _option(site: AttentionSite, layer: Any, kept: np.ndarray, damage: float) -> Option:
    heads, whole = tuple(np.flatnonzero(kept[0]).tolist()), bool(kept.all())
    level, kind = ("", "whole") if whole else (f"{len(heads)} heads", "heads")
    return Option(_name(site), level, kind, heads, damage=damage, parameters=float(_parameters(site, layer, kept[0])))


def _name(site: AttentionSite) -> str:
    """Return the name of a site among the options: its stack, so that layers can be alike, and its layer."""
    return "{}/{}".format(*site.places[0])


def _kept(site: AttentionSite, removals: Removals, choice: Choice) -> np.ndarray:
    """Return which heads of a site the choice keeps, `[layers, heads]`."""
    left = len(choice.options[_name(site)].heads or ())
    return next(kept for kept in removals[site.path] if kept[0].sum() == left)


def _parameters(site: AttentionSite, layer: Any, query: np.ndarray) -> int:
    """Return the number of parameters of a layer, or of the layers along an axis, with these query heads."""
    key = np.isin(np.arange(site.kv_heads), site.groups[query])
    total = sum(array.size for array in jax.tree.leaves(nnx.state(layer, nnx.Param)))
    for path, axis, kinds in site.held():
        variable = at_path(layer, path)
        if isinstance(variable, nnx.Param):
            array = variable[...]
            share = kept_along(site, path, array.shape, axis, kinds, query, key).mean()
            total -= round(array.size * (1.0 - share))
    return int(total)
