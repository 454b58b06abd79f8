"""Checks of an attention layer: of its arrays, of its output projection, and of the layer alone on random inputs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.seam import coarsest
from headjax.heads.site import AttentionSite, at_path, kept_along, output_matrix, parameters, size_of

ROUNDING = 0.03
"""Largest difference of two results that should be equal, as a share of them, in bfloat16 and coarser types."""

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

KNOWN = ("flax.", "tunix.")
"""Packages whose layers of attention hold one head after another, as tests show."""

TOKENS = 3
"""Tokens that a layer alone is called with to see where its heads lie."""

LENGTHS = (1024, 256, 64, 16, TOKENS)
"""Tokens that a pruned layer is called with: the most that its code takes, so that windows and distances show."""

ELEMENTS = 2**20
"""Most inputs of a pruned layer, tokens times width, beyond the shorter lengths."""

Arrays = dict[str, Any]
"""Parameters that hold heads, by path."""

Kept = tuple[np.ndarray, np.ndarray]
"""Kept query heads `[heads]` and KV heads `[kv_heads]` of a layer."""


def parameter(layer: nnx.Module, path: str) -> Any:
    """Return the array at a path."""
    try:
        return at_path(layer, path)[...]
    except (KeyError, TypeError):
        raise HeadjaxError(
            f"it has no parameter {path}; it has {', '.join(name for name, _ in parameters(layer))}"
        ) from None


def layers_in_front(layer: nnx.Module, site: AttentionSite) -> int | None:
    """Return the length of the axis of layers in front of the parameters, None without one."""
    shape = parameter(layer, site.kernel).shape
    axis = dict(site.query).get(site.kernel)
    if axis is None:
        raise HeadjaxError(f"its query parameters do not name {site.kernel}, which holds the rows of query heads")
    if len(shape) == -axis:
        return None
    if len(shape) == -axis + 1:
        return int(shape[0])
    raise HeadjaxError(f"its {site.kernel} has shape {list(shape)}; the heads come first, or after an axis of layers")


def check_arrays(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` unless parameters have the shapes of this number of heads, and W_O is the projection's."""
    if min(site.heads, site.kv_heads, site.head_dim) < 1 or site.heads % site.kv_heads:
        raise HeadjaxError(f"{site.heads} heads of {site.head_dim} do not form {site.kv_heads} groups")
    for path, axis, kinds in site.held():
        if not set(kinds) <= set("qkv"):
            raise HeadjaxError(f"fused: {path}: expected the kinds q, k and v, such as 'qkv', got {kinds!r}")
        size_of(site, path, parameter(layer, path).shape, axis, site.count(kinds))
    kernel, axis = parameter(layer, site.kernel), dict(site.query)[site.kernel]
    if kernel.shape[axis:-1] not in ((site.heads, site.head_dim), (site.heads * site.head_dim,)):
        raise HeadjaxError(
            f"its {site.kernel} has shape {list(kernel.shape)}, not {site.heads} heads of {site.head_dim}"
        )
    if not (callable(at_path(layer, site.output)) and site.kernel.startswith(f"{site.output}.")):
        raise HeadjaxError(f"its {site.output} is no module that is called and holds {site.kernel}")


def check_projection(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` unless context_h W_O^h, summed over the heads, is what the output projection computes."""
    kernel = parameter(layer, site.kernel)
    if not _has_values(kernel):
        return
    with jax.ensure_compile_time_eval():
        projection = _first(at_path(layer, site.output), site)
        matrix = np.asarray(output_matrix(site, projection), np.float64)
        contexts = np.random.default_rng(0).normal(size=(1, 2, site.heads, site.head_dim))
        shape = (1, 2, -1) if dict(site.query)[site.kernel] == -2 else contexts.shape
        inputs = jnp.asarray(contexts.reshape(shape), kernel.dtype)
        output, bias = (np.asarray(projection(array), np.float64) for array in (inputs, 0 * inputs))
        parts = np.einsum("btnh,nhd->btd", np.asarray(inputs, np.float64).reshape(contexts.shape), matrix)
        rounding = _rounding(projection, lambda module: module(inputs))
        if output.shape != parts.shape or not _close(output - bias, parts, rounding):
            raise HeadjaxError(f"the heads' parts of {site.kernel} do not sum to what {site.output} computes")


def check_alone(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` unless a head depends on its own parameters alone, which shows the order of a flat kernel.

    W_O of one head alone must leave what the layer computes with all parameters of the other heads at 0.
    """
    if not _has_values(parameter(layer, site.kernel)):
        return
    # Of several heads the second, which reads the first KV head where groups lie one after another, and only there.
    query = np.arange(site.heads) == min(1, site.heads - 1)
    key = np.arange(site.kv_heads) == site.groups[query]
    with jax.ensure_compile_time_eval():
        try:
            copy = _first(layer, site)
            call = _call_of(copy, site, (TOKENS,))
            arrays = {path: parameter(copy, path) for path, _, _ in site.held()}
            alone, closed, nothing = (
                call.output(_holding(layer, site, _masked(site, arrays, paths, query & shown, key)))
                for paths, shown in ((site.rows, True), (arrays, True), (site.rows, False))
            )
        except Exception as error:
            if site.fused:
                raise HeadjaxError(
                    f"{site.fused[0][0]} may hold queries, keys and values in several orders, and the layer cannot be "
                    f"called with inputs, a mask and positions alone to tell: {_first_line(error)}"
                ) from None
            return  # queries, keys and values apart have one usual order
        rounding = _rounding(copy, call.results)
    if not _close(closed - nothing, alone - nothing, rounding):
        raise HeadjaxError(
            f"its heads of {site.head_dim} do not lie one after another in its flat kernels, or depend on each other"
        )


def check_pruned(layer: nnx.Module, pruned: nnx.Module, site: AttentionSite, rows: Iterable[Kept]) -> None:
    """Raise `HeadjaxError` unless a pruned layer computes what the whole one does with gates, if it has values.

    `rows` are the kept heads of each layer of the site. Weights of heads are drawn: with initial ones, outputs may be
    0, and logits too small to show what they depend on.
    """
    if not _has_values(parameter(layer, site.kernel)):
        return
    cls, kernel = type(layer), jnp.asarray(parameter(layer, site.kernel))
    lengths = [tokens for tokens in LENGTHS if tokens <= max(ELEMENTS // kernel.shape[-1], LENGTHS[1])]
    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        drawn = _drawn(layer, site)
        original = _holding(layer, site, drawn)
        try:
            call = _call_of(original, site, lengths)
        except Exception as error:
            if not cls.__module__.startswith(KNOWN) and len(kernel.devices()) == 1:
                warnings.warn(
                    f"prune: a pruned {cls.__qualname__} is not checked, as it cannot be called with inputs, a mask "
                    f"and positions alone ({_first_line(error)}); compare the model with headjax.gated",
                    stacklevel=2,
                )
            return
        rounding = _rounding(original, call.results)
        for kept in {row[0].tobytes(): row for row in rows}.values():  # layers that keep the same heads once
            heads = f"with {kept[0].sum()} of its {site.heads} heads"
            try:
                same = _same(call, layer, pruned, site, drawn, kept, rounding)
            except Exception as error:
                raise HeadjaxError(
                    f"{site.path}: the code of {cls.__qualname__} does not run {heads}: {_first_line(error)}"
                ) from None
            if same:
                continue
            reason = "its heads depend on each other, or a parameter holds them in another order"
            with contextlib.suppress(Exception):
                # On a single token logits change nothing.
                single = _call_of(original, site, (1,))
                if _same(single, layer, pruned, site, drawn, kept, rounding):
                    reason = (
                        "its logits depend on the number of heads or on the index of a head, as ALiBi slopes, windows "
                        "or rotary embeddings by head and some scales do"
                    )
            raise HeadjaxError(f"{site.path}: {heads} it computes something else than with gates at 0: {reason}")


def _same(
    call: _Call, layer: Any, pruned: Any, site: AttentionSite, drawn: Arrays, kept: Kept, rounding: float
) -> bool:
    """Return whether a pruned layer with drawn weights computes what the whole one does with gates at 0."""
    less = {
        path: np.compress(kept_along(site, path, drawn[path].shape, axis, kinds, *kept), drawn[path], axis)
        for path, axis, kinds in site.held()
        if path in drawn
    }
    gated, silent = (_masked(site, drawn, site.rows, row, kept[1]) for row in (kept[0], np.zeros_like(kept[0])))
    pruned_output, expected, nothing = (
        call.output(_holding(module, site, arrays))
        for module, arrays in ((pruned, less), (layer, drawn | gated), (layer, drawn | silent))
    )
    return _close(pruned_output - nothing, expected - nothing, rounding)


def _has_values(kernel: Any) -> bool:
    """Return whether an array can be computed with: not a shape alone, and not within a trace."""
    return isinstance(kernel, jax.Array | np.ndarray) and not isinstance(kernel, jax.core.Tracer)


def _close(output: np.ndarray, expected: np.ndarray, rounding: float) -> bool:
    return bool(np.abs(output - expected).max() <= rounding * np.abs(expected).max())


def _rounding(module: nnx.Module, run: Callable[[Any], Any]) -> float:
    """Return the share by which equal results may differ: sqrt(eps) of the coarsest type in which a module computes."""
    graph, state = nnx.split(module, graph=True)
    try:
        traced = jax.make_jaxpr(lambda state: jax.tree.leaves(run(nnx.merge(graph, state))))(state)
    except Exception:  # code that runs, and that cannot be traced
        return ROUNDING
    return min(ROUNDING, float(jnp.finfo(coarsest(traced.jaxpr)).eps) ** 0.5)


def _first(module: Any, site: AttentionSite) -> Any:
    """Return a copy of a module of the site, at least in float32; of its first layer, where an axis has layers."""

    def first(array: Any) -> Any:
        array = array[0] if site.layers is not None and array.ndim else array
        coarse = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
        return array.astype(jnp.float32) if coarse else array

    graph, state = nnx.split(module, graph=True)
    return nnx.merge(graph, jax.tree.map(first, state))


def _drawn(layer: nnx.Module, site: AttentionSite) -> Arrays:
    generator, weights = np.random.default_rng(0), Arrays()
    copy = _first(layer, site)
    deviation = parameter(copy, site.kernel).shape[-1] ** -0.5
    for path, _, _ in site.held():
        variable = at_path(copy, path)
        if isinstance(variable, nnx.Param) and jnp.issubdtype(variable[...].dtype, jnp.floating):
            weights[path] = generator.normal(0.0, deviation, variable[...].shape)
    return weights


def _masked(site: AttentionSite, arrays: Arrays, paths: Iterable[str], query: np.ndarray, key: np.ndarray) -> Arrays:
    """Return arrays at some paths that are 0 for all but the kept heads."""
    masked = Arrays()
    for path, axis, kinds in site.held():
        if path in paths and path in arrays:
            array = arrays[path]
            kept = kept_along(site, path, array.shape, axis, kinds, query, key)
            along = [-1 if place == axis else 1 for place in range(-array.ndim, 0)]
            masked[path] = array * kept.reshape(along).astype(array.dtype)
    return masked


def _holding(layer: nnx.Module, site: AttentionSite, arrays: Arrays) -> Any:
    copy = _first(layer, site)
    for path, array in arrays.items():
        variable = at_path(copy, path)
        variable.set_value(jnp.asarray(array, variable[...].dtype))
    return copy


class _Call(NamedTuple):
    """Arguments with which a layer alone runs."""

    inputs: jax.Array
    others: dict[str, Any]

    def results(self, layer: Any) -> Any:
        layer.eval()
        return layer(self.inputs, **self.others)

    def output(self, layer: Any) -> np.ndarray:
        """Return the result that has the shape of the inputs."""
        results = (result for result in jax.tree.leaves(self.results(layer)) if result.shape == self.inputs.shape)
        output = next((np.asarray(result, np.float64) for result in results), None)
        if output is None:
            raise TypeError("none of its results has the shape of its inputs")
        if not np.isfinite(output).all():
            raise FloatingPointError("its results are not finite")
        return output


def _call_of(layer: Any, site: AttentionSite, lengths: Iterable[int]) -> _Call:
    """Return the first call with which a layer runs: random tokens, and usual arguments that it takes."""
    kernel, failed = parameter(layer, site.kernel), list[Exception]()
    arguments = list(inspect.signature(type(layer).__call__).parameters.values())[2:]
    needed = [each.name for each in arguments if each.default is each.empty and each.kind not in VARIADIC]
    for tokens in lengths:
        inputs = jnp.asarray(np.random.default_rng(0).normal(size=(1, tokens, kernel.shape[-1])), kernel.dtype)
        for others in _usual_arguments(needed, tokens):
            call = _Call(inputs, others)
            try:
                call.output(layer)
            except Exception as error:
                failed.append(error)
            else:
                return call
    raise failed[-1]


def _usual_arguments(names: Iterable[str], tokens: int) -> Iterator[dict[str, Any]]:
    """Yield None for all but `deterministic`, then masks and positions of several shapes for arguments so named."""
    fixed = {name: True if name == "deterministic" else None for name in names}
    masks, positions = ([name for name in fixed if word in name] for word in ("mask", "pos"))
    causal, numbers = jnp.tril(jnp.ones((tokens, tokens), bool)), jnp.arange(tokens)
    yield fixed
    if masks or positions:
        for front, batch in itertools.product(((1, 1), (1,), ()), ((1,), ())):
            named = dict.fromkeys(masks, causal.reshape(*front, tokens, tokens))
            yield fixed | dict.fromkeys(positions, numbers.reshape(*batch, tokens)) | named


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
