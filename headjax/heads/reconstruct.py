"""Reconstruct a model without some heads: output projections refitted by least squares, without training.

Layers are solved in order, each with the contexts of the pruned model, whose earlier layers are already repaired. Where
the model offers the walk and its blocks show their sub-layers, as headjax's models do, the target of a sub-layer makes
up for these errors, too: it is f' + (a / b') (x' - x), with the unpruned model's output f' and the lead of its residual
stream x' over the pruned model's x, where the stream becomes a x + b' f (K-prune, arXiv 2308.03449, does so in every
sub-layer). Layers that share their parameters (ALBERT) are solved once, from the sums over all of them, without x' - x.
Of any other model, and with a loss, only a layer's own inputs and outputs are known: the target is f', and positions
that cannot change the loss do not count. Maps without a bias get none.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.numbers import brief
from headjax.core.programs import free_memory, one_blas_thread
from headjax.core.progress import Update
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.ordering import part_of
from headjax.heads.output_maps import BlockReader, OutputMap, SiteReader
from headjax.heads.program import Loss
from headjax.heads.pruning import prune
from headjax.heads.refit import RIDGES, RefitSums, centred, least_needed, refit
from headjax.heads.site import find_heads, require_heads, with_tied
from headjax.heads.surgery import StackLayer, prune_units, units_to_remove
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.walk import shows_sub_layers
from headjax.nn.block import Compute


class LayerRepair(NamedTuple):
    """Repair of one layer's map.

    Attributes:
        name: `encoder/3` for the attention layer 3 of a head stack, `encoder/3/feed_forward` for a feed-forward.
        tokens: number of calibration tokens.
        unknowns: number of unknowns of each output: features of the kept heads, and the bias.
        ridge: chosen ridge, a share of the mean square of a feature.
        held_out: squared error with the repair over that without, on examples that it was not solved on.
        kept: whether the model has the repair, which it has if that error falls.
    """

    name: str
    tokens: int
    unknowns: int
    ridge: float
    held_out: float
    kept: bool


class Reconstruction(NamedTuple):
    """Result of `reconstruct`.

    Attributes:
        repaired: Model with repaired maps, with rows of 0 in W_O for removed heads and in W_2 for removed units.
        removed: Removed heads.
        units: Removed units of every feed-forward, by stack and layer.
        layers: Repairs, in the order of computation.
        examples: Number of calibration examples.
    """

    repaired: Any
    removed: tuple[HeadId, ...]
    units: Mapping[StackLayer, tuple[int, ...]]
    layers: tuple[LayerRepair, ...]
    examples: int

    def __repr__(self) -> str:
        return brief(self)

    @property
    def tokens(self) -> int:
        """Number of calibration tokens that count, of the layer that has most."""
        return max((repair.tokens for repair in self.layers), default=0)

    @property
    def model(self) -> Any:
        """Pruned model with repaired maps, made by every call."""
        pruned = prune(self.repaired, self.removed)
        return prune_units(pruned, self.units) if self.units else pruned


def reconstruct(
    model: nnx.Module,
    batches: Iterable[Any],
    removed: Iterable[HeadId | str],
    *,
    share: float | None = None,
    loss: Loss | None = None,
    feed_forward: bool = False,
    units: float | Mapping[StackLayer, int] = 0.0,
    converted: Any = None,
    skipped: Collection[StackLayer] = (),
    ridges: Sequence[float] = RIDGES,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Reconstruction:
    """Refit the output projections of a model so that it computes without these heads as it did with them.

    W_O and b_O of the kept heads minimise over the calibration tokens

        || C W + b - T ||^2 + ridge || W - W_O ||^2

    C are the kept heads' contexts in the pruned model, T is the output of the unpruned one, corrected for the errors of
    earlier layers where they are known (`headjax.heads.reconstruct`). The ridge is chosen on held-out halves of the
    examples, and a repair is kept only if it lowers the error there.

        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> found = headjax.reconstruct(model, batches, ["decoder/0/0", "decoder/1/1"])
        >>> len(headjax.all_heads(found.model.config)), found.examples
        (30, 11)

    Args:
        model: Model with all heads.
        batches: Calibration examples; on the walk without labels, and spread over the batch axes of a mesh that is set.
        removed, share: Heads to remove, as for `prune`.
        loss: As for `score_heads`. None takes the walk where the model offers it, else the model's own loss.
        feed_forward: Whether to refit the FFN down-projections, too.
        units: On the walk, share of the units to remove from every feed-forward, below 1, or numbers by (stack, layer):
            those whose removal costs least once the others have been refitted (`headjax.heads.refit.least_needed`).
        converted: On the walk, the model to repair, a conversion of `model` with as many layers and heads.
        skipped: On the walk, layers that the repaired model is computed without, by (stack, layer). They stay in it.
        ridges: Ridges to choose from, see `headjax.heads.refit.refit`.
        compute: How to compute; without a loss of yours.
        progress: Called after every solved map with the number of maps done.

    Raises:
        HeadjaxError: A head does not exist, all heads go, the model's code cannot hold what would be left, a layer has
            no output projection to solve, sums are not finite, or an option needs the walk.
        DataError: There are no batches, fewer than two examples, or no tokens. ConfigError: one misfits the mesh.
    """
    named = removed if share is None else part_of(model, removed, share)
    walks = loss is None and shows_sub_layers(model)
    for name, option in {"units": units, "converted": converted, "skipped": skipped}.items():
        if option and not walks:
            raise HeadjaxError(f"{name}: needs a model that offers the walk (headjax.models.walk), and no loss")
    options: dict[str, Any] = {"converted": converted, "skipped": skipped} if walks else {"loss": loss}
    run, kind = (on_automatic_axes(_reconstructed), BlockReader) if walks else (_reconstructed, SiteReader)
    result = run(kind, model, list(batches), named, feed_forward, units, ridges, progress, compute=compute, **options)
    _warn_of_unknowns(result.layers)
    return result


def _reconstructed(
    kind: type[Any],
    model: nnx.Module,
    batches: Sequence[Any],
    removed: Iterable[HeadId | str],
    feed_forward: bool,
    units: float | Mapping[StackLayer, int],
    ridges: Sequence[float],
    progress: Update | None,
    **options: Any,
) -> Reconstruction:
    if not batches:
        raise DataError("batches: there is no example to calibrate on")
    sites, units_lost = find_sites(model), _units_lost(options.get("converted") or model, units)
    gone = tuple(sorted(with_tied(sites, require_heads(sites, removed))))
    if gone and len(gone) == len(find_heads(sites)):
        raise HeadjaxError("reconstruction: all heads are removed, nothing is left to solve")
    reader = kind(model, batches, **options)
    if kind is SiteReader:
        prune(model, gone)  # what its code cannot hold is refused before anything is computed
    repairs, diverged, removed_units = list[LayerRepair](), False, dict[StackLayer, tuple[int, ...]]()
    for each in reader.maps(feed_forward or any(units_lost.values())):
        kept, count = each.kept(gone), units_lost.get(each.units, 0) if each.units else 0
        if not kept.all():
            each.keep(kept)
        diverged |= each.diverged or not kept.all() or count > 0
        if not diverged or not (kept.any() or each.biased):
            continue
        sums, scale = _checked_sums(each)
        weight = None
        with one_blas_thread():
            if count and each.units:
                weight, moments = each.weight(), centred(sums.gram.sum(axis=0), each.biased)[0]
                kept[least_needed(moments, weight, count)] = False
                each.keep(kept)
                removed_units[each.units] = tuple(np.flatnonzero(~kept).tolist())
            solved = refit(sums, kept, bias=each.biased, scale=scale, ridges=ridges, weight=weight)
        if solved.helps:
            each.add(solved.change)
        repairs.append(
            LayerRepair(each.title, sums.tokens, solved.unknowns, solved.ridge, solved.held_out, solved.helps)
        )
        free_memory()
        if progress is not None:
            progress(len(repairs), {"held_out": solved.held_out})
    result = Reconstruction(reader.repaired(), gone, removed_units, tuple(repairs), reader.count())
    if not hasattr(result.repaired, "with_entry"):
        return result
    entry = {"examples": result.examples, "tokens": result.tokens, "repaired": [r.name for r in repairs if r.kept]}
    return result._replace(repaired=result.repaired.with_entry("reconstruct", **entry))


def _checked_sums(each: OutputMap) -> tuple[RefitSums, np.ndarray]:
    """Return the sums of a map, which are finite and of two examples at least."""
    sums, scale = each.sums()
    if not all(np.isfinite(array).all() for array in sums):
        raise HeadjaxError(f"reconstruction: {each.title}: sums over the calibration tokens are not finite")
    tokens = [float(half[-1, -1]) for half in sums.gram]
    if sum(tokens) == 0.0:
        raise DataError("calibration: the examples hold padding alone")
    if min(tokens) == 0.0:
        raise DataError("calibration: one example is too few, the ridge is chosen on another than it is solved on")
    return sums, scale


def _units_lost(model: Any, units: float | Mapping[StackLayer, int]) -> dict[StackLayer, int]:
    if not units:
        return {}
    stacks = model.config.stacks()
    hidden_of = {(name, i): layer.hidden for name in stacks for i, layer in enumerate(stacks[name].layers)}
    if not isinstance(units, Mapping):
        require(0.0 <= units < 1.0, "units", f"must be at least 0 and below 1, got {units}")
        return {place: units_to_remove(hidden, units) for place, hidden in hidden_of.items()}
    for (stack, layer), count in units.items():
        most = hidden_of.get((stack, layer), 0) - 1
        fits = f"{stack}/{layer} can lose up to {max(most, 0)}, not {count}"
        require(0 <= count <= most, "units", fits)
    return dict(units)


def _warn_of_unknowns(repairs: Sequence[LayerRepair]) -> None:
    few = [repair for repair in repairs if repair.tokens < repair.unknowns]
    if few:
        worst = max(few, key=lambda repair: repair.unknowns)
        warnings.warn(
            f"calibration: {worst.tokens:,} tokens for {worst.unknowns:,} unknowns ({worst.name}); the ridge alone "
            "decides the rest, more examples would help",
            stacklevel=3,
        )
