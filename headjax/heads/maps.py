"""The output maps of a model: W_O and b_O of attentions, W_2 and b_2 of feed-forwards, their features, their changes.

A map is reached as a slot of a step of `headjax.heads.sums.BlockWalk` (`BlockMap`), or as a layer of an attention site
in any Flax module (`SiteMap`), whose features are read by whole passes.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.core.kind import own_copy
from headjax.heads.head_id import HeadId
from headjax.heads.program import Program
from headjax.heads.refit import Change, RefitSums
from headjax.heads.site import AttentionSite, Sites, at_path, kept_along, ones, output_matrix
from headjax.heads.sums import LayerStep, SubLayer, sum_over_batches, sums_by_half
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.mesh.explicit import spread_by_compiler
from headjax.models.walk import FEED_FORWARD
from headjax.nn.layer import TransformerLayer

SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


class OutputMap(abc.ABC):
    """The output map of a sub-layer in a model that is repaired.

    Attributes:
        title: `encoder/3` for the attention layer 3 of a head stack, `encoder/3/feed_forward` for a feed-forward.
        heads: Heads whose contexts it reads, of several layers that share it those of the first; none for units.
        units: Stack and layer of the feed-forward on the walk whose units its features are, which may be removed.
        features: Number of its features.
        biased: Whether it has a bias.
    """

    title: str
    heads: tuple[HeadId, ...] = ()
    units: tuple[str, int] | None = None
    features: int
    biased: bool

    @property
    def diverged(self) -> bool:
        """Whether the copy is known to differ, before any change of this map, in what it computes up to here."""
        return False

    def kept(self, gone: Container[HeadId]) -> np.ndarray:
        """Return which features stay without these heads, `[features]` bool."""
        if not self.heads:
            return np.ones(self.features, bool)
        return np.repeat([head not in gone for head in self.heads], self.features // len(self.heads))

    @abc.abstractmethod
    def weight(self) -> np.ndarray:
        """Return the map as it is, `[features, width]`."""

    @abc.abstractmethod
    def sums(self) -> tuple[RefitSums, np.ndarray]:
        """Return the sums over all batches, and how much of the output's error the stream takes up, `[width]`."""

    @abc.abstractmethod
    def keep(self, features: np.ndarray) -> None:
        """Set the rows of all features but these `[features]` to 0."""

    @abc.abstractmethod
    def add(self, change: Change) -> None:
        """Add a change."""


class BlockMap(OutputMap):
    """The output map of a slot of a layer on the walk."""

    def __init__(self, step: LayerStep, slot: str) -> None:
        self.at = SubLayer(step.block.stack, step.tied, slot)
        self._step, module = step, getattr(step.layer, slot)
        self.biased = output_map(module).bias is not None
        if slot == FEED_FORWARD:
            self.title, self.units = f"{self.at.stack}/{step.tied[0]}/{slot}", (self.at.stack, step.tied[0])
            self.features = module.hidden
        else:
            self.title = f"{self.at.head_stack}/{step.tied[0]}"
            self.heads = tuple(HeadId(self.at.head_stack, step.tied[0], head) for head in module.ids)
            self.features = len(self.heads) * module.output_matrices().shape[1]

    @property
    def diverged(self) -> bool:
        return self._step.diverged

    def weight(self) -> np.ndarray:
        module = getattr(self._step.layer, self.at.slot)
        weight = output_map(module).weight
        if weight is None:
            kind = type(module).__name__
            raise HeadjaxError(f"reconstruction: {self.title}: {kind} has no output projection to solve")
        own = np.asarray(fetch(weight.get_raw_value()), np.float64)
        return own.reshape(-1, own.shape[-1])

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        if self.features:
            self.weight()
        return self._step.sums(self.at.slot)

    def keep(self, features: np.ndarray) -> None:
        weight = self.weight()
        self.add(Change(-weight * ~features[:, None], np.zeros(weight.shape[1])))

    def add(self, change: Change) -> None:
        self._step.replace_layer(with_change(self._step.layer, self.at.slot, change))


def with_change(layer: TransformerLayer, slot: str, change: Change) -> TransformerLayer:
    """Return a layer with another output map in a slot."""
    changed: TransformerLayer = own_copy(layer)
    for variable, array in zip(output_map(getattr(changed, slot)), change, strict=True):
        if variable is not None:
            own = variable.get_raw_value()
            total = np.asarray(fetch(own), np.float64) + array.reshape(own.shape)
            variable.set_raw_value(on_devices_of(own, jnp.asarray(total, own.dtype)))
    return changed


def on_devices_of(own: jax.Array, array: jax.Array) -> jax.Array:
    """Return an array on the devices of another one."""
    if isinstance(own, jax.Array) and len(own.sharding.device_set) > 1:
        return jax.device_put(array, own.sharding)
    return array if len(array.sharding.device_set) == 1 else jnp.asarray(fetch(array))


class SiteLayer(NamedTuple):
    """A layer of a site, or all of its layers where they share their parameters."""

    site: AttentionSite
    number: int  # along the site's axis

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Head stack and number of the layer, or of all that share its parameters."""
        return self.site.places if self.site.tied else self.site.places[self.number :][:1]

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Its heads, of several layers those of the first."""
        start = self.number * self.site.heads
        return self.site.head_ids()[start : start + self.site.heads]

    @property
    def title(self) -> str:
        """The layer's name."""
        return str(HeadId(*self.places[0], 0)).rpartition("/")[0]

    def matrix(self, model: nnx.Module) -> jax.Array:
        """Return its W_O, `[heads * head_dim, width]`, low-rank matrices added."""
        projection = at_path(at_path(model, self.site.path), self.site.output)
        return spread_by_compiler(functools.partial(_matrix, self), PartitionSpec(), projection)

    def bias(self, model: nnx.Module) -> nnx.Variable | None:
        """Return b_O of its site; None where the map has no bias."""
        bias = vars(at_path(at_path(model, self.site.path), self.site.output)).get("bias")
        return bias if isinstance(bias, nnx.Variable) else None

    def add_to(self, model: nnx.Module, change: Change) -> None:
        """Add a change to the map in a copy of a model."""
        bias = self.bias(model)
        changes = [(at_path(at_path(model, self.site.path), self.site.kernel), change.weight)]
        changes += [] if bias is None else [(bias, change.bias)]
        for variable, added in changes:
            array = variable[...]
            index = ... if self.site.layers is None or self.site.tied else self.number
            variable.set_value(spread_by_compiler(functools.partial(_added, index), array, array, jnp.asarray(added)))

    def contexts(self, found: dict[str, jax.Array]) -> jax.Array:
        """Return the layer's contexts of `contexts_of`; of several layers along the first axis of positions."""
        own = found[self.site.path]
        if self.site.tied:
            return jnp.moveaxis(own, 0, 1)
        return own if self.site.layers is None else own[self.number]


def layers_of(sites: Sites) -> Iterator[SiteLayer]:
    """Yield the layers of sites; those that share their parameters once."""
    for site in sites:
        yield from (SiteLayer(site, number) for number in range(1 if site.tied else len(site.places)))


def _matrix(layer: SiteLayer, projection: nnx.Module) -> jax.Array:
    own = output_matrix(layer.site, projection)
    return own.reshape(-1, layer.site.heads * layer.site.head_dim, own.shape[-1])[layer.number]


def _added(index: Any, array: jax.Array, change: jax.Array) -> jax.Array:
    return array.at[index].add(change.reshape(array[index].shape).astype(array.dtype))


class SiteModels(NamedTuple):
    """A model and its copy in repair, which whole passes read."""

    program: Program
    state: Any
    original: nnx.Module
    repaired: nnx.Module
    batches: Sequence[Any]


class SiteMap(OutputMap):
    """The output map of a layer of a site."""

    def __init__(self, models: SiteModels, layer: SiteLayer) -> None:
        self._models, self._layer = models, layer
        self.title, self.heads = layer.title, layer.heads
        self.features, self.biased = layer.site.heads * layer.site.head_dim, layer.bias(models.repaired) is not None
        self._kept = np.ones(self.features, bool)

    def weight(self) -> np.ndarray:
        return np.asarray(fetch(self._layer.matrix(self._models.repaired)), np.float64)

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        matrix = self._layer.matrix(self._models.original)  # the copy has its rows for kept heads, too
        return sum_over_batches(self._sums(matrix)), np.ones(matrix.shape[1])

    def _sums(self, matrix: jax.Array) -> Iterator[tuple[RefitSums, int]]:
        """Yield the sums of every batch and its tokens."""
        models, now = self._models, nnx.split(self._models.repaired, graph=True)[1]
        for number, batch in enumerate(models.batches):
            both = (contexts_of(models.program, state, batch) for state in (models.state, now))
            whole, own = map(self._layer.contexts, both)
            given = whole, own, matrix, jnp.asarray(self._kept), jnp.asarray(number % 2)
            yield spread_by_compiler(_context_sums, PartitionSpec(), *given), int(np.prod(whole.shape[:-1]))

    def keep(self, features: np.ndarray) -> None:
        self._kept, site = features, self._layer.site
        heads = features.reshape(site.heads, -1)[:, 0]
        for path, axis in site.query:
            if path in site.rows:
                variable = at_path(at_path(self._models.repaired, site.path), path)
                array = variable[...]
                along = kept_along(site, path, array.shape, axis, "q", heads, heads)
                mask = jnp.asarray(along.reshape([-1 if place == axis else 1 for place in range(-array.ndim, 0)]))
                index = ... if site.layers is None or site.tied else self._layer.number
                variable.set_value(spread_by_compiler(functools.partial(_masked, index), array, array, mask))

    def add(self, change: Change) -> None:
        self._layer.add_to(self._models.repaired, change)


def _masked(index: Any, array: jax.Array, mask: jax.Array) -> jax.Array:
    return array.at[index].multiply(mask.reshape(mask.shape[-array[index].ndim :]).astype(array.dtype))


@jax.jit
def _context_sums(whole: jax.Array, own: jax.Array, matrix: jax.Array, kept: jax.Array, shift: jax.Array) -> RefitSums:
    """Return the sums of products of one batch, for contexts of the original model and of the copy."""
    target, present = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (whole, own))
    counted = target[..., -1:]
    features = jnp.concatenate([present[..., :-1], jnp.ones_like(counted)], axis=-1) * counted
    residual = (target[..., :-1] - present[..., :-1] * kept[None, None]) @ matrix.astype(jnp.float32) * counted
    return sums_by_half(features, residual, shift)


@functools.partial(jax.jit, static_argnames="program")
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

    found: dict[str, jax.Array] = jax.grad(loss)(reads)
    return found


def _read(contexts: jax.Array, matrix: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.concatenate([contexts.reshape(*counted.shape, -1), counted[..., None]], axis=-1)


def second_maps(model: nnx.Module, sites: Sites) -> Iterator[AttentionSite]:
    """Yield the second maps of the feed-forwards beside the attention layers, whose units are heads of size 1."""
    for site in sites:
        block = site.path.rpartition(".")[0]
        found = {
            ".".join(map(str, path)): module
            for path, module in nnx.iter_modules(at_path(model, block), graph=True)
            if path and path[-1] in SECOND_MAPS and isinstance(getattr(module, "kernel", None), nnx.Variable)
        }
        own = site.path.rpartition(".")[2]
        places = [path for path in found if path.partition(".")[0] != own]
        if len(places) != 1:
            raise HeadjaxError(
                f"feed_forward: beside {site.path} there are {len(places)} second maps of a feed-forward; looked for "
                f"{', '.join(SECOND_MAPS)}"
            )
        holder, _, name = f"{block}.{places[0]}".strip(".").rpartition(".")
        units = at_path(found[places[0]], "kernel")[...].shape[-2]
        kinds: dict[str, Any] = {"output": name, "kernel": f"{name}.kernel", "query": ((f"{name}.kernel", -2),)}
        yield AttentionSite(heads=units, kv_heads=units, head_dim=1, path=holder, layers=site.layers, **kinds)
