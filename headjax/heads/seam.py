"""Gates in a model that knows nothing of them: the input of every output projection is multiplied by gates.

Since xi_h context_h W_O^h = (xi_h context_h) W_O^h, the seam of every attention layer is where its output projection is
called. There the projection's class is replaced by a subclass that multiplies its input; paths and types of parameters
stay, and so do the transforms that the model itself uses (`nnx.scan`, `nnx.remat`). This is done to a copy that lives
during one trace.

Readings at the seam leave the model as the gradient of an argument: no value can leave the inside of a scan or of a
recomputation in another way. Layers of headjax show their probabilities there, too, for statistics of attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from headjax.core.errors import HeadjaxError, KernelError
from headjax.core.modules import LayerGate
from headjax.heads.site import AttentionSite, Sites, at_path, output_matrix
from headjax.mesh.mesh import placed_as, spread_by_compiler
from headjax.models.inputs import counted_at
from headjax.nn.attend import AttentionOptions
from headjax.nn.module import AttentionModule
from headjax.nn.operands import Attended, Mask

Read = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Function of contexts `[..., heads, head_dim]`, W_O `[heads, head_dim, width]` and counted positions `[...]`."""

UNIT = 2.0**-20
"""How a gate of 1 is held: too small to count in a loss that adds up its model's parameters, as for weight decay."""


class Notes(NamedTuple):
    """Readings at a layer of headjax, which knows its probabilities and its padding."""

    queries: Any  # [batch], numbers of queries that are no padding
    sums: Any  # [statistics, batch, heads], sums of statistics over them


class Seam(NamedTuple):
    """Static attributes of a gated projection: its site, its reading, and the statistics to note."""

    site: AttentionSite
    read: Read | None
    statistics: tuple[str, ...]


def attach(
    model: nnx.Module,
    sites: Sites,
    gates: Mapping[str, jax.Array],
    reads: Mapping[str, jax.Array] | None = None,
    read: Read | None = None,
    notes: Mapping[str, Notes] | None = None,
    statistics: tuple[str, ...] = (),
) -> None:
    """Gate the sites of a copy of a model, which changes.

    `gates` are `[heads]` by site, or `[..., heads]` with one for every position of the contexts. The gradients of
    `reads` and `notes` are the readings at the seam.
    """
    for site in sites:
        layer = at_path(model, site.path)
        holder: Any = layer if isinstance(layer, AttentionModule) else at_path(layer, site.output)
        other = getattr(holder, "head_seam", None)
        if other is not None and other.site.path in gates and other.site.path != site.path:
            raise HeadjaxError(
                f"{site.path}: shares its {site.output} with {other.site.path}, and one module cannot hold the gates "
                "of both; give each layer a module of its own around the shared kernel"
            )
        cls: Any = type(holder)
        holder.__class__ = _gated_class(cls)
        holder.head_gate = LayerGate(gates[site.path] * UNIT)
        holder.head_read = LayerGate(reads[site.path]) if reads is not None and site.path in reads else nnx.data(None)
        noted = None if notes is None else notes.get(site.path)
        holder.head_notes = nnx.data(None if noted is None else Notes(*map(LayerGate, noted)))
        holder.head_seam = nnx.static(Seam(site, read, statistics))


@functools.cache
def _gated_class(cls: Any) -> Any:
    """Return the subclass of a projection's class, or of an attention module's, that gates heads."""

    def projected(self: Any, contexts: jax.Array, *args: Any, **kwargs: Any) -> Any:
        return cls.__call__(self, _through(self, self, contexts), *args, **kwargs)

    def attended(self: Any, inputs: jax.Array, key_values: Any, call: AttentionOptions) -> Attended:
        notes, statistics = self.head_notes, self.head_seam.statistics
        if notes is not None and statistics:
            observe = functools.partial(_note, statistics, notes.sums[...], call.mask, call.queries)
            call = call._replace(observe=observe)
        result = cls.attend(self, inputs, key_values, call)
        contexts = result.context  # [batch, query, heads, value_dim]
        if notes is not None:
            contexts = _note(None, notes.queries[...], None, call.queries, contexts)
        projection = at_path(self, self.head_seam.site.output)
        return result._replace(context=_through(self, projection, contexts))

    return subclass(cls, {"attend": attended} if issubclass(cls, AttentionModule) else {"__call__": projected})


def operations(jaxpr: Any) -> Iterator[Any]:
    """Yield the operations of a trace, and those of the traces within it, in the order of computation."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda value: hasattr(value, "eqns")):
            yield from operations(inner) if hasattr(inner, "eqns") else ()


def coarsest(jaxpr: Any) -> Any:
    """Return the float type with the largest epsilon in which a trace computes, float32 where it has none."""
    types = (getattr(output.aval, "dtype", None) for eqn in operations(jaxpr) for output in eqn.outvars)
    floats = [kind for kind in types if kind is not None and jnp.issubdtype(kind, jnp.floating)]
    return max(floats, key=lambda kind: jnp.finfo(kind).eps, default=jnp.float32)


def subclass(cls: Any, body: Mapping[str, Any]) -> Any:
    """Return a subclass of a class under the class's own name."""
    return type(cls.__name__, (cls,), {**body, "__module__": cls.__module__, "__qualname__": cls.__qualname__})


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _note(statistics: tuple[str, ...] | None, argument: Any, mask: Any, queries: Any, array: jax.Array) -> jax.Array:
    """Return an array, probabilities or contexts, unchanged; the gradient of the argument is its reading."""
    return array


def _note_backward(statistics: tuple[str, ...] | None, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    argument, mask, queries, array = residuals

    def reading(mask: Any, queries: Any, array: jax.Array) -> jax.Array:
        """Sums of statistics of probabilities over queries; without statistics, numbers of queries."""
        if statistics is None:
            return counted_at(queries, array.shape[:2]).sum(axis=1)
        seen = Pattern(array, mask, queries)
        counts = seen.counted_queries()[:, :, None] > 0
        return jnp.stack([jnp.where(counts, STATISTICS[name](seen), 0.0).sum(axis=1) for name in statistics])

    noted = spread_by_compiler(reading, argument, mask, queries, array).astype(argument.dtype)
    return noted, None, None, cotangent


_note.defvjp(lambda statistics, *args: (args[-1], args), _note_backward)


def _through(holder: Any, projection: Any, contexts: jax.Array) -> jax.Array:
    """Return the contexts times the gates that a module holds, in the shape in which they came."""
    site, read = holder.head_seam.site, holder.head_seam.read
    heads = (site.heads, site.head_dim)
    if contexts.shape[-2:] != heads and contexts.shape[-1] != site.heads * site.head_dim:
        raise HeadjaxError(
            f"{site.path}: {site.output} is called with shape {list(contexts.shape)}, and not with the contexts of "
            f"{site.heads} heads of {site.head_dim}"
        )
    lead = contexts.shape[:-2] if contexts.shape[-2:] == heads else contexts.shape[:-1]
    gates = holder.head_gate[...] / UNIT
    by_head = _called.bind(contexts.reshape(*lead, *heads), path=site.path, lead=tuple(lead))
    gates = placed_as(gates.reshape((1,) * (len(lead) + 1 - gates.ndim) + gates.shape), by_head, len(lead) + 1)
    # [heads, head_dim, width]
    matrix = spread_by_compiler(functools.partial(output_matrix, site), PartitionSpec(), projection)
    matrix = jax.lax.stop_gradient(matrix)
    argument = None if holder.head_read is None else holder.head_read[...]
    return _gate(read, by_head, gates, matrix, argument).reshape(contexts.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gate(
    read: Read | None, contexts: jax.Array, gates: jax.Array, matrix: jax.Array, argument: jax.Array | None
) -> jax.Array:
    return contexts * gates[..., None].astype(contexts.dtype)


def _gate_backward(read: Read | None, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    # On a mesh with explicit axes a gradient has the placement of its array.
    contexts, gates, matrix, argument = residuals

    def gradients(contexts: jax.Array, gates: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_position = jnp.einsum("...nh,...nh->...n", contexts, cotangent, preferred_element_type=jnp.float32)
        over = tuple(axis for axis, size in enumerate(gates.shape) if size == 1 and by_position.shape[axis] > 1)
        of_gates = by_position.sum(axis=over, keepdims=True).astype(gates.dtype)
        return cotangent * gates[..., None].astype(cotangent.dtype), of_gates

    of_contexts, of_gates = spread_by_compiler(gradients, (contexts, gates), contexts, gates, cotangent)
    if argument is None or read is None:
        return of_contexts, of_gates, jnp.zeros_like(matrix), None

    def reading(contexts: jax.Array, matrix: jax.Array, cotangent: jax.Array) -> jax.Array:
        # Padding, and what no target sees, has no influence on the loss, and its cotangents are exactly 0.
        counts = jnp.any(cotangent != 0, axis=(-2, -1)).astype(jnp.float32)
        return read(contexts.astype(jnp.float32), matrix.astype(jnp.float32), counts)

    of_argument = spread_by_compiler(reading, argument, contexts, matrix, cotangent).astype(argument.dtype)
    return of_contexts, of_gates, jnp.zeros_like(matrix), of_argument


_gate.defvjp(lambda read, *args: (_gate(read, *args), args), _gate_backward)

# A call of a site in a trace, the identity. A side effect of tracing would be missing wherever JAX has a trace already,
# as within a model's own `nnx.jit` and `nnx.remat`.
_called = Primitive("head_contexts")
_called.def_impl(lambda contexts, **_: contexts)
_called.def_abstract_eval(lambda contexts, **_: contexts)
mlir.register_lowering(_called, lambda ctx, contexts, **_: [contexts])
batching.defvectorized(_called)
ad.primitive_jvps[_called] = lambda primals, tangents, **call: (_called.bind(*primals, **call), *tangents)


def calls_in(jaxpr: Any) -> dict[str, list[tuple[int, ...]]]:
    """Return the axes before the heads at every call of a site in the trace of a gated model, by site."""
    calls: dict[str, list[tuple[int, ...]]] = {}
    for eqn in operations(jaxpr):
        if eqn.primitive is _called:
            calls.setdefault(eqn.params["path"], []).append(eqn.params["lead"])
    return calls


class Pattern(NamedTuple):
    """The attention pattern of one layer."""

    probabilities: jax.Array | None  # [batch, heads, query, key]; None where a kernel holds none
    mask: Mask | None
    queries: jax.Array | None  # [batch, query] bool, False at padding; None without padding

    def weights(self) -> tuple[jax.Array, jax.Array]:
        """Return absolute attention weights a `[batch, heads, query, key]` in float32 and their sums s over the keys.

        The probabilities are a / s. Means and entropies divide by s after the sum over keys, which saves an array of
        the size of a: -sum_k (a_k / s) log(a_k / s) = log s - sum_k a_k log(a_k) / s.
        """
        if self.probabilities is None:
            raise KernelError("attention implementation: holds no probabilities to take statistics of; use einsum")
        weights = jnp.abs(self.probabilities.astype(jnp.float32))
        return weights, jnp.maximum(weights.sum(axis=-1), jnp.finfo(jnp.float32).tiny)

    def counted_queries(self) -> jax.Array:
        """Return `[batch, query]`, 1.0 at tokens and 0.0 at padding."""
        batch, _, query, _ = self.weights()[0].shape
        return counted_at(self.queries, (batch, query))

    def visible_keys(self) -> jax.Array:
        """Return the number of keys that each query may attend to, `[batch or 1, query, 1]`."""
        query, key = self.weights()[0].shape[2:]
        allowed = None if self.mask is None else self.mask.array(query, key)
        return jnp.full((1, query, 1), key) if allowed is None else allowed.sum(axis=-1)[:, 0, :, None]


def entropy(seen: Pattern) -> jax.Array:
    """Return -sum_k p_k log p_k of each query's attention, in nats."""
    weights, total = seen.weights()
    return jnp.swapaxes(jax.scipy.special.entr(weights).sum(axis=-1) / total + jnp.log(total), 1, 2)


def normalized_entropy(seen: Pattern) -> jax.Array:
    """Return the entropy over the logarithm of the number of visible keys: 0 for one key, 1 for all evenly."""
    return entropy(seen) / jnp.log(jnp.maximum(seen.visible_keys(), 2).astype(jnp.float32))


def distance(seen: Pattern) -> jax.Array:
    """Return sum_k p_k |q - k|, the mean distance between query q and the keys that it attends to, in positions."""
    weights, total = seen.weights()
    positions = jnp.abs(offsets(weights)).astype(weights.dtype)
    return jnp.swapaxes((weights * positions[None, None]).sum(axis=-1) / total, 1, 2)


STATISTICS: Mapping[str, Callable[[Pattern], jax.Array]] = {
    "entropy": entropy,
    "normalized_entropy": normalized_entropy,
    "distance": distance,
}
"""Statistics by name: functions that return one number per query and head, `[batch, query, heads]`."""


def offsets(weights: jax.Array) -> jax.Array:
    """Return the position `[query, key]` of key relative to query, for `weights [batch, heads, query, key]`."""
    query, key = weights.shape[2:]
    return jnp.arange(key)[None, :] - jnp.arange(query)[:, None]
