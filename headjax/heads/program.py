"""A model and its loss as one function of gates: of Flax modules, and of trees of arrays with an apply function."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError
from headjax.heads.batches import arrays_of
from headjax.heads.discovery import find_sites
from headjax.heads.seam import attach, calls_in
from headjax.heads.site import AttentionSite, Gates, Sites, at_path, filled
from headjax.mesh.distributed import fetch
from headjax.nn.module import AttentionModule

M = TypeVar("M", bound=nnx.Module)

Loss = Callable[[Any, Any], Any]
"""Function of a model and a batch that returns the batch's losses, `[batch]`, or one number for the batch.

Or the sums over each example's targets beside the numbers of targets, as `headjax.models.config.Loss` does.
"""


class Losses(NamedTuple):
    """Losses of a batch: sums over the targets of each example, and numbers of targets, `[batch]` or one number."""

    total: jax.Array
    targets: jax.Array

    @classmethod
    def of(cls, returned: Any) -> Losses:
        """Return what a `Loss` returned; an example without a number of targets has one."""
        total = getattr(returned, "total", returned)
        if not isinstance(total, jax.Array | np.ndarray | np.generic | int | float):
            raise HeadjaxError(f"loss: expected the loss of every example, or one number, got {type(total).__name__}")
        total = jnp.asarray(total, jnp.float32)
        return cls(total, jnp.asarray(getattr(returned, "weight", jnp.ones_like(total)), jnp.float32))


@dataclasses.dataclass(frozen=True)
class OwnLoss:
    """The loss that a model brings: `model.loss(batch)`, computed as `compute` says, if it does."""

    compute: Any = None

    def __call__(self, model: Any, batch: Any) -> Any:
        return model.loss(batch) if self.compute is None else model.loss(batch, compute=self.compute)


Applied = tuple[Callable[..., Any], Any, Mapping[str, tuple[str, int] | tuple[str, int, int]]]
"""Function of a tree of arrays, the tree, and by site the path of W_O in it and the axis of its heads.

Where the axis holds `heads * head_dim` entries, the number of heads follows.
"""


@dataclasses.dataclass(frozen=True)
class Program(abc.ABC):
    """A loss as a function of arrays, gates and a batch.

    Equal programs share one compilation where they are fixed: a model of headjax and its own loss read nothing that
    can change. Others are traced anew for every program, as Python may read another number by then.
    """

    by_position: ClassVar[bool]  # whether it takes a gate for each position, too
    sites: Sites
    loss: Loss
    # Paths of the sites whose layers show their probabilities.
    shown: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    # By name, functions of a model and a batch that return one value per example.
    metrics: tuple[tuple[str, Loss], ...] = dataclasses.field(default=(), kw_only=True)
    fixed: bool = dataclasses.field(default=False, kw_only=True)
    # Brings a batch to the device, and checks it where the model knows how.
    read: Callable[[Any], Any] = dataclasses.field(default_factory=lambda: arrays_of, compare=False, kw_only=True)
    jitted: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    @abc.abstractmethod
    def gated(self, state: Any, gates: Gates, **readings: Any) -> Any:
        """Return the model of these arrays with gates; `headjax.heads.seam.attach` describes the readings."""

    def value(self, state: Any, gates: Gates, batch: Any, **readings: Any) -> Losses:
        """Return what the loss returns for a batch at these gates."""
        return Losses.of(self.loss(self.gated(state, gates, **readings), batch))

    def calls(self, state: Any, batch: Any) -> Calls:
        """Return the shape of a batch's loss, and the calls of sites, from shapes alone."""
        gates = {site.path: jax.ShapeDtypeStruct(site.shape, jnp.float32) for site in self.sites}
        traced, shapes = jax.make_jaxpr(self.value, return_shape=True)(state, gates, batch)
        if shapes.total.ndim > 1:
            shape = list(shapes.total.shape)
            raise HeadjaxError(f"loss: expected one number or one for each example, got shape {shape}")
        return Calls(shapes.total.ndim == 1, calls_in(traced.jaxpr))

    def losses(self, state: Any, gates: Gates, batch: Any) -> Losses:
        """Return the loss of every example, `[batch]`: a loss of one number is taken on batches of one example."""
        if self.calls(state, batch).per_example:
            return self.value(state, gates, batch)
        return each_example(lambda example: jax.tree.map(jnp.sum, self.value(state, gates, example)), batch)


class Calls(NamedTuple):
    """Whether a loss is by example, and by site the axes before the heads at each of its calls: batch and positions."""

    per_example: bool
    leads: dict[str, list[tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class ModuleProgram(Program):
    """The loss of an `nnx.Module` of this structure, in evaluation mode."""

    by_position = True
    graph: Any

    def __hash__(self) -> int:
        # Static attributes of other people's modules need not have a hash; they can be compared.
        return hash(self.sites)

    def gated(self, state: Any, gates: Gates, **readings: Any) -> nnx.Module:
        # New variables: the copy shares none with the model, whatever its forward pass changes.
        model: nnx.Module = nnx.merge(self.graph, jax.tree.map(lambda array: array, state))
        model.eval()
        attach(model, self.sites, gates, **readings)
        return model


@dataclasses.dataclass(frozen=True)
class TreeProgram(Program):
    """The loss of a function of a tree of arrays; gates multiply W_O: xi_h context_h W_O^h = context_h (xi_h W_O^h).

    The gradient of a gate is dL/dxi_h = <dL/dW_O^h, W_O^h>: that of every example takes the memory of W_O.
    """

    by_position = False
    apply: Callable[..., Any]

    def gated(self, state: Any, gates: Gates, **readings: Any) -> Callable[..., Any]:
        by_kernel = {site.kernel: site for site in self.sites}

        def scaled(path: Any, array: Any) -> Any:
            site = by_kernel.get(_path_of(path))
            if site is None:
                return array
            shape, axis = [1] * array.ndim, dict(site.query)[site.kernel]
            shape[axis] = array.shape[axis]
            along = jnp.repeat(gates[site.path], array.shape[axis] // site.heads)
            return array * along.reshape(shape).astype(array.dtype)

        return functools.partial(self.apply, jax.tree_util.tree_map_with_path(scaled, state))


_path_of = functools.partial(jax.tree_util.keystr, simple=True, separator=".")


def prepare(model: nnx.Module | Applied, loss: Loss | None, compute: Any = None) -> tuple[Program, Any]:
    """Return the program of a model and its arrays."""
    if loss is None and not callable(getattr(model, "loss", None)):
        raise HeadjaxError(
            "loss: needed, as the model has no method `loss(batch)`: a function of model and batch that returns the "
            "loss of every example, [batch]"
        )
    if loss is not None and compute is not None:
        raise HeadjaxError("compute: says how the model's own loss is computed; yours decides that itself")
    loss, sites = OwnLoss(compute) if loss is None else loss, sites_of(model)
    if not isinstance(model, nnx.Module):
        return TreeProgram(sites, loss, model[0]), model[1]
    graph, state = nnx.split(model, graph=True)
    read = getattr(model, "device_batch", None)  # of headjax's models
    fixed = read is not None and isinstance(loss, OwnLoss)
    return ModuleProgram(sites, loss, graph, fixed=fixed, shown=shown_in(model, sites), read=read or arrays_of), state


def shown_in(model: nnx.Module | Applied, sites: Sites) -> tuple[str, ...]:
    """Return the paths of sites whose layers show their probabilities, as those of headjax do."""
    if not isinstance(model, nnx.Module):
        return ()
    return tuple(site.path for site in sites if isinstance(at_path(model, site.path), AttentionModule))


def sites_of(model: nnx.Module | Applied) -> Sites:
    """Return the sites of a model."""
    if isinstance(model, nnx.Module):
        return find_sites(model)
    _, params, places = model
    shapes = {_path_of(path): array.shape for path, array in jax.tree_util.tree_leaves_with_path(params)}
    sites = list[AttentionSite]()
    for name, (path, axis, *count) in dict[str, Any](places).items():
        kernel = path.replace("/", ".")
        if kernel not in shapes:
            raise HeadjaxError(f"{name}: the tree has no array {path}; it has {', '.join(list(shapes)[:12])}")
        shape = shapes[kernel]
        if not -len(shape) <= axis < len(shape):
            raise HeadjaxError(f"{name}: {path} has shape {list(shape)}, and no axis {axis}")
        last, entries = axis % len(shape) - len(shape), shape[axis]
        (heads,) = count or (entries,)
        if heads < 1 or entries % heads:
            raise HeadjaxError(f"{name}: {path} has {entries} entries along its axis, which do not form {heads} heads")
        size = entries // heads if heads < entries else shape[last + 1] if last < -1 else 1
        names: dict[str, Any] = {"path": name.replace("/", "."), "output": "", "kernel": kernel}
        sites.append(AttentionSite(heads=heads, kv_heads=heads, head_dim=size, query=((kernel, last),), **names))
    if not sites:
        raise HeadjaxError("model: no sites are given; each is its name, the path of W_O and the axis of its heads")
    return tuple(sites)


def gated(model: M, gates: Mapping[Any, Any]) -> M:
    """Return a copy of a model in which heads have gates: sum_h xi_h context_h W_O^h.

    The copy is a model like the one it is made of, in training and in evaluation.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> off = headjax.gated(model, {"decoder/0/3": 0.0})
        >>> pruned = headjax.prune(model, ["decoder/0/3"])
        >>> bool(jnp.allclose(off(batch).logits, pruned(batch).logits, atol=1e-4))
        True

    Args:
        model: Any `nnx.Module` with attention layers, see `headjax.attention_sites`.
        gates: Gates by head, as `HeadId` or as text; or arrays of the `shape` of a site by its path, with axes of
            examples and positions before the heads where they differ. Others are 1.

    Raises:
        HeadjaxError: The model has no such head or site.
    """
    sites = find_sites(model)
    copy = nnx.clone(model, graph=True)
    attach(copy, sites, filled(sites, gates))
    return copy


def each_example(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a function's results for batches of one example each, with an axis of examples in front."""
    sizes = {_path_of(path): array.shape[0] for path, array in jax.tree_util.tree_leaves_with_path(batch) if array.ndim}
    if len(set(sizes.values())) > 1:
        raise DataError(
            f"batches: the first axes of {', '.join(sizes)} are {', '.join(map(str, sizes.values()))}; a loss of one "
            "number is taken example by example, and each array needs the axis of examples in front; return the losses "
            "of the examples, [batch], or let the loss hold what they share"
        )

    def of_example(example: Any) -> Any:
        return function(jax.tree.map(lambda array, stack: array[None] if stack.ndim else array, example, batch))

    return jax.vmap(of_example, in_axes=(jax.tree.map(lambda array: 0 if array.ndim else None, batch),))(batch)


def compiled(*static: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function whose first argument is a `program`; see `Program` for how long a compilation lasts."""

    def decorate(function: Callable[..., Any]) -> Any:
        shared = jax.jit(function, static_argnames=("program", *static))

        @functools.wraps(function)
        def call(program: Program, *args: Any) -> Any:
            if program.fixed:
                return shared(program, *args)
            if function not in program.jitted:
                program.jitted[function] = jax.jit(functools.partial(function, program), static_argnames=static)
            return program.jitted[function](*args)

        call.lower = shared.lower  # type: ignore[attr-defined]
        return call

    return decorate


class Measured(NamedTuple):
    """Per-example values, `[batch]` or `[variants, batch]`, and numbers of targets."""

    values: dict[str, Any]
    targets: Any


@compiled()
def measure(program: Program, state: Any, gates: Gates, batch: Any) -> Measured:
    """Return the values of a batch at these gates, by a whole pass."""
    total, targets = program.losses(state, gates, batch)
    others = {
        name: dataclasses.replace(program, loss=metric).losses(state, gates, batch).total
        for name, metric in program.metrics
    }
    return Measured({"loss": total} | others, targets)


def mean_loss(program: Program, state: Any, gates: Gates, batches: Iterable[Any]) -> float:
    """Return the mean loss of a target at these gates."""
    total = targets = 0.0
    for number, batch in enumerate(batches):
        measured = require_finite(fetch(measure(program, state, gates, program.read(batch))), "the model", number)
        total += float(measured.values["loss"].sum(dtype=np.float64))
        targets += float(measured.targets.sum(dtype=np.float64))
    if not targets:
        raise DataError("batches: there is no example to take the loss of")
    return total / targets


def require_finite(measured: Measured, what: str, batch: int) -> Measured:
    """Return values by example, or raise `HeadjaxError` that says whose value is not finite."""
    for name, values in measured.values.items():
        if not np.isfinite(values).all():
            worst = values[~np.isfinite(values)][0]
            raise HeadjaxError(f"{name}: {what} has {worst} in batch {batch}, counted from 0")
    return measured
