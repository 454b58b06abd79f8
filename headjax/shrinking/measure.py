"""Measure the damage of every smaller form of every sub-layer: each alone, its map to the stream refitted.

One walk through the original model sums products of each sub-layer's features. From these sums alone follow the order
in which heads and units go, and the refitted maps of all their numbers. Converted layers are computed on what enters
the original ones. The error of a form's output then has its price by `headjax.heads.sensitivity`. So the layers
behind are computed for no form, and one program serves all layers of one structure. Whole layers alone are left out of
the model itself (`headjax.shrinking.skipping`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import input_sums, moments_of
from headjax.conversion.collaborative import ToCollaborative
from headjax.conversion.decomposition import Solver
from headjax.conversion.model import convert_attention, describe
from headjax.core.errors import HeadjaxError
from headjax.core.kind import Kind, own_copy
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Update
from headjax.core.serialize import from_data, to_data
from headjax.heads.reconstruction_order import held_back, layer_removals
from headjax.heads.refit import Change, RefitSums, centred, least_needed, refit, without_rows
from headjax.heads.sensitivity import Seen, Sensitivity, in_parts, products
from headjax.heads.sums import BlockWalk, LayerReading, feature_sums, spread, sum_over_batches, tokens_of
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, SubLayerSeen
from headjax.nn.module import AttentionModule
from headjax.nn.state import Compute, State
from headjax.shrinking.grid import NONE, Grid, Level, head_groups, target_of
from headjax.shrinking.places import Place, places_of
from headjax.shrinking.skipping import Maps, making_up, skipped_damages
from headjax.storage.kept import Kept

CHOOSING = 0.3
"""Share of the features of a sub-layer that is left where the ridge of its removals is chosen."""

LAYERS = "layers"
"""Name of the damages of whole layers among the measurements."""

QUICK = Solver(sweeps=20)
"""Decomposition of a form that is measured; most of the error is gone after so many sweeps."""


class Form(NamedTuple):
    """A smaller form of a sub-layer.

    Attributes:
        level: its level.
        damage: its effect on the model's output; of a layer that goes, an equal share in each of its sub-layers.
        attention: formulation of an attention, with the heads that are left; None for a feed-forward, and for no layer.
        to: its conversion.
    """

    level: Level
    damage: float
    attention: Kind | None = None
    to: str = ""


Measured = Mapping[str, Sequence[Form]]
"""Forms by place."""


def count_forms(model: Model, grid: Grid) -> int:
    """Return the greatest number of forms that are measured."""
    places = places_of(model)
    conversions = sum(len(grid.conversions(place.at.head_stack)) for place in places if place.attention is not None)
    return conversions + sum(len(place.removals(grid)) + _can_go(model, grid, place) for place in places)


def _can_go(model: Model, grid: Grid, place: Place) -> bool:
    """Return whether the layer of a sub-layer may go: one of a stack stays."""
    return grid.layers and len(model.config.stacks()[place.at.stack].layers) > 1


def measure(
    model: Model,
    batches: Sequence[Batch],
    grid: Grid,
    *,
    examples: int,
    labels: bool = False,
    kept: Kept | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Measured:
    """Return the forms of every sub-layer with their damages, measured on other examples than maps are solved on."""
    model, batches = spread(model, batches)
    eval_batches, fit_batches = held_back(batches, examples)
    kept, places = kept or Kept(), places_of(model)
    if missing(model, grid, kept):
        eval_batches = in_parts(model, eval_batches)
        sensitivity = Sensitivity(model, compute, labels=labels)
        pulled = [[(state, behind) for _, state, behind, _ in sensitivity.back(batch)] for batch in eval_batches]
        skips = LAYERS not in kept.found and any(_can_go(model, grid, place) for place in places)
        made_up, last = dict[str, Maps](), None
        for step in BlockWalk(model, fit_batches, compute):
            block, states = step.block, [each.teacher for each in step.states]
            if skips and last is not None and last[0].stack == block.stack:
                made_up[f"{block.stack}/{last[0].place.value}"] = making_up(block, states, last[1], compute)
            last = block, states
            reading = step.read(block.layer.config.slots, input_sums, keep=True)
            own = [place for place in places if place.at.stack == block.stack and place.layer == block.place.value]
            judging = [sensitivity.at(block, *each[-1 - step.number]) for each in pulled]
            for place in own:
                at = _Measuring(place, block, states, reading, [seen[place.at.slot] for seen in judging], grid, compute)
                with one_blas_thread():
                    kept(place.name, functools.partial(at.forms, sensitivity))
                if progress is not None:
                    progress(sum(len(kept.found.get(one.name, ())) for one in places), {})
        if skips:
            kept(
                LAYERS, functools.partial(skipped_damages, model, eval_batches, made_up, labels=labels, compute=compute)
            )
    forms = {place.name: [_read(place, found) for found in kept.found[place.name]] for place in places}
    for place in places:
        if _can_go(model, grid, place):
            parts = [one for one in places if one.at._replace(slot=place.at.slot) == place.at]
            damage = kept.found[LAYERS][f"{place.at.stack}/{place.layer}"]
            forms[place.name].append(Form(NONE, damage / len(parts)))
    return forms


def missing(model: Model, grid: Grid, kept: Kept) -> bool:
    """Return whether a sub-layer, or a layer that may go, has not been measured."""
    places = places_of(model)
    names = {place.name for place in places} | {LAYERS for place in places if _can_go(model, grid, place)}
    return not names <= kept.found.keys()


def _read(place: Place, found: Mapping[str, Any]) -> Form:
    """Return a form from JSON data."""
    attention = None if place.attention is None else from_data(Kind, found["attention"])
    return Form(Level(*found["level"]), found["damage"], attention, found["to"])


class _Measuring:
    """A sub-layer whose forms are measured."""

    def __init__(
        self,
        place: Place,
        block: LayerBlock,
        states: Sequence[State],
        reading: LayerReading,
        judged: Sequence[Seen],
        grid: Grid,
        compute: Compute,
    ) -> None:
        self._place, self._block, self._judged = place, block, judged
        self._states, self._reading, slot = states, reading, place.at.slot
        self._moments = moments_of(reading.probed[slot]) if slot in reading.probed else None
        self._grid, self._compute = grid, compute
        self._module = getattr(block.layer, place.at.slot)
        weight, self._bias = output_map(self._module)
        if weight is None and place.size:
            raise HeadjaxError(f"{place.name}: its formulation has no output projection to solve")
        own = np.asarray(fetch(weight[...]) if place.size else np.zeros((0, 1)), np.float64)
        self._weight = own.reshape(-1, own.shape[-1])

    def forms(self, sensitivity: Sensitivity) -> list[dict[str, Any]]:
        """Return all forms as JSON data."""
        if not self._place.size:
            return []
        place, told = self._place, list[dict[str, Any]]()

        def tell(level: Level, damage: float, attention: Kind | None, to: str = "") -> None:
            told.append({"level": list(level), "damage": damage, "attention": to_data(attention), "to": to})

        removals = place.removals(self._grid)
        order, changes = self._removed(removals)
        if changes:
            placed = _stacked(changes)
            damages = sensitivity.damages([products(placed, seen) for seen in self._judged], place.name)
            for level, damage in zip(removals, damages.tolist(), strict=True):
                tell(level, damage, place.attention and self._original.left(place.left(order, level)))
        for level in self._grid.conversions(place.at.head_stack) if place.attention is not None else ():
            made = self._converted(level, place.left(order, level))
            if made is not None:
                (damage,) = sensitivity.damages(self._errors(made[1]), f"{place.name} {level}").tolist()
                tell(level, damage, made[1].kind, made[0])
        return told

    @property
    def _original(self) -> AttentionModule:
        """The attention with its heads' original numbers."""
        module: AttentionModule = self._module.like(self._place.attention, self._module.params)
        return module

    def _removed(self, levels: Sequence[Level]) -> tuple[list[int], list[Change]]:
        """Return the order in which heads go, and the change of the map at every level."""
        place, weight = self._place, self._weight
        sums = self._reading.sums[place.at.slot]
        if not np.isfinite(sums.gram).all():
            raise HeadjaxError(f"{place.name}: sums over the calibration tokens are not finite")
        biased = self._bias is not None
        moments, _ = centred(sums.gram.sum(axis=0), biased)
        order: list[int] = []
        if place.attention is None:
            units = least_needed(moments, weight, place.units - min(map(place.count, levels), default=place.units))
            gone = [units[: place.units - place.count(level)] for level in levels]
        else:
            heads = place.attention.num_heads
            output = weight.reshape(heads, -1, weight.shape[-1])
            groups = layer_removals(moments, output, head_groups(place.attention)).order
            order = [position for group in groups for position in group]
            size = len(weight) // heads
            left = [np.setdiff1d(np.arange(heads), place.left(order, level)) for level in levels]
            gone = [(lost[:, None] * size + np.arange(size)[None]).ravel() for lost in left]
        if not levels:
            return order, []
        ridge = self._ridge(sums, min(gone, key=lambda rows: abs(len(rows) / len(weight) - 1.0 + CHOOSING)), biased)
        penalty = max(ridge * float(np.trace(moments)) / len(moments), 1e-30)
        mean = sums.gram[:, -1, :-1].sum(axis=0) / max(sums.tokens, 1.0) * biased
        return order, [_refitted(moments, weight, rows, penalty, mean) for rows in gone]

    def _ridge(self, sums: RefitSums, gone: np.ndarray, biased: bool) -> float:
        """Return the ridge with the least error on held-out examples where these features are gone."""
        left = np.append(np.setdiff1d(np.arange(len(self._weight)), gone), len(self._weight))
        if len(left) == 1:
            return 1.0
        lost = without_rows(sums, self._weight, gone)
        part = RefitSums(lost.gram[:, left[:, None], left], lost.cross[:, left], lost.square)
        kept = np.ones(len(left) - 1, bool)
        return refit(part, kept, bias=biased, scale=np.ones(self._weight.shape[1])).ridge / 2.0

    def _converted(self, level: Level, heads: Sequence[int]) -> tuple[str, AttentionModule] | None:
        """Return the conversion of a level and the converted layer; None where the layer cannot have it."""
        module = self._original
        module = module if len(heads) == module.num_heads else module.keep_heads(heads)
        target = target_of(level, module.kind, module.width)
        if target is None:
            return None
        quick = dataclasses.replace(target, solver=QUICK) if isinstance(target, ToCollaborative) else target
        return describe(target), convert_attention(module, quick, moments=self._moments)

    def _errors(self, module: AttentionModule) -> list[Any]:
        """Return what the errors of a converted layer cost on the judged batches, its map refitted."""
        slot, states = self._place.at.slot, self._states
        changed = own_copy(self._block.layer)
        setattr(changed, slot, module.like(module.kind.structure(), module.params))
        columns = jnp.asarray(module.ids, jnp.int32) if slot == "attention" and states[0].bias is not None else None
        block = self._block.holding(changed, columns)
        parts = (
            (_residual_sums(_seen(block, slot, self._compute, state), outputs[slot], number % 2), tokens_of(state))
            for number, (state, outputs) in enumerate(zip(states, self._reading.outputs, strict=True))
        )
        sums = RefitSums(*sum_over_batches(parts))
        features, scale = np.ones(sums.gram.shape[-1] - 1, bool), np.ones(sums.square.shape[-1])
        solved = refit(sums, features, bias=output_map(module).bias is not None, scale=scale)
        change = solved.change if solved.helps else Change(*(np.zeros(part.shape) for part in solved.change))
        placed = _stacked([change])
        return [products(placed, judged, _seen(block, slot, self._compute, judged.state)) for judged in self._judged]


def _refitted(moments: np.ndarray, weight: np.ndarray, gone: np.ndarray, penalty: float, mean: np.ndarray) -> Change:
    """Return the change of a map that loses features, the others refitted towards the same output.

    W'_K = W_K + (H_KK + penalty)^-1 H_KS W_S,   W'_S = 0
    """
    from scipy import linalg

    left = np.setdiff1d(np.arange(len(weight)), gone)
    change = np.zeros(weight.shape)
    change[gone] = -weight[gone]
    if len(left):
        matrix = moments[np.ix_(left, left)]
        matrix.flat[:: len(left) + 1] += penalty
        factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        change[left] = linalg.cho_solve(factor, moments[np.ix_(left, gone)] @ weight[gone], check_finite=False)
    return Change(change, -mean @ change)


def _stacked(changes: Sequence[Change]) -> Change:
    """Return changes with an axis in front, on the device."""
    stacked: Change = jax.tree.map(lambda *each: jnp.stack([jnp.asarray(one, jnp.float32) for one in each]), *changes)
    return stacked


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _seen(block: LayerBlock, slot: str, compute: Compute, state: State) -> SubLayerSeen:
    """Return a sub-layer, without what follows it."""
    return block.sub_layers(state, compute)[1][slot]


@jax.jit
def _residual_sums(layer: SubLayerSeen, output: jax.Array, shift: Any) -> RefitSums:
    """Return the sums of products of a converted sub-layer, and of what its output lacks of the original one's."""
    return feature_sums(layer, (output - layer.output).astype(jnp.float32), shift)
