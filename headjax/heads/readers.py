"""How a model's sums are collected: block by block where it offers the walk, else by whole passes through its sites.

`reader_for` asks for that capability once; reconstruction and orders by reconstruction see one interface.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads.agreement import count_examples
from headjax.heads.discovery import REGISTER, report_missed
from headjax.heads.head_id import HeadId
from headjax.heads.maps import (
    BlockMap,
    OutputMap,
    SiteLayer,
    SiteMap,
    SiteModels,
    contexts_of,
    layers_of,
    on_devices_of,
    second_maps,
)
from headjax.heads.missed import missed
from headjax.heads.program import Loss, examples_in, mean_loss, prepare
from headjax.heads.pruning import prune
from headjax.heads.refit import Change
from headjax.heads.sensitivity import prices
from headjax.heads.site import ones
from headjax.heads.sums import BlockWalk, spread, sum_over_batches
from headjax.mesh.distributed import fetch
from headjax.mesh.explicit import on_automatic_axes, spread_by_compiler
from headjax.models.config import HEAD_STACKS, head_stack_at
from headjax.models.model import Model, check_parts
from headjax.models.walk import FEED_FORWARD, shows_sub_layers
from headjax.nn.compute import Compute

Place = tuple[str, int]
"""Head stack and number of an attention layer."""

Tell = Callable[[int], None]
"""Called with the number of batches done."""


class Reader(abc.ABC):
    """A model, and calibration batches on its devices.

    Attributes:
        batches: The batches.
        by_blocks: Whether it is the model's walk that is read.
    """

    by_blocks: ClassVar[bool] = False
    batches: list[Any]

    @staticmethod
    def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of a model and batches as it runs on a mesh with explicit axes."""
        return function

    @abc.abstractmethod
    def maps(self, gone: Collection[HeadId], feed_forward: bool) -> Iterator[OutputMap]:
        """Yield the output maps of a copy in the order of computation, which the caller changes as they are passed.

        Nothing is yielded where the model's code cannot go without these heads.
        """

    @abc.abstractmethod
    def repaired(self) -> Any:
        """Return the copy, changed so far."""

    @abc.abstractmethod
    def moments(self, batches: Sequence[Any], tell: Tell) -> Iterator[tuple[Place, np.ndarray]]:
        """Yield sums over the tokens of x x^T, x the contexts of a layer and a 1, by its first place."""

    @abc.abstractmethod
    def effects(
        self, layers: Sequence[SiteLayer], changes: Sequence[Change], batches: Sequence[Any]
    ) -> Iterator[np.ndarray]:
        """Yield the effect of each change of each layer's map, `[changes]`."""

    @abc.abstractmethod
    def compared(self) -> int:
        """Return on how many examples effects are measured at most."""

    @abc.abstractmethod
    def count(self) -> int:
        """Return the number of examples."""

    def require_recognised(self, strict: bool) -> None:
        """Warn of attention that no site holds; with `strict` it is an error."""


class BlockReader(Reader):
    """Reads a model on the walk: effects are changes of its own output, without labels."""

    by_blocks = True
    on_mesh = staticmethod(on_automatic_axes)

    def __init__(
        self,
        model: Model,
        batches: Sequence[Any],
        *,
        compute: Compute = Compute(),
        converted: Model | None = None,
        skipped: Collection[Place] = (),
    ) -> None:
        """Repair a copy of the model, or `converted`, which goes without the layers `skipped`."""
        self._whole = model if converted is None else converted
        for each in dict.fromkeys((model, self._whole)):
            check_parts(each)
        self._model, self.batches = spread(model, batches)
        self._converted, self._skipped, self._compute = converted, skipped, compute
        self._walk: BlockWalk | None = None

    def maps(self, gone: Collection[HeadId], feed_forward: bool) -> Iterator[BlockMap]:
        slots = None if feed_forward else {slot for _, slot in HEAD_STACKS.values()}
        options: dict[str, Any] = {"slots": slots, "skipped": self._skipped}
        self._walk = BlockWalk(self._model, self.batches, self._compute, self._converted, **options)
        for step in self._walk:
            for slot in step.layer.config.slots:
                if slots is None or slot in slots:
                    yield BlockMap(step, slot)

    def repaired(self) -> Model:
        changed = {} if self._walk is None else self._walk.changed
        placed = self._model if self._converted is None else self._converted
        return self._whole.replace(params=_params_with(self._whole, placed.params, changed))

    def moments(self, batches: Sequence[Any], tell: Tell) -> Iterator[tuple[Place, np.ndarray]]:
        layers = sum(len(stack.layers) for stack in self._model.config.stacks().values())
        done = 0
        for step in BlockWalk(self._model, batches, self._compute):
            slots = [slot for slot in step.layer.config.slots if slot != FEED_FORWARD]
            found = step.read(slots).sums
            done += len(step.tied)
            tell(len(batches) * done // layers)
            yield from (((head_stack_at(step.block.stack, s), step.tied[0]), found[s].gram.sum(axis=0)) for s in slots)

    def effects(
        self, layers: Sequence[SiteLayer], changes: Sequence[Change], batches: Sequence[Any]
    ) -> Iterator[np.ndarray]:
        places = [[(*HEAD_STACKS[stack], number) for stack, number in layer.places] for layer in layers]
        spots = [tuple((stack, number, slot) for stack, slot, number in own) for own in places]
        found = prices(self._model, batches, dict(zip(spots, changes, strict=True)), self._compute)
        yield from (found[each] for each in spots)

    def compared(self) -> int:
        return min(128, round(0.4 * sum(map(examples_in, self.batches))))

    def count(self) -> int:
        return sum(count_examples(self._model.config, fetch(batch)) for batch in self.batches)


def _params_with(model: Model, placed: Params, changed: Mapping[tuple[str, int], Mapping[str, jax.Array]]) -> Params:
    """Return a model's parameters with changed arrays of layers, each where the model's own lie."""
    params = model.params
    for name, stack in model.config.stacks().items():
        for group in stack.groups:
            layers = [changed.get((name, layer), {}) for layer in range(group.start, group.stop)]
            for path in dict.fromkeys(path for arrays in layers for path in arrays):
                keys = (name, group.name, *path.split("/"))
                trees: tuple[Any, Any] = (placed, model.params)
                before, own = (functools.reduce(operator.getitem, keys, tree) for tree in trees)
                solved = [each.get(path, before if group.shared else before[i]) for i, each in enumerate(layers)]
                array = solved[0] if group.shared else jnp.stack(solved)
                with jax.set_mesh(None):  # where one is set, new arrays would lie on all of its devices
                    params = _holding(params, keys, on_devices_of(own, array))
    return params


def _holding(params: Params, keys: Sequence[str], array: jax.Array) -> Params:
    """Return parameters with another array in a place."""
    first, *rest = keys
    return params | {first: _holding(params[first], rest, array) if rest else array}


class SiteReader(Reader):
    """Reads any Flax model by whole passes: effects are rises of the loss, which differ more between examples."""

    def __init__(
        self, model: nnx.Module, batches: Sequence[Any], *, loss: Loss | None, compute: Compute = Compute()
    ) -> None:
        self._model = model
        self._program, self._state = prepare(model, loss, None if compute == Compute() else compute)
        self.batches = [self._program.read(batch) for batch in batches]
        self._copy = nnx.clone(model, graph=True)

    def maps(self, gone: Collection[HeadId], feed_forward: bool) -> Iterator[SiteMap]:
        prune(self._model, gone)
        sites, program = self._program.sites, self._program
        if feed_forward:
            sites = (*sites, *second_maps(self._model, sites))
            program = dataclasses.replace(program, sites=sites)
        models = SiteModels(program, self._state, self._model, self._copy, self.batches)
        by_path = {site.path: site for site in sites}
        for path, leads in program.calls(self._state, self.batches[0]).leads.items():
            if len(leads) > 1:
                raise HeadjaxError(f"reconstruction: {path}: is called several times; it cannot be solved")
            yield from (SiteMap(models, layer) for layer in layers_of((by_path[path],)))

    def repaired(self) -> nnx.Module:
        return self._copy

    def moments(self, batches: Sequence[Any], tell: Tell) -> Iterator[tuple[Place, np.ndarray]]:
        found = sum_over_batches(self._products(batches, tell))
        for layer in layers_of(self._program.sites):
            own = found[layer.site.path]
            yield layer.places[0], own.sum(axis=0) if layer.site.tied else own[layer.number]

    def _products(self, batches: Sequence[Any], tell: Tell) -> Iterator[tuple[dict[str, jax.Array], int]]:
        """Yield the sums of x x^T of every batch, `[layers, n, n]` by site, and its tokens."""
        sites = sorted(self._program.sites, key=lambda site: site.path)
        products = functools.partial(_second_moments, layers=tuple(len(site.places) for site in sites))
        for number, batch in enumerate(batches):
            contexts = contexts_of(self._program, self._state, batch)
            tokens = max(int(np.prod(contexts[site.path].shape[:-1])) // len(site.places) for site in sites)
            yield spread_by_compiler(products, PartitionSpec(), contexts), tokens
            tell(number + 1)

    def effects(
        self, layers: Sequence[SiteLayer], changes: Sequence[Change], batches: Sequence[Any]
    ) -> Iterator[np.ndarray]:
        whole = self._loss(self._model, batches)
        for layer, change in zip(layers, changes, strict=True):
            losses = []
            for weight, bias in zip(*change, strict=True):
                copy = nnx.clone(self._model, graph=True)
                layer.add_to(copy, Change(weight, bias))
                losses.append(self._loss(copy, batches))
            yield np.array(losses) - whole

    def _loss(self, model: nnx.Module, batches: Sequence[Any]) -> float:
        state = nnx.split(model, graph=True)[1]
        return mean_loss(self._program, state, ones(self._program.sites), batches)

    def compared(self) -> int:
        return 256

    def count(self) -> int:
        return sum(map(examples_in, self.batches))

    def require_recognised(self, strict: bool) -> None:
        report_missed(missed(self._program, self._state, self.batches[0]), strict, REGISTER)


@functools.partial(jax.jit, static_argnames="layers")
def _second_moments(contexts: dict[str, jax.Array], layers: tuple[int, ...]) -> dict[str, jax.Array]:
    """Return by site, in the order of paths, the sums of x x^T, `[layers, n, n]`, with x the contexts and a 1."""
    found = {}
    for count, (path, own) in zip(layers, sorted(contexts.items()), strict=True):
        x = (own * own[..., -1:]).reshape(count, -1, own.shape[-1])
        found[path] = jnp.einsum("ltn,ltm->lnm", x, x, precision="highest")
    return found


def reader_for(model: nnx.Module, loss: Loss | None) -> type[BlockReader] | type[SiteReader]:
    """Return how a model is read: on the walk where its blocks show their sub-layers and no loss is given."""
    return BlockReader if loss is None and shows_sub_layers(model) else SiteReader
