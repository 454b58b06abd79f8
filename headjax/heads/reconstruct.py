"""Reconstruct a model without some heads: output projections refitted by least squares, without training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.heads.head_id import HeadId
from headjax.heads.layer_sums import sums_by_half
from headjax.heads.maps import add_to, bias_of, contexts_of, matrix_of, silence
from headjax.heads.program import Loss, Program, examples_in, prepare
from headjax.heads.pruning import part_of, prune
from headjax.heads.reconstruction import LayerRepair, Reconstruction, by_walk
from headjax.heads.refit import RIDGES, RefitSums, refit
from headjax.heads.site import (
    AttentionSite,
    Gates,
    Sites,
    at_path,
    ones,
    require_heads,
    with_tied,
    without,
)
from headjax.heads.statistics import sum_over
from headjax.heads.units import Place
from headjax.mesh.explicit import on_automatic_axes, spread_by_compiler
from headjax.models.model import Model
from headjax.models.walk import shows_sub_layers
from headjax.nn.compute import Compute

SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


def reconstruct(
    model: nnx.Module,
    batches: Sequence[Any],
    removed: Iterable[HeadId | str],
    *,
    share: float | None = None,
    loss: Loss | None = None,
    feed_forward: bool = False,
    units: float | Mapping[Place, int] = 0.0,
    converted: Any = None,
    ridges: Sequence[float] = RIDGES,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Reconstruction:
    """Refit the output projections of a model so that it computes without these heads as it did with them.

    Going through the layers in order, W_O and b_O of the kept heads minimise over the calibration tokens

        || C W + b - T ||^2 + ridge || W - W_O ||^2

    C are the kept heads' contexts in the pruned model, whose earlier layers are already repaired. Where the model
    offers the walk and its blocks show their sub-layers, as headjax's models do, T is f' + (a / b') (x' - x): the
    unpruned model's attention output f', and the lead of its residual stream x' over the pruned model's x, where the
    stream becomes a x + b' f (K-prune, arXiv 2308.03449, does so in every sub-layer). Of any other model, and with a
    loss, only the layer's own inputs and outputs are known, and T is f'; positions that cannot change the loss do not
    count then. Maps without a bias get none. The ridge is chosen on held-out halves of the examples, and a repair is
    kept only if it lowers the error there.

    Layers that share their parameters (ALBERT) are solved once, from the sums over all of them, without x' - x. Under
    a mesh set with `jax.set_mesh` the examples of a walk's batches are spread over the batch axes.

        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> found = headjax.reconstruct(model, batches, ["decoder/0/0", "decoder/1/1"])
        >>> len(headjax.all_heads(found.model.config)), found.examples
        (30, 11)

    Args:
        model: Model with all heads.
        batches: Calibration examples. On the walk they need no labels.
        removed, share: Heads to remove, as for `prune`.
        loss: Function of the model and a batch, as for `score_heads`. None takes the walk where the model offers it,
            else the model's own loss.
        feed_forward: Whether to refit the FFN down-projections, too.
        units: On the walk, share of the units to remove from every feed-forward, at least 0 and below 1: those whose
            removal costs least once the others have been refitted (`headjax.heads.refit.least_needed`). Every layer
            loses the same number. Or a number for some by (stack, layer).
        converted: On the walk, the model to repair, a conversion of `model` with as many layers and heads.
        ridges: Ridges to choose from, see `headjax.heads.refit.refit`.
        compute: How to compute; without a loss of yours.
        progress: Called after every solved map with the number of maps done.

    Raises:
        HeadjaxError: A head does not exist, all heads go, the model's code cannot hold what would be left (nothing is
            solved then), a layer has no output projection that can be solved, sums are not finite, or an option needs
            the walk.
        DataError: There are no batches, fewer than two examples, or no tokens.
        ConfigError: A batch does not divide over the mesh.
    """
    if not batches:
        raise DataError("batches: there is no example to calibrate on")
    removed = tuple(removed if share is None else part_of(model, removed, share))
    if loss is None and shows_sub_layers(model):
        found = on_automatic_axes(by_walk)(
            cast(Model, model), batches, removed, feed_forward=feed_forward, units=units, converted=converted,
            ridges=ridges, compute=compute, progress=progress,
        )  # fmt: skip
    else:
        for name, there in {"units": bool(units), "converted": converted is not None}.items():
            if there:
                raise HeadjaxError(f"{name}: needs a model that offers the walk (headjax.models.walk), and no loss")
        own = None if compute == Compute() else compute
        found = _by_passes(model, batches, removed, loss, own, feed_forward, ridges, progress)
    return found._replace(repaired=found.told())


def _by_passes(
    model: nnx.Module,
    batches: Sequence[Any],
    removed: Iterable[HeadId | str],
    loss: Loss | None,
    compute: Compute | None,
    feed_forward: bool,
    ridges: Sequence[float],
    progress: Update | None,
) -> Reconstruction:
    """Repair the maps of a model by whole passes for each of them."""
    program, state = prepare(model, loss, compute)
    gone = with_tied(program.sites, require_heads(program.sites, removed))
    prune(model, gone)  # what its code cannot hold is refused before anything is solved
    left = without(program.sites, gone)
    if feed_forward:
        maps = tuple(_second_maps(model, program.sites))
        program, left = dataclasses.replace(program, sites=program.sites + maps), left | ones(maps)
    arrays = [program.read(batch) for batch in batches]
    repaired = nnx.clone(model, graph=True)
    for site in program.sites:
        silence(repaired, site, np.asarray(left[site.path]).reshape(-1, site.heads) > 0.0)
    repairs: list[LayerRepair] = []
    for repair in _through(model, program, state, repaired, left, arrays, ridges):
        repairs.append(repair)
        if progress is not None:
            progress(len(repairs), {"held_out": repair.held_out})
    return Reconstruction(repaired, gone, {}, tuple(repairs), sum(map(examples_in, arrays)))


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
    model: nnx.Module,
    program: Program,
    state: Any,
    repaired: nnx.Module,
    left: Gates,
    batches: Sequence[Any],
    ridges: Sequence[float],
) -> Iterator[LayerRepair]:
    """Repair the maps of a copy one after another, in the order in which the model calls them, and say how well."""
    calls = program.calls(state, batches[0]).leads
    sites = {site.path: site for site in program.sites}
    apart = False
    for path, leads in calls.items():
        site = sites[path]
        if len(leads) > 1:
            raise HeadjaxError(f"reconstruction: {path}: is called several times; it cannot be solved")
        rows = np.asarray(left[path]).reshape(-1, site.heads) > 0.0
        for layer, kept in enumerate(rows[:1] if site.tied else rows):
            apart |= not kept.all()
            if not apart or not kept.any():
                continue
            matrix = matrix_of(model, site, layer)  # before its repair; the copy has its rows for kept heads, too
            features = np.repeat(kept, site.head_dim)
            now = nnx.split(repaired, graph=True)[1]
            found = (
                spread_by_compiler(
                    _sums,
                    PartitionSpec(),
                    contexts_of(program, site, layer, state, batch),
                    contexts_of(program, site, layer, now, batch),
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
    has_bias = bias_of(repaired, site) is not None
    found = refit(sums, kept, bias=has_bias, scale=np.ones(sums.square.shape[-1]), ridges=ridges)
    if found.helps:
        add_to(repaired, site, layer, found.change)
    return LayerRepair(title, sums.tokens, found.unknowns, found.ridge, found.held_out, found.helps)


@jax.jit
def _sums(whole: jax.Array, own: jax.Array, matrix: jax.Array, kept: jax.Array, shift: jax.Array) -> RefitSums:
    """Return the sums of products of one batch, for contexts of the original model and of the copy."""
    target, present = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (whole, own))
    counted = target[..., -1:]
    features = jnp.concatenate([present[..., :-1], jnp.ones_like(counted)], axis=-1) * counted
    left = (target[..., :-1] - present[..., :-1] * kept[None, None]) @ matrix.astype(jnp.float32) * counted
    return sums_by_half(features, left, shift)
