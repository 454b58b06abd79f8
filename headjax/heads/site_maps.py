"""The output maps of any Flax module, read by whole passes and changed in a copy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.heads.block_maps import BlockReader, Moments, OutputMap, Places, Tell
from headjax.heads.head_id import HeadId
from headjax.heads.loss_checks import checked, compare_examples
from headjax.heads.program import Loss, Program, compiled, examples_in, mean_loss, prepare
from headjax.heads.refit import Change, RefitSums
from headjax.heads.site import AttentionSite, Sites, at_path, ones, output_matrix
from headjax.heads.sums import DeviceSums, sum_over_batches, sums_by_half
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import spread_by_compiler
from headjax.models.walk import shows_sub_layers
from headjax.nn.state import Compute

SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


def reader_for(model: nnx.Module, loss: Loss | None) -> type[BlockReader] | type[SiteReader]:
    """Return how a model is read: on the walk where its blocks show their sub-layers and no loss is given."""
    return BlockReader if loss is None and shows_sub_layers(model) else SiteReader


class SiteReader:
    """Any Flax model, read by whole passes, and a copy that is repaired map by map; effects are rises of the loss."""

    by_blocks = False
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

    @staticmethod
    def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, which spreads arrays itself."""
        return function

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
        """Yield the effect of each change of each layer's map, `[changes]`; tell the share of the work that is done."""
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


def second_maps(model: nnx.Module, sites: Sites) -> Iterator[AttentionSite]:
    """Yield the second maps of the feed-forwards beside the attention layers, whose units are heads of size 1."""
    for site in sites:
        block = site.path.rpartition(".")[0]
        modules: dict[str, Any] = {
            ".".join(map(str, path)): module
            for path, module in nnx.iter_modules(at_path(model, block), graph=True)
            if path
            and path[-1] in SECOND_MAPS
            and isinstance(getattr(module, "kernel", None), nnx.Variable)
            and str(path[0]) != site.path.rpartition(".")[2]
        }
        if len(modules) != 1:
            raise HeadjaxError(
                f"feed_forward: beside {site.path} there are {len(modules)} second maps of a feed-forward; looked for "
                f"{', '.join(SECOND_MAPS)}"
            )
        ((path, module),) = modules.items()
        holder, _, name = f"{block}.{path}".strip(".").rpartition(".")
        units = module.kernel[...].shape[-2]
        kinds: dict[str, Any] = {"output": name, "kernel": f"{name}.kernel", "query": ((f"{name}.kernel", -2),)}
        yield AttentionSite(heads=units, kv_heads=units, head_dim=1, path=holder, layers=site.layers, **kinds)


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
