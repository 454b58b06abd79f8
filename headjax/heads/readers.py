"""How a model is read for least squares: block by block where it offers the walk, else by whole passes through sites.

`reader_for` asks for that capability once; reconstruction and orders by reconstruction see one interface.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads.agreement import count_examples
from headjax.heads.head_id import HeadId
from headjax.heads.loss_checks import checked, compare_examples
from headjax.heads.maps import BlockMap, OutputMap, add_to, bias_of, matrix_of, on_devices_of, second_maps
from headjax.heads.program import Loss, Program, compiled, examples_in, mean_loss, prepare
from headjax.heads.refit import Change, RefitSums
from headjax.heads.sensitivity import prices
from headjax.heads.site import AttentionSite, ones
from headjax.heads.sums import BlockWalk, spread, sum_over_batches, sums_by_half
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import on_automatic_axes, spread_by_compiler
from headjax.models.config import HEAD_STACKS
from headjax.models.model import Model, check_parts
from headjax.models.walk import FEED_FORWARD, shows_sub_layers
from headjax.nn.state import Compute

Places = tuple[tuple[str, int], ...]
"""Head stack and number of an attention layer, or of all that share its parameters."""

Moments = Iterator[tuple[OutputMap, np.ndarray]]
"""Maps of attentions with the sums over the tokens of x x^T, x the contexts and a 1."""

Tell = Callable[[int], None]
"""Called with the number of batches done."""


def reader_for(model: nnx.Module, loss: Loss | None) -> type[BlockReader] | type[SiteReader]:
    """Return how a model is read: on the walk where its blocks show their sub-layers and no loss is given."""
    return BlockReader if loss is None and shows_sub_layers(model) else SiteReader


class BlockReader:
    """A model on the walk, and a copy that is repaired for the errors of earlier layers, too.

    Effects are changes of the model's own output, without labels.

    Attributes:
        batches: The batches, on the model's devices.
        compared: Greatest number of examples on which effects are measured.
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
        self._changed: Mapping[tuple[str, int], Mapping[str, jax.Array]] = {}

    def maps(self, feed_forward: bool) -> Iterator[BlockMap]:
        """Yield the output maps of the copy in the order of computation, each to be changed before the next."""
        slots = {slot for _, slot in HEAD_STACKS.values()} | ({FEED_FORWARD} if feed_forward else set())
        options: dict[str, Any] = {"slots": slots, "skipped": self._skipped}
        walk = BlockWalk(self._model, self.batches, self._compute, self._converted, **options)
        self._changed = walk.changed
        for step in walk:
            yield from (BlockMap(step, slot) for slot in step.layer.config.slots if slot in slots)

    def repaired(self) -> Model:
        """Return the copy, changed so far."""
        placed = self._model if self._converted is None else self._converted
        return self._whole.replace(params=_params_with(self._whole, placed.params, self._changed))

    def count(self) -> int:
        """Return the number of examples."""
        return sum(count_examples(self._model.config, fetch(batch)) for batch in self.batches)

    def moments(self, batches: Sequence[Any], tell: Tell) -> Moments:
        """Yield the moments of one layer after another."""
        layers, done = sum(len(stack.layers) for stack in self._model.config.stacks().values()), 0
        for step in BlockWalk(self._model, batches, self._compute):
            slots = [slot for slot in step.layer.config.slots if slot != FEED_FORWARD]
            found, done = step.read(slots).sums, done + len(step.tied)
            tell(len(batches) * done // layers)
            yield from ((BlockMap(step, slot), found[slot].gram.sum(axis=0)) for slot in slots)

    def effects(self, changes: Mapping[Places, Change], batches: Sequence[Any]) -> Iterator[np.ndarray]:
        """Yield the effect of each change of each layer's map, `[changes]`."""
        spots = {
            places: tuple((HEAD_STACKS[stack][0], number, HEAD_STACKS[stack][1]) for stack, number in places)
            for places in changes
        }
        by_spots = prices(self._model, batches, {spots[places]: own for places, own in changes.items()}, self._compute)
        yield from (by_spots[each] for each in spots.values())


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
    first, *rest = keys
    return params | {first: _holding(params[first], rest, array) if rest else array}


class SiteReader:
    """Any Flax model, read by whole passes, and a copy that is repaired map by map.

    Effects are rises of the loss, which differ more from example to example.

    Attributes:
        batches, compared: As for `BlockReader`.
    """

    by_blocks = False
    compared = 256

    def __init__(
        self,
        model: nnx.Module,
        batches: Sequence[Any],
        *,
        loss: Loss | None,
        compute: Compute = Compute(),
        strict: bool | None = None,
    ) -> None:
        """Say which attention no site holds, unless `strict` is None."""
        self.model, self.copy = model, nnx.clone(model, graph=True)
        self.program, self.state = prepare(model, loss, None if compute == Compute() else compute)
        if strict is None:
            self.batches = list(map(self.program.read, batches))
            any(compare_examples(self.program, self.state, batch) for batch in self.batches)
        else:
            self.batches = list(checked(self.program, self.state, batches, strict))

    @staticmethod
    def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, which spreads arrays itself."""
        return function

    def maps(self, feed_forward: bool) -> Iterator[SiteMap]:
        """Yield the maps of the copy as `BlockReader.maps` does."""
        if feed_forward:
            sites = (*self.program.sites, *second_maps(self.model, self.program.sites))
            self.program = dataclasses.replace(self.program, sites=sites)
        by_path = {each.path: each for each in self.program.sites}
        for path, leads in self.program.calls(self.state, self.batches[0]).leads.items():
            if len(leads) > 1:
                raise HeadjaxError(f"reconstruction: {path}: is called several times; it cannot be solved")
            yield from self._maps(by_path[path])

    def _maps(self, *sites: AttentionSite) -> Iterator[SiteMap]:
        for site in sites:
            yield from (SiteMap(self, site, number) for number in range(1 if site.tied else len(site.places)))

    def repaired(self) -> nnx.Module:
        """Return the copy, changed so far."""
        return self.copy

    def count(self) -> int:
        """Return the number of examples."""
        return sum(map(examples_in, self.batches))

    def moments(self, batches: Sequence[Any], tell: Tell) -> Moments:
        """Yield the moments of all layers, after one pass."""
        found = sum_over_batches(self._moments(batches, tell))
        for each in self._maps(*self.program.sites):
            own = found[each.site.path]
            yield each, own.sum(axis=0) if each.site.tied else own[each.number]

    def _moments(self, batches: Sequence[Any], tell: Tell) -> Iterator[tuple[dict[str, jax.Array], int]]:
        """Yield the sums of x x^T of every batch, `[layers, n, n]` by site, and its tokens."""
        for number, batch in enumerate(batches):
            found, tokens = {}, 0
            by_site = contexts_of(self.program, self.state, batch)
            for site in self.program.sites:
                contexts, layers = by_site[site.path], len(site.places)
                products = functools.partial(_second_moments, layers=layers)
                found[site.path] = spread_by_compiler(products, PartitionSpec(), contexts)
                tokens = max(tokens, int(np.prod(contexts.shape[:-1])) // layers)
            yield found, tokens
            tell(number + 1)

    def effects(self, changes: Mapping[Places, Change], batches: Sequence[Any]) -> Iterator[np.ndarray]:
        """Yield the effect of each change of each layer's map, `[changes]`."""
        whole, maps = self._loss(self.model, batches), {each.places: each for each in self._maps(*self.program.sites)}
        for places, change in changes.items():
            losses = []
            for weight, bias in zip(*change, strict=True):
                copy = nnx.clone(self.model, graph=True)
                add_to(copy, maps[places].site, maps[places].number, Change(weight, bias))
                losses.append(self._loss(copy, batches))
            yield np.array(losses) - whole

    def _loss(self, model: nnx.Module, batches: Sequence[Any]) -> float:
        return mean_loss(self.program, nnx.split(model, graph=True)[1], ones(self.program.sites), batches)


class SiteMap(OutputMap):
    """The output map of a layer of a site."""

    def __init__(self, reader: SiteReader, site: AttentionSite, number: int) -> None:
        self.site, self.number, self._reader = site, number, reader
        self.places = site.places if site.tied else site.places[number : number + 1]
        self.heads = site.head_ids()[number * site.heads : (number + 1) * site.heads]
        self.title = str(HeadId(*self.places[0], 0)).rpartition("/")[0]
        self.features, self.groups = site.heads * site.head_dim, site.groups.tolist()
        self.biased = bias_of(reader.model, site) is not None
        self._rows = np.ones(self.features, bool)

    def keep(self, features: np.ndarray) -> None:
        super().keep(features)
        self._rows = features

    def weight(self) -> np.ndarray:
        return np.asarray(fetch(matrix_of(self._reader.copy, self.site, self.number)), np.float64)

    def add(self, change: Change) -> None:
        add_to(self._reader.copy, self.site, self.number, change)

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        matrix = matrix_of(self._reader.model, self.site, self.number)
        return sum_over_batches(self._sums(matrix)), np.ones(matrix.shape[1])

    def _sums(self, matrix: jax.Array) -> Iterator[tuple[RefitSums, int]]:
        """Yield the sums of every batch and its tokens."""
        reader, now = self._reader, nnx.split(self._reader.copy, graph=True)[1]
        for number, batch in enumerate(reader.batches):
            both = (contexts_of(reader.program, state, batch)[self.site.path] for state in (reader.state, now))
            whole, own = map(self._of_layer, both)
            given = whole, own, matrix, jnp.asarray(self._rows), jnp.asarray(number % 2)
            yield spread_by_compiler(_context_sums, PartitionSpec(), *given), int(np.prod(whole.shape[:-1]))

    def _of_layer(self, contexts: jax.Array) -> jax.Array:
        """Return a layer's contexts; those of layers that share W_O lie along the first axis of positions."""
        if self.site.tied:
            return jnp.moveaxis(contexts, 0, 1)
        return contexts if self.site.layers is None else contexts[self.number]


@jax.jit
def _context_sums(whole: jax.Array, own: jax.Array, matrix: jax.Array, kept: jax.Array, shift: jax.Array) -> RefitSums:
    """Return the sums of products of one batch, for contexts of the model and of the copy, and W_O of the model."""
    target, present = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (whole, own))
    counted = target[..., -1:]
    features = jnp.concatenate([present[..., :-1], jnp.ones_like(counted)], axis=-1) * counted
    lost = target[..., :-1] - present[..., :-1] * kept[None, None].astype(target.dtype)
    residual = lost @ matrix.astype(jnp.float32) * counted
    return sums_by_half(features, residual, shift)


@functools.partial(jax.jit, static_argnames="layers")
def _second_moments(contexts: jax.Array, layers: int) -> jax.Array:
    """Return the sums of x x^T, `[layers, n, n]`, with x the contexts and a 1."""
    x = (contexts * contexts[..., -1:]).reshape(layers, -1, contexts.shape[-1])
    return jnp.einsum("ltn,ltm->lnm", x, x, precision="highest")


@compiled()
def contexts_of(program: Program, state: Any, batch: Any) -> dict[str, jax.Array]:
    """Return the contexts of every site, `[layers?, examples, positions..., features + 1]`.

    The last entry is 1 where they can change the loss, else 0.
    """
    leads = program.calls(state, batch).leads
    reads = {
        site.path: jnp.zeros((*site.shape[:-1], *leads[site.path][0], site.heads * site.head_dim + 1))
        for site in program.sites
    }

    def loss(reads: dict[str, jax.Array]) -> jax.Array:
        return program.value(state, ones(program.sites), batch, reads=reads, read=_read).total.sum()

    contexts: dict[str, jax.Array] = jax.grad(loss)(reads)
    return contexts


def _read(contexts: jax.Array, matrix: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.concatenate([contexts.reshape(*counted.shape, -1), counted[..., None]], axis=-1)
