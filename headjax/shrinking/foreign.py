"""Shrink any Flax model to a budget of parameters: how many heads each attention layer keeps, chosen together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError, require
from headjax.core.progress import Progress, silent
from headjax.core.short import brief
from headjax.heads.head_id import HeadId
from headjax.shrinking.choice import QUANTITIES, Choice, Option, Table, choose
from headjax.sites.ablation import mean_loss
from headjax.sites.missed import missed, parameters_of
from headjax.sites.program import Loss, Program, arrays_of, prepare
from headjax.sites.pruning import prune_module
from headjax.sites.reconstruction import reconstruct as reconstructed
from headjax.sites.scoring import score_heads
from headjax.sites.site import AttentionSite, at_path, kept_along, ones


class ShrunkHeads(NamedTuple):
    """Result of `shrink_heads`."""

    model: nnx.Module
    removed: tuple[HeadId, ...]
    choice: Choice
    table: Table

    def __repr__(self) -> str:
        return brief(self)


def shrink_heads(
    model: nnx.Module,
    batches: Sequence[Any],
    parameters: float,
    *,
    loss: Loss,
    uniform: bool = False,
    reconstruct: bool = True,
    strict: bool = False,
    progress: Progress = silent,
) -> ShrunkHeads:
    """Return any Flax model with fewer heads, as many in each layer as cost the least loss within a budget.

    In every layer the least important heads go first. The rise of the loss is measured, with gates, for every number of
    heads that the layer alone could keep. An integer program takes one number a layer, so that the sum of these rises
    is least within the budget. Output projections are then refitted (`reconstruct`), and the heads are removed
    (`prune`). Nothing is trained.

    Heads go in whole groups where several KV heads serve groups of them. Layers that lie along one axis
    (`nnx.scan`) keep equal numbers.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> def loss(model, x):
        ...     return ((model(x) - x) ** 2).mean((1, 2))
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
        >>> found = headjax.shrink_heads(layer, [x], 0.5, loss=loss)
        >>> found.model.num_heads <= 2, len(found.removed) >= 2
        (True, True)

    Args:
        model: Any module, as for `headjax.prune`.
        batches: Examples to score, measure and solve on.
        parameters: Greatest number of parameters of the attention layers, those included that are not recognised and
            stay as they are: a share up to 1, or a number above 1.
        loss: Function of a model and a batch, as for `headjax.score_heads`.
        uniform: Whether all layers keep the same number of heads.
        reconstruct: Whether output projections are refitted.
        strict: Whether attention layers that are not recognised are an error; else a warning names them.
        progress: Shows how far it is.

    Raises:
        HeadjaxError: No choice keeps within the budget, or as for `headjax.reconstruct`.
        DataError: There are no examples.
    """
    require(parameters > 0, "parameters", f"must be above 0, got {parameters}")
    program, state = prepare(model, loss)
    if not all(site.output for site in program.sites):
        raise HeadjaxError(
            "model: layers of headjax within another model do not shrink; replace_attention resizes them"
        )
    importance = score_heads(model, batches, loss=loss, strict=strict).score("importance")
    removals = {
        site.path: _removals(site, np.array([importance[head] for head in site.head_ids()])) for site in program.sites
    }
    with progress("measuring", sum(map(len, removals.values())), "removal") as bar:
        table = _measured(program, state, model, batches, removals, bar)
    others = missed(program, state, arrays_of(batches[0]))
    rest = parameters_of(model, others, [site.path for site in program.sites])
    table = table._replace(rest={**table.rest, "parameters": float(rest)})
    limit = parameters * (table.whole("parameters") if parameters <= 1.0 else 1.0)
    choice = choose(table, {"parameters": limit}, uniform=uniform)
    gone = tuple(
        head
        for site in program.sites
        for head, kept in zip(site.head_ids(), _kept(site, removals, choice).reshape(-1), strict=True)
        if not kept
    )
    if reconstruct and gone:
        smaller = reconstructed(model, batches, gone, loss=loss).model
    else:
        smaller = prune_module(model, gone)
    return ShrunkHeads(smaller, gone, choice, table)


def _removals(site: AttentionSite, importance: np.ndarray) -> list[np.ndarray]:
    """Return which heads are kept, `[layers, heads]`, with one after another of the least important groups gone."""
    units = site.kv_heads if site.kv_heads > 1 else site.heads
    by_unit = importance.reshape(-1, units, site.heads // units)
    rank = by_unit.sum(axis=-1).argsort(axis=-1).argsort(axis=-1)  # [layers, units]
    return [np.repeat(rank >= gone, site.heads // units, axis=-1) for gone in range(1, units)]


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
    key = row.reshape(site.kv_heads, -1).any(axis=-1)
    total = sum(array.size for array in jax.tree.leaves(nnx.state(layer, nnx.Param)))
    for path, axis, kinds in site.held():
        variable = at_path(layer, path)
        if isinstance(variable, nnx.Param):
            array = variable[...]
            share = kept_along(site, path, array.shape, axis, kinds, row, key).mean()
            total -= round(array.size * (1.0 - share))
    return int(total)
