"""The output maps of a model, W_O and b_O of attentions, W_2 and b_2 of feed-forwards, read and changed in a copy.

Where the model offers the walk, `BlockReader` reads them block by block; `SiteReader` reads those of any Flax module by
whole passes.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.heads.agreement import prices
from headjax.heads.batches import examples_in
from headjax.heads.head_id import HeadId, HeadLayer
from headjax.heads.loss_checks import checked, compare_examples
from headjax.heads.program import Loss, Program, compiled, mean_loss, prepare
from headjax.heads.refit import Change, RefitSums
from headjax.heads.site import AttentionSite, at_path, ones, output_matrix, second_maps
from headjax.heads.sums import DeviceSums, LayerStep, layer_steps, spread, sum_over_batches, sums_by_half
from headjax.heads.surgery import on_devices_of, output_map, with_change
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import spread_by_compiler
from headjax.models.config import HEAD_STACKS, declared_model, head_stack_at
from headjax.models.model import Model, check_parts
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import Compute

Places = tuple[HeadLayer, ...]
"""Head stack and number of an attention layer, or of all that share its parameters."""

Tell = Callable[[int], None]
"""Called with the number of batches done."""


class OutputMap(abc.ABC):
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

    @abc.abstractmethod
    def weight(self) -> np.ndarray:
        """Return the present weight of the map, `[features, width]`."""

    @abc.abstractmethod
    def sums(self) -> tuple[RefitSums, np.ndarray]:
        """Return the sums over all batches, and the factor of the output in the residual stream, `[width]`."""

    @abc.abstractmethod
    def add(self, change: Change) -> None:
        """Add a change to the map."""


Moments = Iterator[tuple[OutputMap, np.ndarray]]
"""Maps of attentions with the sums over the tokens of x x^T, x the contexts and a 1."""


class BlockReader:
    """A model on the walk, and a copy that is repaired for the errors of earlier layers, too.

    Effects are changes of the model's own output, without labels, on at most `compared` examples.
    """

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
        placed, repaired = self._model if self._converted is None else self._converted, self._whole.replace()
        for name, stack in repaired.config.stacks().items():
            for group in stack.groups:
                layers = [self._changed.get((name, layer), {}) for layer in range(group.start, group.stop)]
                for path in dict.fromkeys(path for arrays in layers for path in arrays):
                    where = f"{name}.{group.name}.{path.replace('/', '.')}"
                    before, variable = at_path(placed, where).get_raw_value(), at_path(repaired, where)
                    unchanged = group.unstacked({path: before})
                    after = [{path: each.get(path, old[path])} for each, old in zip(layers, unchanged, strict=True)]
                    array = group.restack(after)[path]
                    with jax.set_mesh(None):  # where one is set, new arrays would lie on all of its devices
                        variable.set_raw_value(on_devices_of(variable.get_raw_value(), array))
        return repaired

    def count(self) -> int:
        """Return the number of examples that are no padding."""
        model, count = declared_model(self._model.config), 0
        for batch in map(fetch, self.batches):
            present = batch.get("attention_mask") if "input_ids" in batch else model.valid_tokens(batch)
            count += examples_in(batch) if present is None else int(np.asarray(present).any(axis=1).sum())
        return count

    def moments(self, batches: Sequence[Any], tell: Tell) -> Moments:
        """Yield the maps of the attentions with their second moments over some batches."""
        layers, done = sum(len(stack.layers) for stack in self._model.config.stacks().values()), 0
        for step in layer_steps(self._model, batches, self._compute):
            slots = [slot for slot in step.layer.config.slots if slot != FEED_FORWARD]
            sums, done = step.read(slots).sums, done + len(step.tied)
            yield from ((BlockMap(step, slot), sums[slot].gram.sum(axis=0)) for slot in slots)
            tell(len(batches) * done // layers)  # once the caller has solved the layer

    def effects(
        self, changes: Mapping[Places, Change], batches: Sequence[Any], tell: Callable[[float], None]
    ) -> Iterator[np.ndarray]:
        """Yield the effect of each change of each layer's map, `[changes]`; tell the share of the work that is done."""
        return prices(self._model, batches, changes, self._compute, tell)


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


class SiteReader:
    """Any Flax model, read by whole passes, and a copy that is repaired map by map; effects are rises of the loss."""

    compared = 256  # as for `BlockReader`; losses differ more from example to example

    def __init__(
        self,
        model: nnx.Module,
        batches: Sequence[Any],
        *,
        loss: Loss | None,
        compute: Compute = Compute(),
        strict: bool | None = None,
    ) -> None:
        self.model, self.copy = model, nnx.clone(model, graph=True)
        self.program, self.state = prepare(model, loss, None if compute == Compute() else compute)
        self._unchecked, self._strict = batches, strict

    @functools.cached_property
    def batches(self) -> list[Any]:
        """The batches as arrays, checked; unless `strict` is None, attention that no site holds is named."""
        if self._strict is not None:
            return list(checked(self.program, self.state, self._unchecked, self._strict))
        batches = list(map(self.program.read, self._unchecked))
        any(compare_examples(self.program, self.state, batch) for batch in batches)
        return batches

    def maps(self, feed_forward: bool) -> Iterator[SiteMap]:
        """Yield the maps of the copy as `BlockReader.maps` does."""
        first = self.batches[0]
        if feed_forward:
            sites = (*self.program.sites, *second_maps(self.model, self.program.sites))
            self.program = dataclasses.replace(self.program, sites=sites)
        by_path = {each.path: each for each in self.program.sites}
        for path, leads in self.program.calls(self.state, first).leads.items():
            if len(leads) > 1:
                raise HeadjaxError(f"reconstruction: {path}: is called several times; it cannot be solved")
            yield from self._maps(by_path[path])

    def _maps(self, *sites: AttentionSite) -> Iterator[SiteMap]:
        for site in sites:
            yield from (SiteMap(self, site, number) for number in range(1 if site.tied else len(site.places)))

    def repaired(self) -> nnx.Module:
        return self.copy

    def count(self) -> int:
        return sum(map(examples_in, self.batches))

    def moments(self, batches: Sequence[Any], tell: Tell) -> Moments:
        def batch_moments() -> Iterator[tuple[dict[str, jax.Array], int]]:
            """Yield the sums of x x^T of every batch, `[layers, n, n]` by site, and its tokens."""
            for number, batch in enumerate(batches, start=1):
                moments, tokens = {}, 0
                by_site = contexts_of(self.program, self.state, batch)
                for site in self.program.sites:
                    contexts, layers = by_site[site.path], len(site.places)
                    products = functools.partial(_second_moments, layers=layers)
                    moments[site.path] = spread_by_compiler(products, PartitionSpec(), contexts)
                    tokens = max(tokens, int(np.prod(contexts.shape[:-1])) // layers)
                yield moments, tokens
                tell(number)

        totals = sum_over_batches(batch_moments())
        for each in self._maps(*self.program.sites):
            grams = totals[each.site.path]
            yield each, grams.sum(axis=0) if each.site.tied else grams[each.number]

    def effects(
        self, changes: Mapping[Places, Change], batches: Sequence[Any], tell: Callable[[float], None]
    ) -> Iterator[np.ndarray]:
        """Yield effects as `BlockReader.effects` does."""
        gates = ones(self.program.sites)
        before = mean_loss(self.program, self.state, gates, batches)
        maps = {each.places: each for each in self._maps(*self.program.sites)}
        for number, (places, change) in enumerate(changes.items(), start=1):
            losses = []
            for weight, bias in zip(*change, strict=True):
                copy = nnx.clone(self.model, graph=True)
                add_to(copy, maps[places].site, maps[places].number, Change(weight, bias))
                losses.append(mean_loss(self.program, nnx.split(copy, graph=True)[1], gates, batches))
            tell(number / len(changes))
            yield np.array(losses) - before


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
        reader, matrix = self._reader, matrix_of(self._reader.model, self.site, self.number)
        states = reader.state, nnx.split(reader.copy, graph=True)[1]

        def layer_contexts(state: Any, batch: Any) -> jax.Array:
            contexts = contexts_of(reader.program, state, batch)[self.site.path]
            if self.site.tied:  # layers that share W_O lie along the first axis of positions
                return jnp.moveaxis(contexts, 0, 1)
            return contexts if self.site.layers is None else contexts[self.number]

        def batch_sums() -> Iterator[tuple[DeviceSums, int]]:
            for number, batch in enumerate(reader.batches):
                before, now = (layer_contexts(state, batch) for state in states)
                arrays = before, now, matrix, jnp.asarray(self._rows), jnp.asarray(number % 2)
                yield spread_by_compiler(_context_sums, PartitionSpec(), *arrays), int(np.prod(before.shape[:-1]))

        return sum_over_batches(batch_sums()).whole(), np.ones(matrix.shape[1])


def matrix_of(model: nnx.Module, site: AttentionSite, layer: int) -> jax.Array:
    """Return the W_O of a layer of a site, `[heads * head_dim, width]`, low-rank matrices added."""

    def matrix(projection: nnx.Module) -> jax.Array:
        matrices = output_matrix(site, projection)
        return matrices.reshape(-1, site.heads * site.head_dim, matrices.shape[-1])[layer]

    return spread_by_compiler(matrix, PartitionSpec(), at_path(at_path(model, site.path), site.output))


def bias_of(model: nnx.Module, site: AttentionSite) -> nnx.Variable | None:
    """Return b_O of a site; None where its map has no bias."""
    bias = vars(at_path(at_path(model, site.path), site.output)).get("bias")
    return bias if isinstance(bias, nnx.Variable) else None


def add_to(model: nnx.Module, site: AttentionSite, layer: int, change: Change) -> None:
    """Add a change to the map of a layer of a site, in a copy of a model."""
    bias, index = bias_of(model, site), ... if site.layers is None or site.tied else layer

    def add(array: jax.Array, change: jax.Array) -> jax.Array:
        return array.at[index].add(change.reshape(array[index].shape).astype(array.dtype))

    changes = [(at_path(at_path(model, site.path), site.kernel), change.weight)]
    changes += [] if bias is None else [(bias, change.bias)]
    for variable, added in changes:
        array = variable[...]
        variable.set_value(spread_by_compiler(add, array, array, jnp.asarray(added)))


@jax.jit
def _context_sums(
    before: jax.Array, now: jax.Array, matrix: jax.Array, kept: jax.Array, shift: jax.Array
) -> DeviceSums:
    """Return the sums of products of one batch, for contexts of the model and of the copy, and W_O of the model."""
    target, present = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (before, now))
    counts = target[..., -1:]
    features = jnp.concatenate([present[..., :-1], jnp.ones_like(counts)], axis=-1) * counts
    lost = target[..., :-1] - present[..., :-1] * kept[None, None].astype(target.dtype)
    residual = lost @ matrix.astype(jnp.float32) * counts
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


def _read(contexts: jax.Array, matrix: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.concatenate([contexts.reshape(*counts.shape, -1), counts[..., None]], axis=-1)
