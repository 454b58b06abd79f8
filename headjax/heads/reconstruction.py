"""Reconstruct a model without some heads: output projections solved anew by least squares, without training."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.agreement import count_examples, counted_tokens
from headjax.heads.head_id import HeadId, all_heads, tied_heads
from headjax.heads.pruning import prune
from headjax.heads.refit import RIDGES, Change, RefitSums, centred, least_needed, refit, without_rows
from headjax.heads.statistics import sum_over
from headjax.heads.surgery import output_params
from headjax.heads.units import prune_units, units_to_remove
from headjax.models.compute import Compute
from headjax.models.config import HEAD_STACKS, Batch, Gates, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.layerwise import (
    FEED_FORWARD,
    Place,
    Stream,
    SubLayerSeen,
    layer_output,
    place_of,
    slots,
    stack_end,
    stack_input,
)
from headjax.models.model import Model
from headjax.models.stack import Stack


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
        repaired: Model with repaired maps and with all heads: the removed ones are to be pruned, or gated off. Removed
            units have rows of 0 in W_2.
        removed: Removed heads.
        units: Removed units of every feed-forward, by stack and layer.
        layers: repairs, in the order of computation.
        examples: number of calibration examples.
        tokens: number of their tokens, padding left out; of the side that has more.
    """

    repaired: Model
    removed: tuple[HeadId, ...]
    units: Mapping[tuple[str, int], tuple[int, ...]]
    layers: tuple[LayerRepair, ...]
    examples: int
    tokens: int

    @property
    def model(self) -> Model:
        """Pruned model with repaired maps, made anew by every call."""
        return prune_units(prune(self.repaired, self.removed), self.units)


def reconstruct(
    model: Model,
    batches: Sequence[Batch],
    removed: Iterable[HeadId | str],
    *,
    feed_forward: bool = False,
    units: float = 0.0,
    ridges: Sequence[float] = RIDGES,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Reconstruction:
    """Solve the output projections of a model anew so that it computes without these heads as it did with them.

    Going through the layers in order, W_O and b_O of the kept heads minimise over the calibration tokens

        || C W + b - T ||^2 + ridge || W - W_O ||^2,   T = f' + (a / b') (x' - x)

    C are the kept heads' contexts in the pruned model, whose earlier layers are already repaired, f' the attention
    output of the whole model, x' and x the residual streams of the whole and of the pruned model. The stream becomes
    a x + b' f, with a = b' = 1 in most models. This target mends the errors of earlier layers, too (K-prune, arXiv
    2308.03449, does so in every sub-layer). Maps without a bias get none. The ridge is chosen on held-out halves of
    the examples, and a repair is kept only if it lowers the error there.

    Layers that share their parameters (ALBERT) are solved once, from the sums over all of them, without x' - x.

    Args:
        model: Model with all heads.
        batches: Calibration examples; labels are not needed. Each batch is read with one forward of every layer.
        removed: Heads to remove, as for `prune`.
        feed_forward: Whether to solve the second map of every feed-forward, too; it is where units are removed.
        units: Share of the units to remove from every feed-forward, at least 0 and below 1: those whose removal costs
            least once the others have been solved anew, in the pruned model (`headjax.heads.refit.least_needed`).
            Every layer loses the same number, so that families with one inner size can hold the result.
        ridges: Ridges to choose from, see `headjax.heads.refit.refit`.
        compute: How to compute.
        progress: Called after every solved map with the number of maps done.

    Raises:
        HeadjaxError: A head does not exist, a head stack loses all heads, a formulation has no output projection, or
            sums are not finite.
        DataError: There are no batches, fewer than two examples, or no tokens.
    """
    require(0.0 <= units < 1.0, "units", f"must be at least 0 and below 1, got {units}")
    gone = {HeadId.parse(head) if isinstance(head, str) else head for head in removed}
    gone = {tied for head in gone for tied in tied_heads(model.config, head)}
    gates = head_gates.without(model.config, gone)
    for name in model.config.attentions():
        if gone and set(all_heads(model.config, [name])) <= gone:
            raise HeadjaxError(f"reconstruction: all heads of the {name} are removed, nothing is left to solve")
    if not batches:
        raise DataError("batches: there is no example to calibrate on")
    walk = _Walk(model, [device_batch(model.config, batch) for batch in batches], gates, compute, units)
    repairs: list[LayerRepair] = []
    for name in model.config.stacks():
        for repair in walk.through(name, gone, feed_forward or units > 0.0, ridges):
            repairs.append(repair)
            if progress is not None:
                progress(len(repairs), {"held_out": repair.held_out})
    _warn_of_unknowns(repairs)
    params = dict(model.params)
    for name, stack in model.config.stacks().items():
        params[name] = stack.restack(walk.student[name], model.params[name])
    tokens = max((repair.tokens for repair in repairs), default=0)
    examples = sum(int(count) for count in walk.examples)
    entry = history.entry(
        "reconstruct", examples=examples, tokens=tokens, repaired=[repair.name for repair in repairs if repair.kept]
    )
    repaired = model.replace(params=params, history=(*model.history, entry))
    return Reconstruction(repaired, tuple(sorted(gone)), walk.units, tuple(repairs), examples, tokens)


def _warn_of_unknowns(repairs: Sequence[LayerRepair]) -> None:
    few = [repair for repair in repairs if repair.tokens < repair.unknowns]
    if few:
        worst = max(few, key=lambda repair: repair.unknowns)
        warnings.warn(
            f"calibration: {worst.tokens:,} tokens for {worst.unknowns:,} unknowns ({worst.name}); the ridge alone "
            "decides the rest, more examples would help",
            stacklevel=3,
        )


class _Streams(NamedTuple):
    """Hidden states of one batch in both models."""

    teacher: Stream
    student: Stream


class _Walk:
    """A walk through both models, layer by layer, with the calibration batches' hidden states at hand.

    Attributes:
        teacher, student: parameters of every layer of the whole and of the repaired model, by stack.
        examples: number of examples with tokens, of every batch.
        units: removed units of every feed-forward that has been passed.
    """

    def __init__(
        self, model: Model, batches: list[dict[str, jax.Array]], gates: Gates, compute: Compute, share: float
    ) -> None:
        self.config, self.params, self.batches = model.config, model.params, batches
        self.gates, self.whole = dict(gates), head_gates.ones(model.config)
        self.compute = compute
        self.teacher = {name: stack.unstack(model.params[name]) for name, stack in model.config.stacks().items()}
        self.student = {name: list(layers) for name, layers in self.teacher.items()}
        self.examples = [count_examples(batch) for batch in batches]
        self.units: dict[tuple[str, int], tuple[int, ...]] = {}
        self._share = share
        self._memory: list[tuple[jax.Array, jax.Array]] | None = None
        self._apart = False

    def through(
        self, name: str, gone: set[HeadId], feed_forward: bool, ridges: Sequence[float]
    ) -> Iterable[LayerRepair]:
        """Yield the repairs of a stack's layers, and leave its output for the next stack."""
        stack = self.config.stacks()[name]
        streams = [self._enter(name, number) for number in range(len(self.batches))]
        for block in _blocks(stack):
            for slot in slots(stack.layers[block[0]]):
                if slot == FEED_FORWARD:
                    kept = np.full(stack.layers[block[0]].feed_forward.hidden, feed_forward)
                    self._apart |= self._share > 0.0
                else:
                    kept = self._kept(name, slot, block[0], gone)
                    self._apart |= not kept.all()
                bias = _names(slot)[1] in output_params(self.student[name][block[0]][slot])
                solvable = kept.any() or (bias and slot != FEED_FORWARD)
                if solvable and self._apart:
                    yield self._repair(name, block, slot, kept, streams, ridges)
            for layer in block:
                streams = [self._advance(name, layer, number, pair) for number, pair in enumerate(streams)]
        self._memory = [self._end(name, pair) for pair in streams]

    def _kept(self, name: str, slot: str, layer: int, gone: set[HeadId]) -> np.ndarray:
        """Return which features of an attention layer remain, `[heads * value_dim]`."""
        attention = getattr(self.config.stacks()[name].layers[layer], slot)
        stack = _head_stack(name, slot)
        heads = np.array([HeadId(stack, layer, head) not in gone for head in attention.ids], bool)
        return np.repeat(heads, attention.output_matrices(self.teacher[name][layer][slot]).shape[1])

    def _enter(self, name: str, number: int) -> _Streams:
        batch = self.batches[number]
        memory: Any = (None, None) if self._memory is None else self._memory[number]
        enter = functools.partial(_enter, self.config, self.params, batch, name, self.compute)
        teacher = enter(memory[0])
        return _Streams(teacher, teacher if memory[0] is memory[1] else enter(memory[1]))

    def _advance(self, name: str, layer: int, number: int, pair: _Streams) -> _Streams:
        place, batch = place_of(self.config, name, layer), self.batches[number]
        run = functools.partial(_advance, self.config, self.params, batch, place, self.compute, layer)
        teacher = run(self.teacher[name][layer], pair.teacher, self.whole)
        if not self._apart:
            return _Streams(teacher, teacher)
        return _Streams(teacher, run(self.student[name][layer], pair.student, self.gates))

    def _end(self, name: str, pair: _Streams) -> tuple[jax.Array, jax.Array]:
        teacher = _end(self.config, self.params, name, self.compute, pair.teacher)
        return teacher, _end(self.config, self.params, name, self.compute, pair.student) if self._apart else teacher

    def _repair(
        self,
        name: str,
        block: Sequence[int],
        slot: str,
        kept: np.ndarray,
        streams: list[_Streams],
        ridges: Sequence[float],
    ) -> LayerRepair:
        """Solve one map, put it into the student, and say how well it did."""
        title = f"{name}/{block[0]}/{slot}" if slot == FEED_FORWARD else f"{_head_stack(name, slot)}/{block[0]}"
        holder = output_params(self.student[name][block[0]][slot])
        matrix, bias = _names(slot)
        if len(kept) and matrix not in holder:
            kind = type(getattr(self.config.stacks()[name].layers[block[0]], slot)).__name__
            raise HeadjaxError(f"reconstruction: {title}: {kind} has no output projection to solve")
        sums, scale = self._collect(name, block, slot, streams)
        if not all(np.isfinite(array).all() for array in sums):
            raise HeadjaxError(f"reconstruction: {title}: sums over the calibration tokens are not finite")
        tokens = [float(half[-1, -1]) for half in sums.gram]
        if sum(tokens) == 0.0:
            raise DataError("calibration: the examples hold padding alone")
        if min(tokens) == 0.0:
            raise DataError("calibration: one example is too few, the ridge is chosen on another than it is solved on")
        if slot == FEED_FORWARD and self._share:
            sums, kept = self._without_units(name, block, sums)
        found = refit(sums, kept, bias=bias in holder, scale=scale, ridges=ridges)
        if found.helps:
            changed = _changed(self.student[name][block[0]], slot, matrix, bias, found.change)
            for layer in block:
                self.student[name][layer] = changed
        return LayerRepair(title, sums.tokens, found.unknowns, found.ridge, found.held_out, found.helps)

    def _without_units(self, name: str, block: Sequence[int], sums: RefitSums) -> tuple[RefitSums, np.ndarray]:
        """Remove units of a feed-forward from the student; return the sums without them, and which units are left."""
        params = self.student[name][block[0]]
        weight = np.asarray(params[FEED_FORWARD]["down"], np.float64)
        count = units_to_remove(len(weight), self._share)
        units = least_needed(centred(sums, "down_bias" in params[FEED_FORWARD]), weight, count)
        kept = np.ones(len(weight), bool)
        kept[units] = False
        self.units[name, block[0]] = tuple(sorted(int(unit) for unit in units))
        down = jnp.asarray(params[FEED_FORWARD]["down"]).at[jnp.asarray(units)].set(0.0)
        for layer in block:
            self.student[name][layer] = params | {FEED_FORWARD: params[FEED_FORWARD] | {"down": down}}
        return without_rows(sums, weight, units), kept

    def _collect(
        self, name: str, block: Sequence[int], slot: str, streams: list[_Streams]
    ) -> tuple[RefitSums, np.ndarray]:
        """Return the sums over all batches, and the factor of the branch."""
        total: Any = None
        for layer in block:
            place = place_of(self.config, name, layer)
            weights = (self.teacher[name][layer], self.student[name][layer])
            parts = (
                _sums(
                    self.config, self.params, batch, place, slot, self.compute, layer, weights, pair,
                    (self.whole, self.gates), number % 2, float(len(block) == 1),
                )
                for number, (batch, pair) in enumerate(zip(self.batches, streams, strict=True))
            )  # fmt: skip
            sums, scale = sum_over(parts)
            total = sums if total is None else jax.tree.map(np.add, total, sums)
            if layer != block[-1]:
                streams = [self._advance(name, layer, number, pair) for number, pair in enumerate(streams)]
        return RefitSums(*total), scale / len(self.batches)


def _blocks(stack: Stack) -> list[tuple[int, ...]]:
    """Return the layers of a stack, those that share their parameters together."""
    tied = [tuple(stack.tied_layers(layer)) for layer in range(len(stack.layers))]
    return [block for layer, block in enumerate(tied) if block[0] == layer]


def _head_stack(stack: str, slot: str) -> str:
    return next(name for name, place in HEAD_STACKS.items() if place == (stack, slot))


def _names(slot: str) -> tuple[str, str]:
    """Return the names of a sub-layer's last map and of its bias among the parameters."""
    return ("down", "down_bias") if slot == FEED_FORWARD else ("output", "output_bias")


def _changed(params: Params, slot: str, matrix: str, bias: str, change: Change) -> Params:
    """Return a layer's parameters with another map in a slot."""

    def added(holder: Params) -> Params:
        new = dict(holder)
        for name, array in ((matrix, change.weight), (bias, change.bias)):
            if name in holder:
                new[name] = (np.asarray(holder[name], np.float64) + array.reshape(holder[name].shape)).astype(
                    holder[name].dtype
                )
        return {name: jnp.asarray(array) for name, array in new.items()}

    own = params[slot]
    return params | {slot: own | {"inner": added(own["inner"])} if "inner" in own else added(own)}


@functools.partial(jax.jit, static_argnames=("config", "name", "compute"))
def _enter(config: ModelConfig, params: Params, batch: Any, name: str, compute: Compute, memory: Any) -> Stream:
    return stack_input(config, params, batch, name, memory, compute)


@functools.partial(jax.jit, static_argnames=("config", "name", "compute"))
def _end(config: ModelConfig, params: Params, name: str, compute: Compute, stream: Stream) -> jax.Array:
    return stack_end(config, params, name, stream, compute)


@functools.partial(jax.jit, static_argnames=("config", "place", "compute"))
def _advance(
    config: ModelConfig,
    params: Params,
    batch: Any,
    place: Place,
    compute: Compute,
    layer: Any,
    weights: Params,
    stream: Stream,
    gates: Gates,
) -> Stream:
    options = Options(gates=gates, compute=compute)
    return layer_output(config, params, batch, place, layer, weights, stream, options)[0]


@functools.partial(jax.jit, static_argnames=("config", "place", "slot", "compute"))
def _sums(
    config: ModelConfig,
    params: Params,
    batch: Any,
    place: Place,
    slot: str,
    compute: Compute,
    layer: Any,
    weights: tuple[Params, Params],
    streams: _Streams,
    gates: tuple[Gates, Gates],
    shift: Any,
    mended: Any,
) -> tuple[RefitSums, jax.Array]:
    """Return the sums of products of one batch, and the factor of the branch `[width]`.

    Examples of even number are the first half; `shift` exchanges the halves. `mended` is 1 if the errors of earlier
    layers belong to the target, else 0.
    """
    run = functools.partial(layer_output, config, params, batch, place)
    teacher, student = (
        cast(SubLayerSeen, run(layer, own, stream, Options(gates=at, compute=compute), slot)[1])
        for own, stream, at in zip(weights, streams, gates, strict=True)
    )
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    behind = (teacher.stream - student.stream).astype(jnp.float32)
    lacking = (teacher.output - student.output).astype(jnp.float32) + mended * ratio[None, None, :] * behind
    counted = counted_tokens(batch, student.mask, lacking.shape[:2], target=streams.student.memory is not None)
    counted = counted[:, :, None]
    ones = jnp.ones((*lacking.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([student.features.astype(jnp.float32), ones], axis=2), 0.0)
    lacking = jnp.where(counted > 0, lacking, 0.0)

    def of_half(start: int) -> RefitSums:
        x, r = (array[start::2].reshape(-1, array.shape[2]) for array in (features, lacking))
        matmul = functools.partial(jnp.matmul, precision="highest")
        return RefitSums(matmul(x.T, x), matmul(x.T, r), jnp.square(r).sum(axis=0))

    halves = jax.tree.map(lambda *arrays: jnp.roll(jnp.stack(arrays), shift, axis=0), of_half(0), of_half(1))
    return halves, branch
