"""Reconstruct any Flax model without some heads: output projections refitted by least squares, without training."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.core.short import brief
from headjax.heads.head_id import HeadId
from headjax.heads.layer_sums import sums_by_half
from headjax.heads.reconstruction import LayerRepair, warn_of_unknowns
from headjax.heads.refit import RIDGES, RefitSums, refit
from headjax.heads.statistics import sum_over
from headjax.mesh.explicit import spread_by_compiler
from headjax.sites.program import Loss, Program, arrays_of, examples_in, prepare
from headjax.sites.pruning import prune_module
from headjax.sites.site import AttentionSite, Gates, Sites, at_path, ones, output_matrix, require_heads, without

SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


class ModuleReconstruction(NamedTuple):
    """Result of `reconstruct` for a model that is not headjax's.

    Attributes:
        repaired: Model with repaired maps and with all heads: the removed ones are to be pruned, or gated off.
        removed: Removed heads.
        layers: Repairs, in the order of computation.
        examples: Number of calibration examples.
        tokens: Number of their positions that can change the loss, of the layer that has most.
    """

    repaired: nnx.Module
    removed: tuple[HeadId, ...]
    layers: tuple[LayerRepair, ...]
    examples: int
    tokens: int

    def __repr__(self) -> str:
        return brief(self)

    @property
    def model(self) -> nnx.Module:
        """Pruned model with repaired maps, made by every call."""
        return prune_module(self.repaired, self.removed)


def reconstruct_module(
    model: nnx.Module,
    batches: Sequence[Any],
    removed: Iterable[HeadId | str],
    loss: Loss | None,
    *,
    feed_forward: bool = False,
    ridges: Sequence[float] = RIDGES,
    progress: Update | None = None,
) -> ModuleReconstruction:
    """Solve the output projections of a model that is not headjax's, see `headjax.sites.functions.reconstruct`."""
    if not batches:
        raise DataError("batches: there is no example to calibrate on")
    program, state = prepare(model, loss)
    gone = require_heads(program.sites, removed)
    prune_module(model, gone)  # what its code cannot hold is refused before anything is solved
    gates = without(program.sites, gone)
    if feed_forward:
        maps = tuple(_second_maps(model, program.sites))
        program, gates = dataclasses.replace(program, sites=program.sites + maps), gates | ones(maps)
    arrays = [arrays_of(batch) for batch in batches]
    repaired = nnx.clone(model, graph=True)
    repairs: list[LayerRepair] = []
    for repair in _through(program, state, repaired, gates, arrays, ridges):
        repairs.append(repair)
        if progress is not None:
            progress(len(repairs), {"held_out": repair.held_out})
    warn_of_unknowns(repairs)
    tokens = max((repair.tokens for repair in repairs), default=0)
    return ModuleReconstruction(repaired, gone, tuple(repairs), sum(map(examples_in, arrays)), tokens)


def _second_maps(model: nnx.Module, sites: Sites) -> Iterator[AttentionSite]:
    """Yield the second maps of the feed-forwards beside the attention layers, whose units are heads of size 1."""
    for site in sites:
        block = site.path.rpartition(".")[0]
        found = {
            ".".join(map(str, path)): module
            for path, module in nnx.iter_modules(at_path(model, block), graph=True)
            if path and path[-1] in SECOND_MAPS and isinstance(getattr(module, "kernel", None), nnx.Variable)
        }
        own = site.path.rpartition(".")[2]
        places = [path for path in found if path.partition(".")[0] != own]
        if len(places) != 1:
            raise HeadjaxError(
                f"feed_forward: beside {site.path} there are {len(places)} second maps of a feed-forward; looked for "
                f"{', '.join(SECOND_MAPS)}"
            )
        holder, _, name = f"{block}.{places[0]}".strip(".").rpartition(".")
        units = at_path(found[places[0]], "kernel")[...].shape[-2]
        kinds: dict[str, Any] = {"output": name, "kernel": f"{name}.kernel", "query": ((f"{name}.kernel", -2),)}
        yield AttentionSite(heads=units, kv_heads=units, head_dim=1, path=holder, layers=site.layers, **kinds)


def _through(
    program: Program, state: Any, repaired: nnx.Module, gates: Gates, batches: Sequence[Any], ridges: Sequence[float]
) -> Iterator[LayerRepair]:
    """Repair the maps of a copy one after another, in the order in which the model calls them, and say how well."""
    calls = program.calls(state, batches[0]).leads
    sites = {site.path: site for site in program.sites}
    whole, apart = ones(program.sites), False
    for path, leads in calls.items():
        site = sites[path]
        if len(leads) > 1:
            raise HeadjaxError(f"reconstruction: {path}: is called several times; it cannot be solved")
        for layer, kept in enumerate(np.asarray(gates[path]).reshape(-1, site.heads) > 0.0):
            apart |= not kept.all()
            if not apart or not kept.any():
                continue
            projection = at_path(at_path(repaired, path), site.output)
            matrix = spread_by_compiler(functools.partial(_matrix, site, layer), PartitionSpec(), projection)
            features = np.repeat(kept, site.head_dim)
            now = nnx.split(repaired, graph=True)[1]
            found = (
                spread_by_compiler(
                    _sums,
                    PartitionSpec(),
                    _contexts(program, site, layer, state, whole, batch),
                    _contexts(program, site, layer, now, gates, batch),
                    matrix,
                    jnp.asarray(features),
                    jnp.asarray(number % 2),
                )
                for number, batch in enumerate(batches)
            )
            yield _repair(repaired, site, layer, features, sum_over(found), ridges)


def _repair(
    repaired: nnx.Module, site: AttentionSite, layer: int, kept: np.ndarray, sums: RefitSums, ridges: Sequence[float]
) -> LayerRepair:
    """Solve one map, put it into the copy, and say how well it did."""
    stack, number = site.places[layer]
    title = str(HeadId(stack, number, 0)).rpartition("/")[0]
    if not all(np.isfinite(array).all() for array in sums):
        raise HeadjaxError(f"reconstruction: {title}: sums over the calibration examples are not finite")
    if min(float(half[-1, -1]) for half in sums.gram) == 0.0:
        raise DataError("calibration: one example is too few, the ridge is chosen on another than it is solved on")
    holder = at_path(at_path(repaired, site.path), site.output)
    bias = vars(holder).get("bias")
    has_bias = isinstance(bias, nnx.Variable)
    found = refit(sums, kept, bias=has_bias, scale=np.ones(sums.square.shape[-1]), ridges=ridges)
    if found.helps:
        changes = [(at_path(at_path(repaired, site.path), site.kernel), found.change.weight)]
        changes += [(bias, found.change.bias)] if has_bias else []
        for variable, change in changes:
            array = variable[...]
            changed = functools.partial(_added, None if site.layers is None else layer)
            variable.set_value(spread_by_compiler(changed, array, array, jnp.asarray(change)))
    return LayerRepair(title, sums.tokens, found.unknowns, found.ridge, found.held_out, found.helps)


def _matrix(site: AttentionSite, layer: int, projection: nnx.Module) -> jax.Array:
    """Return the W_O of a layer of a site, `[heads * head_dim, width]`."""
    own = output_matrix(site, projection)
    return own.reshape(-1, site.heads * site.head_dim, own.shape[-1])[layer]


def _added(layer: int | None, array: jax.Array, change: jax.Array) -> jax.Array:
    """Return the array with a change added to it, or to the layer's part of it."""
    index = ... if layer is None else layer
    return array.at[index].add(change.reshape(array[index].shape).astype(array.dtype))


def _contexts(program: Program, site: AttentionSite, layer: int, state: Any, gates: Gates, batch: Any) -> jax.Array:
    """Return the contexts of a layer of a site before its gates, `[examples, positions..., features + 1]`."""
    found: jax.Array = _every_context(program, state, gates, batch)[site.path]
    return found if site.layers is None else found[layer]


@functools.partial(jax.jit, static_argnames="program")
def _every_context(program: Program, state: Any, gates: Gates, batch: Any) -> dict[str, jax.Array]:
    """Return the contexts of every site, see `_contexts`.

    The last entry is 1 at positions that can change the loss, and 0 at others.
    """
    leads = program.calls(state, batch).leads
    reads = {
        site.path: jnp.zeros((*site.shape[:-1], *leads[site.path][0], site.heads * site.head_dim + 1))
        for site in program.sites
    }

    def loss(reads: dict[str, jax.Array]) -> jax.Array:
        return program.value(state, gates, batch, reads=reads, read=_read).total.sum()

    found: dict[str, jax.Array] = jax.grad(loss)(reads)
    return found


def _read(contexts: jax.Array, matrix: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.concatenate([contexts.reshape(*counted.shape, -1), counted[..., None]], axis=-1)


@jax.jit
def _sums(whole: jax.Array, own: jax.Array, matrix: jax.Array, kept: jax.Array, shift: jax.Array) -> RefitSums:
    """Return the sums of products of one batch, for contexts of the original model and of the copy."""
    target, present = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (whole, own))
    counted = target[..., -1:]
    features = jnp.concatenate([present[..., :-1], jnp.ones_like(counted)], axis=-1) * counted
    left = (target[..., :-1] - present[..., :-1] * kept[None, None]) @ matrix.astype(jnp.float32) * counted
    return sums_by_half(features, left, shift)
