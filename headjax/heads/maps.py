"""The output maps of a model: W_O and b_O of attentions, W_2 and b_2 of feed-forwards, their features, their changes.

A map is reached as a slot of a step of `headjax.heads.sums.BlockWalk`, or as a layer of a site in any Flax module.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError
from headjax.core.kind import own_copy
from headjax.heads.head_id import HeadId
from headjax.heads.refit import Change, RefitSums
from headjax.heads.site import AttentionSite, Sites, at_path, output_matrix
from headjax.heads.sums import LayerStep
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import spread_by_compiler
from headjax.models.config import head_stack_at
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import Block

SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


class OutputMap:
    """The output map of a sub-layer in a model that is repaired.

    Attributes:
        title: `encoder/3` for the attention layer 3 of a head stack, `encoder/3/feed_forward` for a feed-forward.
        places: Head stack and number of its layer, or of all that share it; none of a feed-forward.
        heads: Heads whose contexts it reads, of several layers those of the first.
        groups: KV head of each of them.
        units: Stack and layer of the feed-forward on the walk whose units its features are, which may be removed.
        features: Number of its features.
        biased: Whether it has a bias.
        diverged: Whether the model is known to compute something else up to here.
    """

    title: str
    places: tuple[tuple[str, int], ...] = ()
    heads: tuple[HeadId, ...] = ()
    groups: Sequence[int] = ()
    units: tuple[str, int] | None = None
    features: int
    biased: bool
    diverged: bool = False

    def kept(self, gone: Container[HeadId]) -> np.ndarray:
        """Return which features stay without these heads, `[features]` bool."""
        if not self.heads:
            return np.ones(self.features, bool)
        return np.repeat([head not in gone for head in self.heads], self.features // len(self.heads))

    def keep(self, features: np.ndarray) -> None:
        """Set the rows of all features but these, `[features]` bool, to 0."""
        weight = self.weight()
        self.add(Change(-weight * ~features[:, None], np.zeros(weight.shape[1])))

    def weight(self) -> np.ndarray:
        """Return the map as it is, `[features, width]`."""
        raise NotImplementedError

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        """Return the sums over all batches, and how much of the output's error the stream takes up, `[width]`."""
        raise NotImplementedError

    def add(self, change: Change) -> None:
        """Add a change."""
        raise NotImplementedError


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
        own = np.asarray(fetch(self._variable().get_raw_value()), np.float64)
        return own.reshape(-1, own.shape[-1])

    def sums(self) -> tuple[RefitSums, np.ndarray]:
        if self.features:
            self._variable()
        return self._step.sums(self._slot)

    def add(self, change: Change) -> None:
        self._step.replace_layer(with_change(self._step.layer, self._slot, change))


def with_change(layer: Block, slot: str, change: Change) -> Block:
    """Return a layer with another output map in a slot."""
    changed: Block = own_copy(layer)
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


def matrix_of(model: nnx.Module, site: AttentionSite, layer: int) -> jax.Array:
    """Return the W_O of a layer of a site, `[heads * head_dim, width]`, low-rank matrices added."""
    projection = at_path(at_path(model, site.path), site.output)
    return spread_by_compiler(functools.partial(_matrix, site, layer), PartitionSpec(), projection)


def _matrix(site: AttentionSite, layer: int, projection: nnx.Module) -> jax.Array:
    own = output_matrix(site, projection)
    return own.reshape(-1, site.heads * site.head_dim, own.shape[-1])[layer]


def bias_of(model: nnx.Module, site: AttentionSite) -> nnx.Variable | None:
    """Return b_O of a site; None where its map has no bias."""
    bias = vars(at_path(at_path(model, site.path), site.output)).get("bias")
    return bias if isinstance(bias, nnx.Variable) else None


def add_to(model: nnx.Module, site: AttentionSite, layer: int, change: Change) -> None:
    """Add a change to the map of a layer of a site, in a copy of a model."""
    bias = bias_of(model, site)
    changes = [(at_path(at_path(model, site.path), site.kernel), change.weight)]
    changes += [] if bias is None else [(bias, change.bias)]
    for variable, added in changes:
        array = variable[...]
        index = ... if site.layers is None or site.tied else layer
        variable.set_value(spread_by_compiler(functools.partial(_added, index), array, array, jnp.asarray(added)))


def _added(index: Any, array: jax.Array, change: jax.Array) -> jax.Array:
    return array.at[index].add(change.reshape(array[index].shape).astype(array.dtype))


def second_maps(model: nnx.Module, sites: Sites) -> Iterator[AttentionSite]:
    """Yield the second maps of the feed-forwards beside the attention layers, whose units are heads of size 1."""
    for site in sites:
        block = site.path.rpartition(".")[0]
        modules = {
            ".".join(map(str, path)): module
            for path, module in nnx.iter_modules(at_path(model, block), graph=True)
            if path and path[-1] in SECOND_MAPS and isinstance(getattr(module, "kernel", None), nnx.Variable)
        }
        own = site.path.rpartition(".")[2]
        places = [path for path in modules if path.partition(".")[0] != own]
        if len(places) != 1:
            raise HeadjaxError(
                f"feed_forward: beside {site.path} there are {len(places)} second maps of a feed-forward; looked for "
                f"{', '.join(SECOND_MAPS)}"
            )
        holder, _, name = f"{block}.{places[0]}".strip(".").rpartition(".")
        units = at_path(modules[places[0]], "kernel")[...].shape[-2]
        kinds: dict[str, Any] = {"output": name, "kernel": f"{name}.kernel", "query": ((f"{name}.kernel", -2),)}
        yield AttentionSite(heads=units, kv_heads=units, head_dim=1, path=holder, layers=site.layers, **kinds)
