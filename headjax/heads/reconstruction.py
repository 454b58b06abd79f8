"""Repair the output projections of a model block by block: what the residual stream lacks is made up for."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.kind import own_copy
from headjax.core.programs import trim
from headjax.core.progress import Update
from headjax.core.short import brief
from headjax.core.tensors import Params
from headjax.heads.agreement import count_examples
from headjax.heads.head_id import HeadId, all_heads, named_heads, tied_heads
from headjax.heads.layer_sums import SubLayer, TwoModels, spread
from headjax.heads.pruning import prune
from headjax.heads.refit import RIDGES, Change, RefitSums, centred, least_needed, refit, without_rows
from headjax.heads.surgery import output_map
from headjax.heads.units import Place, prune_units, units_to_remove
from headjax.mesh.distributed import fetch
from headjax.models.config import HEAD_STACKS, Batch, ModelConfig
from headjax.models.model import Model, check_parts
from headjax.models.walk import FEED_FORWARD
from headjax.nn.compute import Compute
from headjax.nn.layer import TransformerLayer


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
    units: Mapping[Place, tuple[int, ...]]
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

    def told(self) -> Any:
        """Return the repaired model, the repair in its history where it has one; warn of too few tokens."""
        _warn_of_unknowns(self.layers)
        if not hasattr(self.repaired, "with_entry"):
            return self.repaired
        names = [repair.name for repair in self.layers if repair.kept]
        return self.repaired.with_entry("reconstruct", examples=self.examples, tokens=self.tokens, repaired=names)


def by_walk(
    model: Model,
    batches: Sequence[Batch],
    removed: Iterable[HeadId | str],
    *,
    feed_forward: bool = False,
    units: float | Mapping[Place, int] = 0.0,
    converted: Model | None = None,
    skipped: Collection[Place] = (),
    ridges: Sequence[float] = RIDGES,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Reconstruction:
    """Repair the maps of a model whose blocks show their sub-layers, see `headjax.heads.reconstruct.reconstruct`.

    Each batch is read with one forward of every layer, in the original model and in the pruned one. Units go whose
    removal costs least once the others have been refitted, in the pruned model, so that families with one inner size
    can hold the result of a share. Layers that are skipped stay in the model as they are; the others are repaired for
    its computation without them.
    """
    for each in (model,) if converted is None else (model, converted):
        check_parts(each)
    gone = _removed(model.config, removed)
    own = model if converted is None else converted
    lost = _units_lost(own.config, units)
    placed, examples = spread(model, batches)
    feed_forward |= any(lost.values())
    slots = None if feed_forward else {slot for _, slot in HEAD_STACKS.values()}
    models = TwoModels(placed, examples, compute, converted, slots, skipped)
    walk = RepairWalk(models, gone, ridges, feed_forward, lost)
    for number, repair in enumerate(walk.through(), start=1):
        trim()
        if progress is not None:
            progress(number, {"held_out": repair.held_out})
    params = returned(own, placed.params if converted is None else own.params, models)
    count = sum(count_examples(own.config, fetch(batch)) for batch in examples)
    return Reconstruction(own.replace(params=params), tuple(sorted(gone)), walk.units, tuple(walk.repairs), count)


def _units_lost(config: ModelConfig, units: float | Mapping[Place, int]) -> dict[Place, int]:
    """Return how many units every feed-forward loses."""
    there = {(name, i): layer.hidden for name, stack in config.stacks().items()
             for i, layer in enumerate(stack.layers)}  # fmt: skip
    if not isinstance(units, Mapping):
        require(0.0 <= units < 1.0, "units", f"must be at least 0 and below 1, got {units}")
        return {place: units_to_remove(hidden, units) for place, hidden in there.items()}
    for (stack, layer), count in units.items():
        most = there.get((stack, layer), 0) - 1
        fits = f"{stack}/{layer} can lose up to {max(most, 0)}, not {count}"
        require(0 <= count <= most, "units", fits)
    return dict(units)


def _removed(config: ModelConfig, removed: Iterable[HeadId | str]) -> set[HeadId]:
    """Return the heads that go, those that share their parameters together."""
    gone = {tied for head in named_heads(removed) for tied in tied_heads(config, head)}
    if gone and gone >= set(all_heads(config)):
        raise HeadjaxError("reconstruction: all heads are removed, nothing is left to solve")
    return gone


def returned(model: Model, placed: Params, models: TwoModels) -> Params:
    """Return the student's parameters, each where the model's own lie; arrays without a change are the model's."""
    params = model.params
    for name, stack in model.config.stacks().items():
        for group in stack.groups:
            changed = [models.changed.get((name, layer), {}) for layer in range(group.start, group.stop)]
            for path in dict.fromkeys(path for own in changed for path in own):
                keys = (name, group.name, *path.split("/"))
                trees: tuple[Any, Any] = (placed, model.params)
                before, own = (functools.reduce(operator.getitem, keys, tree) for tree in trees)
                solved = [each.get(path, before if group.shared else before[i]) for i, each in enumerate(changed)]
                array = solved[0] if group.shared else jnp.stack(solved)
                with jax.set_mesh(None):  # where one is set, new arrays would lie on all of its devices
                    params = _holding(params, keys, _beside(array, own))
    return params


def _holding(params: Params, keys: Sequence[str], array: jax.Array) -> Params:
    """Return parameters with another array in a place."""
    first, *rest = keys
    return params | {first: _holding(params[first], rest, array) if rest else array}


def _beside(array: jax.Array, own: jax.Array) -> jax.Array:
    """Return an array on the devices of another one."""
    if isinstance(own, jax.Array) and len(own.sharding.device_set) > 1:
        return jax.device_put(array, own.sharding)
    return array if len(array.sharding.device_set) == 1 else jnp.asarray(fetch(array))


def _warn_of_unknowns(repairs: Sequence[LayerRepair]) -> None:
    """Warn of maps with more unknowns than calibration tokens."""
    few = [repair for repair in repairs if repair.tokens < repair.unknowns]
    if few:
        worst = max(few, key=lambda repair: repair.unknowns)
        warnings.warn(
            f"calibration: {worst.tokens:,} tokens for {worst.unknowns:,} unknowns ({worst.name}); the ridge alone "
            "decides the rest, more examples would help",
            stacklevel=4,
        )


class RepairWalk:
    """The way through both models, solving maps layer by layer.

    Attributes:
        units: Removed units of every feed-forward that has been passed.
        repairs: Repairs so far.
    """

    def __init__(
        self,
        models: TwoModels,
        gone: set[HeadId],
        ridges: Sequence[float],
        feed_forward: bool,
        lost: Mapping[Place, int],
    ) -> None:
        self.models = models
        self.units: dict[tuple[str, int], tuple[int, ...]] = {}
        self.repairs: list[LayerRepair] = []
        self._gone, self._ridges, self._feed_forward, self._lost = gone, ridges, feed_forward, lost

    def through(self) -> Iterator[LayerRepair]:
        """Yield the repairs of all stacks."""
        models = self.models
        for at in models.walk():
            module = getattr(models.layer, at.slot)
            if at.slot == FEED_FORWARD:
                kept = np.full(module.hidden, self._feed_forward)
                models.apart |= self._lost.get((at.stack, at.block[0]), 0) > 0
            else:
                names = [HeadId(at.head_stack, at.block[0], head) for head in module.ids]
                heads = np.array([name not in self._gone for name in names], bool)
                kept = np.repeat(heads, module.output_matrices().shape[1])  # [heads * value_dim]
                if not kept.all():
                    models.apart = True
                    models.put(silenced(models.layer, at.slot, ~kept))
            biased = output_map(module).bias is not None
            if models.apart and (kept.any() or (biased and at.slot != FEED_FORWARD)):
                self.repairs.append(self._repair(at, kept))
                yield self.repairs[-1]

    def _repair(self, at: SubLayer, kept: np.ndarray) -> LayerRepair:
        """Solve one map, put it into the student, and say how well it did."""
        name, block, slot = at
        title = f"{name}/{block[0]}/{slot}" if slot == FEED_FORWARD else f"{at.head_stack}/{block[0]}"
        module = getattr(self.models.layer, slot)
        weight, bias = output_map(module)
        if len(kept) and weight is None:
            raise HeadjaxError(f"reconstruction: {title}: {type(module).__name__} has no output projection to solve")
        sums, scale = self.models.sums(slot)
        if not all(np.isfinite(array).all() for array in sums):
            raise HeadjaxError(f"reconstruction: {title}: sums over the calibration tokens are not finite")
        tokens = [float(half[-1, -1]) for half in sums.gram]
        if sum(tokens) == 0.0:
            raise DataError("calibration: the examples hold padding alone")
        if min(tokens) == 0.0:
            raise DataError("calibration: one example is too few, the ridge is chosen on another than it is solved on")
        if slot == FEED_FORWARD and self._lost.get((name, block[0])):
            sums, kept = self._without_units(name, block, sums)
        found = refit(sums, kept, bias=bias is not None, scale=scale, ridges=self._ridges)
        if found.helps:
            self.models.put(with_change(self.models.layer, slot, found.change))
        return LayerRepair(title, sums.tokens, found.unknowns, found.ridge, found.held_out, found.helps)

    def _without_units(self, name: str, block: Sequence[int], sums: RefitSums) -> tuple[RefitSums, np.ndarray]:
        """Remove units of a feed-forward from the student; return the sums without them, and which units are left."""
        layer = self.models.layer
        weight = np.asarray(fetch(layer.feed_forward.down[...]), np.float64)
        moments, _ = centred(sums.gram.sum(axis=0), layer.feed_forward.down_bias is not None)
        units = least_needed(moments, weight, self._lost[name, block[0]])
        kept = np.ones(len(weight), bool)
        kept[units] = False
        self.units[name, block[0]] = tuple(sorted(int(unit) for unit in units))
        self.models.put(silenced(layer, FEED_FORWARD, ~kept))
        return without_rows(sums, weight, units), kept


def silenced(layer: TransformerLayer, slot: str, features: np.ndarray) -> TransformerLayer:
    """Return a layer with rows of 0 in the output map of a slot, for these features `[n]` bool."""
    weight = output_map(getattr(layer, slot)).weight
    if weight is None or not features.any():
        return layer
    own = np.asarray(fetch(weight.get_raw_value()), np.float64)
    rows = own.reshape(-1, own.shape[-1]) * features[:, None]
    return with_change(layer, slot, Change(-rows, np.zeros(own.shape[-1])))


def with_change(layer: TransformerLayer, slot: str, change: Change) -> TransformerLayer:
    """Return a layer with another output map in a slot."""
    changed: TransformerLayer = own_copy(layer)
    for variable, array in zip(output_map(getattr(changed, slot)), change, strict=True):
        if variable is not None:
            own = variable.get_raw_value()
            total = np.asarray(fetch(own), np.float64) + array.reshape(own.shape)
            variable.set_raw_value(_beside(jnp.asarray(total, own.dtype), own))
    return changed
