"""Measure the damage of every smaller size of every sub-layer: each alone, its map to the stream refitted.

One walk through the original model sums products of each sub-layer's features. From these sums alone follow the order
in which heads and units go, and the refitted maps of all their numbers. Converted layers are computed on what enters
the original ones. The error of a candidate's output then has its price by `headjax.heads.agreement`. So the layers
behind are computed for no candidate, and one program serves all layers of one structure. Whole layers alone are left
out of the model itself (`headjax.shrinking.skipping`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import Moments, input_sums, moments_of
from headjax.conversion.collaborative import Solver, ToCollaborative
from headjax.conversion.model import convert_attention, describe
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Checked, Count, Size
from headjax.core.kind import Kind, own_copy
from headjax.core.modules import declared
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Update
from headjax.core.serialize import from_data, to_data
from headjax.core.tensors import flatten, map_tensors
from headjax.heads.agreement import Seen, Sensitivity, in_parts, products
from headjax.heads.batches import held_back
from headjax.heads.head_id import HeadLayer
from headjax.heads.refit import Change, centred, layer_removals, least_needed, nested_refits, refit, rows_of
from headjax.heads.sums import (
    DeviceSums,
    LayerReading,
    LayerStep,
    States,
    feature_sums,
    layer_steps,
    spread,
    sum_over_batches,
    tokens_of,
)
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch, head_stack_at
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, SubLayerSeen
from headjax.nn.block import Compute, State
from headjax.nn.module import AttentionModule
from headjax.shrinking.search_space import (
    NO_LAYER_SIZE,
    SearchSpace,
    SubLayer,
    SubLayerSize,
    head_groups,
    sub_layers_of,
    target_of,
)
from headjax.shrinking.skipping import Compensation, compensation_for, skipped_damages
from headjax.storage.files import Kept

CHOOSING = 0.3
"""Share of the features of a sub-layer that is left where the ridge of its removals is chosen."""

LAYERS = "layers"
"""Name of the damages of whole layers among the measurements."""

MOMENTS = 2**30
"""Most bytes of the moments of attentions' inputs that are kept: 12 layers of width 768 take 85 MB."""

QUICK = Solver(sweeps=20)
"""Decomposition of a candidate; 20 sweeps remove most of the error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureConfig(Checked):
    """How `shrink` measures damages and costs where the model offers the walk.

        >>> headjax.MeasureConfig(space=headjax.SearchSpace(heads=(0.5, 0.0)), examples=32).labels
        False

    Attributes:
        space: the sizes that are measured.
        labels: whether damage is the rise of the loss on the examples' labels, and not the change of the output.
        examples: number of examples that damages are measured on.
        length: tokens of an example whose FLOPs are counted; 0 is the mean of the calibration examples.
        work: folder in which measurements are kept, so that a stopped run continues and another budget takes seconds.
        compute: how to compute.
    """

    space: SearchSpace = SearchSpace()
    labels: bool = False
    examples: Size = 128
    length: Count = 0
    work: str | None = None
    compute: Compute = Compute()


class Candidate(NamedTuple):
    """A sub-layer at a smaller size."""

    size: SubLayerSize
    damage: float  # effect on the model's output; of a layer that goes, an equal share in each of its sub-layers
    attention: Kind | None = None  # formulation with the heads that are left; None for a feed-forward, and for no layer
    to: str = ""  # its conversion


Candidates = Mapping[str, Sequence[Candidate]]
"""Candidates by the name of the sub-layer."""


def count_candidates(model: Model, space: SearchSpace) -> int:
    """Return the greatest number of candidates that are measured."""
    return sum(
        len(each.conversions(space)) + len(each.removals(space)) + _can_go(model, space, each)
        for each in sub_layers_of(model)
    )


def _can_go(model: Model, space: SearchSpace, sub_layer: SubLayer) -> bool:
    """Return whether the layer of a sub-layer may go: one of a stack stays."""
    return space.layers and len(model.config.stacks()[sub_layer.stack].layers) > 1


def missing(model: Model, space: SearchSpace, kept: Kept) -> bool:
    """Return whether a sub-layer, or a layer that may go, has not been measured."""
    sub_layers = sub_layers_of(model)
    names = {each.name for each in sub_layers} | {LAYERS for each in sub_layers if _can_go(model, space, each)}
    return not names <= kept.found.keys()


def measure(
    model: Model,
    batches: Sequence[Batch],
    config: MeasureConfig,
    *,
    kept: Kept | None = None,
    progress: Update | None = None,
) -> Candidates:
    """Return the candidates of every sub-layer, measured on other examples than their maps are solved on."""
    kept, sub_layers = kept or Kept(), sub_layers_of(model)
    if missing(model, config.space, kept):
        _measure_missing(*spread(model, batches), config, kept, progress)
    candidates: dict[str, list[Candidate]] = {}
    for each in sub_layers:
        candidates[each.name] = [
            Candidate(
                SubLayerSize(*data["level"]),
                data["damage"],
                None if each.attention is None else from_data(Kind, data["attention"]),
                data["to"],
            )
            for data in kept.found[each.name]
        ]
        if _can_go(model, config.space, each):
            damage = kept.found[LAYERS][f"{each.stack}/{each.layer}"]
            of_layer = sum((other.stack, other.layer) == (each.stack, each.layer) for other in sub_layers)
            candidates[each.name].append(Candidate(NO_LAYER_SIZE, damage / of_layer))
    return candidates


def _measure_missing(
    model: Model, batches: Sequence[Batch], config: MeasureConfig, kept: Kept, progress: Update | None
) -> None:
    """Measure what `kept` does not have, in one walk through the model."""
    eval_batches, fit_batches = held_back(batches, config.examples)
    eval_batches, sub_layers = in_parts(model, eval_batches), sub_layers_of(model)
    sensitivity = Sensitivity(model, config.compute, labels=config.labels)
    pulled = [[(state, behind) for _, state, behind, _ in sensitivity.back(batch)] for batch in eval_batches]
    skips = LAYERS not in kept.found and any(_can_go(model, config.space, each) for each in sub_layers)
    attentions = sum(each.attention is not None for each in sub_layers)
    keeps_moments = 4 * 3 * model.config.width**2 * attentions <= MOMENTS
    compensations: dict[str, Compensation] = {}
    before: tuple[LayerBlock, list[State]] | None = None

    def tell(more: int = 0) -> None:
        """Show the number of forms that are kept, and of `more` that are measured."""
        if progress is not None:
            progress(sum(len(kept.found.get(each.name, ())) for each in sub_layers) + more, {})

    for step in layer_steps(model, fit_batches, config.compute):
        block, states = step.block, [each.teacher for each in step.states]
        if skips and before is not None and before[0].stack == block.stack:
            compensations[f"{block.stack}/{before[0].place.value}"] = compensation_for(
                block, states, before[1], config.compute
            )
        before = block, states
        reading = step.read(block.layer.config.slots, input_sums, keep=True)
        here = [each[-1 - step.number] for each in pulled]
        evaluated = [sensitivity.at(block, *each) for each in here]
        if keeps_moments:
            held_back_step = LayerStep([(block, block)], [States(state, state) for state, _ in here], config.compute)
            of_others = held_back_step.read(probe=input_sums).probed
            for slot, sums in reading.probed.items():
                both = jax.tree.map(lambda *parts: np.asarray(sum(parts), np.float32), sums, of_others[slot])
                kept.keep(f"{head_stack_at(block.stack, slot)}/{block.place.value}", both)
        measuring = [
            _Measuring(each, block, states, reading, [seen[each.slot] for seen in evaluated], config)
            for each in sub_layers
            if (each.stack, each.layer) == (block.stack, block.place.value) and each.name not in kept.found
        ]
        # The host solves maps of the feed-forward while the device converts the attention; JAX is called here alone.
        with one_blas_thread(), ThreadPoolExecutor(1) as pool:
            solved = [pool.submit(at.removed) for at in measuring]
            for at, removed in zip(measuring, solved, strict=True):
                kept(at.sub_layer.name, functools.partial(at.measured, sensitivity, removed, tell))
    if skips:
        options: dict[str, Any] = {"labels": config.labels, "compute": config.compute}
        kept(LAYERS, functools.partial(skipped_damages, model, eval_batches, compensations, **options))
    tell(sum(_can_go(model, config.space, each) for each in sub_layers))


def kept_moments(kept: Kept, places: Collection[HeadLayer]) -> dict[HeadLayer, Moments] | None:
    """Return the moments of the inputs of attentions over all examples; None where they have not been kept."""
    found = dict[HeadLayer, Moments]()
    for place in places:
        sums = kept.arrays("{}/{}".format(*place))
        if sums is None:
            return None
        found[place] = moments_of({name: np.asarray(array, np.float64) for name, array in sums.items()})
    return found


@dataclasses.dataclass
class _Measuring:
    """A sub-layer whose candidates are measured."""

    sub_layer: SubLayer
    block: LayerBlock
    states: Sequence[State]
    reading: LayerReading
    evaluated: Sequence[Seen]
    config: MeasureConfig

    def __post_init__(self) -> None:
        slot, probed = self.sub_layer.slot, self.reading.probed
        self._moments = moments_of(probed[slot]) if slot in probed else None
        self._module = getattr(self.block.layer, slot)
        weight, bias = output_map(self._module)
        if weight is None and self.sub_layer.parts:
            raise HeadjaxError(f"{self.sub_layer.name}: its formulation has no output projection to solve")
        array = np.asarray(fetch(weight[...]) if self.sub_layer.parts else np.zeros((0, 1)), np.float64)
        self._weight, self._biased = array.reshape(-1, array.shape[-1]), bias is not None

    def measured(
        self, sensitivity: Sensitivity, removed: Future[tuple[list[int], list[Change]]], tell: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """Return all candidates as JSON data, and tell their number; `removed` is what that method returns."""
        sub_layer, data = self.sub_layer, list[dict[str, Any]]()

        def add(size: SubLayerSize, damage: float, attention: Kind | None, to: str = "") -> None:
            data.append({"level": list(size), "damage": damage, "attention": to_data(attention), "to": to})
            tell(len(data))

        (order, changes), removals = removed.result(), sub_layer.removals(self.config.space)
        if changes:
            stacked = _stacked(changes)
            damages = sensitivity.damages([products(stacked, seen) for seen in self.evaluated], sub_layer.name)
            for size, damage in zip(removals, damages.tolist(), strict=True):
                left = sub_layer.heads_left(order, size)
                add(size, damage, sub_layer.attention and self._original.config_after_pruning(left))
        largest: dict[str, AttentionModule] = {}  # by the name of the conversion
        for size in sub_layer.conversions(self.config.space) if sub_layer.parts else ():
            heads, module = sub_layer.heads_left(order, size), self._original
            module = module if len(heads) == module.num_heads else module.keep_heads(heads)
            target = target_of(size, module.kind, module.width)
            if target is None:  # the layer cannot have it
                continue
            quick = dataclasses.replace(target, solver=QUICK) if isinstance(target, ToCollaborative) else target
            converted = convert_attention(module, quick, moments=self._moments)
            errors = self._errors(converted, largest.setdefault(size.to, converted))
            (damage,) = sensitivity.damages(errors, f"{sub_layer.name} {size}").tolist()
            add(size, damage, converted.kind, describe(target))
        return data

    @property
    def _original(self) -> AttentionModule:
        """The attention with its heads' original numbers."""
        module: AttentionModule = self._module.like(self.sub_layer.attention, self._module.params)
        return module

    def removed(self) -> tuple[list[int], list[Change]]:
        """Return the order in which heads go, and the change of the map at every size of the removals."""
        sub_layer, weight, biased = self.sub_layer, self._weight, self._biased
        if not sub_layer.parts:
            return [], []
        sizes, sums = sub_layer.removals(self.config.space), self.reading.sums[sub_layer.slot]
        if not np.isfinite(sums.gram).all():
            raise HeadjaxError(f"{sub_layer.name}: sums over the calibration tokens are not finite")
        moments, _ = centred(sums.gram.sum(axis=0), biased)
        order: list[int] = []
        if sub_layer.attention is None:
            left = [sub_layer.count(size) for size in sizes]
            removed = least_needed(moments, weight, sub_layer.units - min(left, default=sub_layer.units))
        else:
            heads = sub_layer.attention.num_heads
            output = weight.reshape(heads, -1, weight.shape[-1])
            groups = layer_removals(moments, output, head_groups(sub_layer.attention)).order
            order = [position for group in groups for position in group]
            removed = rows_of(order, output.shape[1])
            left = [len(sub_layer.heads_left(order, size)) * output.shape[1] for size in sizes]
        if not sizes:
            return order, []
        features = np.concatenate([np.setdiff1d(np.arange(len(weight)), removed), removed[::-1]])  # the last one first
        # The ridge has the least error on held-out examples where about a share `CHOOSING` of the features is left.
        count = min(left, key=lambda count: abs(count / len(weight) - CHOOSING))
        kept, ridge = np.isin(np.arange(len(weight)), features[:count]), 1.0
        if kept.any():
            ridge = refit(sums, kept, bias=biased, scale=np.ones(weight.shape[1]), weight=weight).ridge / 2.0
        penalty = max(ridge * float(np.trace(moments)) / len(moments), 1e-30)
        mean = sums.gram[:, -1, :-1].sum(axis=0) / max(sums.tokens, 1.0) * biased
        changes = nested_refits(moments, weight, features, left, penalty)
        return order, [Change(change, -mean @ change) for change in changes]

    def _errors(self, converted: AttentionModule, largest: AttentionModule) -> list[Any]:
        """Return what the errors of a converted layer cost on the evaluation batches, its map refitted.

        It is computed with the sizes of the largest one, so that their forms share programs.
        """
        slot, states, module = self.sub_layer.slot, self.states, _widened(converted, largest)
        changed = own_copy(self.block.layer)
        setattr(changed, slot, module.like(module.kind.structure(), module.params))
        biased = slot == "attention" and states[0].bias is not None
        columns = jax.device_put(np.asarray(module.ids, np.int32)) if biased else None
        block = self.block.holding(changed, columns)
        seen = functools.partial(_seen, block, slot, self.config.compute)
        parts = (
            (_residual_sums(seen(state), outputs[slot], number % 2), tokens_of(state))
            for number, (state, outputs) in enumerate(zip(states, self.reading.outputs, strict=True))
        )
        sums = sum_over_batches(parts).whole()
        kept, scale = np.isin(module.ids, converted.ids), np.ones(sums.square.shape[-1])
        kept = np.repeat(kept, (sums.gram.shape[-1] - 1) // max(len(kept), 1))
        solved = refit(sums, kept, bias=output_map(module).bias is not None, scale=scale)
        change = solved.change if solved.helps else Change(*(np.zeros(part.shape) for part in solved.change))
        stacked = _stacked([change])
        return [products(stacked, each, seen(each.state)) for each in self.evaluated]


SIZES = frozenset({"num_heads", "head_ids", "shared_dim", "head_dim", "value_dim", "rank"})
"""Options of converted attentions that zeros can fill up."""


def _widened(module: AttentionModule, larger: AttentionModule) -> AttentionModule:
    """Return an attention of the same function with the sizes of another one, if these are all in which they differ.

    Missing heads and dimensions are zeros; the contexts of such heads are 0.
    """
    kind, other = module.kind, larger.kind
    sizes = {name: other.options[name] for name in SIZES & other.options.keys() & kind.options.keys()}
    if kind.replace(**sizes) != other or not {*module.ids} <= {*larger.ids}:
        return module
    heads, shapes = [larger.ids.index(head) for head in module.ids], flatten(larger.params)

    def fill(path: str, weight: Any) -> Any:
        array = fetch(weight.get_raw_value())
        filled, axes = np.zeros(shapes[path].shape, array.dtype), zip(weight.out_sharding, array.shape, strict=True)
        filled[np.ix_(*(heads if axis == "heads" else range(size) for axis, size in axes))] = array
        return filled

    return larger.like(other, map_tensors(fill, declared(module)))


def _stacked(changes: Sequence[Change]) -> Change:
    stacked: Change = jax.tree.map(lambda *each: np.stack(each).astype(np.float32), *changes)
    return stacked


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _seen(block: LayerBlock, slot: str, compute: Compute, state: State) -> SubLayerSeen:
    return block.sub_layers(state, compute)[1][slot]


@jax.jit
def _residual_sums(layer: SubLayerSeen, output: jax.Array, shift: Any) -> DeviceSums:
    """Return the sums of products of a converted sub-layer, and of the difference of its output and the original's."""
    return feature_sums(layer, (output - layer.output).astype(jnp.float32), shift)
