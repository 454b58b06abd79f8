"""The output maps of a model, W_O and b_O of attentions, W_2 and b_2 of feed-forwards, read and changed on the walk."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.kind import own_copy
from headjax.core.tensors import Params
from headjax.heads.agreement import count_examples, prices
from headjax.heads.head_id import HeadId, HeadLayer
from headjax.heads.program import examples_in
from headjax.heads.refit import Change, RefitSums
from headjax.heads.sums import LayerStep, layer_steps, spread
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.config import HEAD_STACKS, head_stack_at
from headjax.models.model import Model, check_parts
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import Block
from headjax.nn.state import Compute

Places = tuple[HeadLayer, ...]
"""Head stack and number of an attention layer, or of all that share its parameters."""

Tell = Callable[[int], None]
"""Called with the number of batches done."""


class OutputMap:
    """The output map of a sub-layer in a model that is repaired."""

    title: str  # `encoder/3` for the attention layer 3 of a head stack, `encoder/3/feed_forward` for a feed-forward
    places: Places = ()  # none of a feed-forward
    heads: tuple[HeadId, ...] = ()  # whose contexts it reads, of several layers those of the first
    groups: Sequence[int] = ()  # KV head of each of them
    units: tuple[str, int] | None = None  # stack and layer of a feed-forward on the walk, whose units may be removed
    features: int
    biased: bool
    diverged: bool = False  # whether the model is known to compute something else up to here

    def kept(self, removed: Container[HeadId]) -> np.ndarray:
        """Return which features stay without these heads, `[features]` bool."""
        if not self.heads:
            return np.ones(self.features, bool)
        return np.repeat([head not in removed for head in self.heads], self.features // len(self.heads))

    def keep(self, features: np.ndarray) -> None:
        """Set the rows of all features but these, `[features]` bool, to 0."""
        weight = self.weight()
        self.add(Change(-weight * ~features[:, None], np.zeros(weight.shape[1])))

    def weight(self) -> np.ndarray:
        """Return the present weight of the map, `[features, width]`."""
        raise NotImplementedError

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        """Return the sums over all batches, and the factor of the output in the residual stream, `[width]`."""
        raise NotImplementedError

    def add(self, change: Change) -> None:
        """Add a change."""
        raise NotImplementedError


Moments = Iterator[tuple[OutputMap, np.ndarray]]
"""Maps of attentions with the sums over the tokens of x x^T, x the contexts and a 1."""


class BlockReader:
    """A model on the walk, and a copy that is repaired for the errors of earlier layers, too.

    Effects are changes of the model's own output, without labels, on at most `compared` examples.
    """

    by_blocks = True
    on_mesh = staticmethod(on_automatic_axes)

    def __init__(
        self,
        model: Model,
        batches: Sequence[Any],
        *,
        compute: Compute = Compute(),
        converted: Model | None = None,
        skipped: Collection[tuple[str, int]] = (),
    ) -> None:
        """Repair a copy of the model, or `converted`, which goes without the layers `skipped`."""
        self._whole = model if converted is None else converted
        for each in (model,) if converted is None else (model, converted):
            check_parts(each)
        self._model, self.batches = spread(model, batches)
        self.compared = min(128, round(0.4 * sum(map(examples_in, self.batches))))
        self._converted, self._skipped, self._compute = converted, skipped, compute
        self._changed: dict[tuple[str, int], Mapping[str, jax.Array]] = {}  # by stack and layer, then by path

    def maps(self, feed_forward: bool) -> Iterator[BlockMap]:
        """Yield the output maps of the copy in the order of computation, each to be changed before the next."""
        slots = {slot for _, slot in HEAD_STACKS.values()} | ({FEED_FORWARD} if feed_forward else set())
        options: dict[str, Any] = {"slots": slots, "skipped": self._skipped}
        for step in layer_steps(self._model, self.batches, self._compute, self._converted, **options):
            self._changed[step.block.stack, step.tied[0]] = step.changed
            yield from (BlockMap(step, slot) for slot in step.layer.config.slots if slot in slots)

    def repaired(self) -> Model:
        """Return the copy with all changes so far, whose arrays lie where the model's own do."""
        placed = self._model if self._converted is None else self._converted
        params = self._whole.params
        for name, stack in self._whole.config.stacks().items():
            for group in stack.groups:
                layers = [self._changed.get((name, layer), {}) for layer in range(group.start, group.stop)]
                for path in dict.fromkeys(path for arrays in layers for path in arrays):
                    keys = (name, group.name, *path.split("/"))
                    trees: tuple[Any, Any] = (placed.params, self._whole.params)
                    before, original = (functools.reduce(operator.getitem, keys, tree) for tree in trees)
                    after = [each.get(path, before if group.shared else before[i]) for i, each in enumerate(layers)]
                    array = after[0] if group.shared else jnp.stack(after)
                    with jax.set_mesh(None):  # where one is set, new arrays would lie on all of its devices
                        params = _holding(params, keys, on_devices_of(original, array))
        return self._whole.replace(params=params)

    def count(self) -> int:
        return sum(count_examples(self._model.config, fetch(batch)) for batch in self.batches)

    def moments(self, batches: Sequence[Any], tell: Tell) -> Moments:
        layers, done = sum(len(stack.layers) for stack in self._model.config.stacks().values()), 0
        for step in layer_steps(self._model, batches, self._compute):
            slots = [slot for slot in step.layer.config.slots if slot != FEED_FORWARD]
            sums, done = step.read(slots).sums, done + len(step.tied)
            tell(len(batches) * done // layers)
            yield from ((BlockMap(step, slot), sums[slot].gram.sum(axis=0)) for slot in slots)

    def effects(
        self, changes: Mapping[Places, Change], batches: Sequence[Any], tell: Callable[[float], None]
    ) -> Iterator[np.ndarray]:
        """Yield the effect of each change of each layer's map, `[changes]`; tell the share of the work that is done."""
        by_spots = {
            tuple((HEAD_STACKS[stack][0], number, HEAD_STACKS[stack][1]) for stack, number in places): change
            for places, change in changes.items()
        }
        yield from prices(self._model, batches, by_spots, self._compute, tell).values()


class BlockMap(OutputMap):
    """The output map of a slot of a layer on the walk."""

    def __init__(self, step: LayerStep, slot: str) -> None:
        stack, number, module = step.block.stack, step.tied[0], getattr(step.layer, slot)
        self._step, self._slot = step, slot
        self.biased, self.diverged = output_map(module).bias is not None, step.diverged
        if slot == FEED_FORWARD:
            self.title, self.units, self.features = f"{stack}/{number}/{slot}", (stack, number), module.hidden
            return
        self.places = tuple((head_stack_at(stack, slot), each) for each in step.tied)
        self.heads, self.groups = tuple(HeadId(*self.places[0], head) for head in module.ids), module.groups
        self.title = f"{self.places[0][0]}/{number}"
        self.features = len(self.heads) * module.output_matrices().shape[1]

    def _variable(self) -> Any:
        module = getattr(self._step.layer, self._slot)
        weight = output_map(module).weight
        if weight is None:
            kind = type(module).__name__
            raise HeadjaxError(f"reconstruction: {self.title}: {kind} has no output projection to solve")
        return weight

    def weight(self) -> np.ndarray:
        matrix = np.asarray(fetch(self._variable().get_raw_value()), np.float64)
        return matrix.reshape(-1, matrix.shape[-1])

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        if self.features:
            self._variable()
        return self._step.sums(self._slot)

    def add(self, change: Change) -> None:
        self._step.replace_layer(with_change(self._step.layer, self._slot, change))


def with_change(layer: Block, slot: str, change: Change) -> Block:
    """Return a layer with another output map in a slot."""
    copy: Block = own_copy(layer)
    for variable, array in zip(output_map(getattr(copy, slot)), change, strict=True):
        if variable is not None:
            array_before = variable.get_raw_value()
            total = np.asarray(fetch(array_before), np.float64) + array.reshape(array_before.shape)
            variable.set_raw_value(on_devices_of(array_before, jnp.asarray(total, array_before.dtype)))
    return copy


def on_devices_of(other: jax.Array, array: jax.Array) -> jax.Array:
    """Return an array on the devices of another one."""
    if isinstance(other, jax.Array) and len(other.sharding.device_set) > 1:
        return jax.device_put(array, other.sharding)
    return array if len(array.sharding.device_set) == 1 else jnp.asarray(fetch(array))


def _holding(params: Params, keys: Sequence[str], array: jax.Array) -> Params:
    first, *inner = keys
    return params | {first: _holding(params[first], inner, array) if inner else array}
