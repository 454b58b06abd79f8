"""Checks of an attention layer: of its arrays, of its output projection, and of the layer alone on random inputs."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.site import AttentionSite, at_path, kept_along, output_matrix, parameters, size_of

ROUNDING = 0.03
"""Largest difference of two results that should be equal, as a share of them: bfloat16 rounds as coarsely."""

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

KNOWN = ("flax.", "tunix.")
"""Packages whose layers of attention hold one head after another, as tests show."""

TOKENS = 3
"""Tokens that a layer alone is called with."""


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
        whole, nothing = (np.asarray(projection(array), np.float64) for array in (inputs, 0 * inputs))
        parts = np.einsum("btnh,nhd->btd", contexts, matrix)
        if whole.shape != parts.shape or not _close(whole - nothing, parts):
            raise HeadjaxError(f"the heads' parts of {site.kernel} do not sum to what {site.output} computes")


def check_alone(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` unless a head depends on its own parameters alone: a flat kernel may hold another order.

    W_O of one head alone must leave what the layer computes with all parameters of the other heads at 0.
    """
    if not _has_values(parameter(layer, site.kernel)):
        return
    # Of several heads the second, which reads the first KV head where groups lie one after another, and only there.
    query = np.arange(site.heads) == min(1, site.heads - 1)
    key = np.arange(site.kv_heads) == site.groups[query]
    every = [path for path, _, _ in site.held()]
    with jax.ensure_compile_time_eval():
        try:
            alone, closed, nothing = (
                _called(_masked(layer, site, paths, query & shown, key), site)
                for paths, shown in ((site.rows, True), (every, True), (site.rows, False))
            )
        except Exception as error:
            if site.fused:
                raise HeadjaxError(
                    f"{site.fused[0][0]} may hold queries, keys and values in several orders, and the layer cannot be "
                    f"called with inputs, a mask and positions alone to tell: {_first_line(error)}"
                ) from None
            return  # queries, keys and values apart have one usual order
    if not _close(closed - nothing, alone - nothing):
        raise HeadjaxError(
            f"its heads of {site.head_dim} do not lie one after another in its flat kernels, or depend on each other"
        )


def check_pruned(layer: nnx.Module, pruned: nnx.Module, site: AttentionSite, query: np.ndarray) -> None:
    """Raise `HeadjaxError` unless a pruned layer computes what the whole one does with gates, if it has values."""
    if not _has_values(parameter(layer, site.kernel)):
        return
    left = int(query.sum())
    with jax.ensure_compile_time_eval():
        try:
            gated, nothing = (
                _called(_masked(layer, site, site.rows, kept, np.ones(site.kv_heads, bool)), site)
                for kept in (query, np.zeros_like(query))
            )
        except Exception as error:
            cls, kernel = type(layer), jnp.asarray(parameter(layer, site.kernel))
            if not cls.__module__.startswith(KNOWN) and len(kernel.devices()) == 1:
                warnings.warn(
                    f"prune: a pruned {cls.__qualname__} is not checked, as it cannot be called with inputs, a mask "
                    f"and positions alone ({_first_line(error)}); compare the model with headjax.gated",
                    stacklevel=2,
                )
            return
        try:
            found = _called(_first(pruned, site), site)
        except Exception as error:
            raise HeadjaxError(
                f"{site.path}: the code of {type(layer).__qualname__} does not run with {left} of its {site.heads} "
                f"heads: {_first_line(error)}"
            ) from None
    if not _close(found - nothing, gated - nothing):
        raise HeadjaxError(
            f"{site.path}: without some heads it computes something else than with their gates at 0: its heads depend "
            f"on each other, or a parameter holds them in another order"
        )


def _has_values(kernel: Any) -> bool:
    """Return whether an array can be computed with: not a shape alone, and not within a trace."""
    return isinstance(kernel, jax.Array | np.ndarray) and not isinstance(kernel, jax.core.Tracer)


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max())


def _first(module: Any, site: AttentionSite) -> Any:
    """Return a copy of a module of the site; of its first layer, where layers lie along an axis in front."""
    graph, state = nnx.split(module, graph=True)
    stacked = site.layers is not None
    return nnx.merge(graph, jax.tree.map(lambda array: array[0] if stacked and array.ndim else array, state))


def _masked(layer: nnx.Module, site: AttentionSite, paths: Iterable[str], query: np.ndarray, key: np.ndarray) -> Any:
    """Return a copy of a layer in which some parameters are 0 for all but the kept heads."""
    copy = _first(layer, site)
    for path, axis, kinds in site.held():
        if path in paths:
            variable = at_path(copy, path)
            array = variable[...]
            kept = kept_along(site, path, array.shape, axis, kinds, query, key)
            along = [-1 if place == axis else 1 for place in range(-array.ndim, 0)]
            variable.set_value(array * kept.reshape(along).astype(array.dtype))
    return copy


def _called(layer: Any, site: AttentionSite) -> np.ndarray:
    """Return a layer's output for a few random tokens, with the first of some usual arguments that it takes."""
    layer.eval()
    kernel = parameter(layer, site.kernel)
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(1, TOKENS, kernel.shape[-1])), kernel.dtype)
    arguments = list(inspect.signature(type(layer).__call__).parameters.values())[2:]
    needed = [one.name for one in arguments if one.default is one.empty and one.kind not in VARIADIC]
    failed = list[Exception]()
    for usual in _usual_arguments(needed):
        try:
            return _output(layer(inputs, **usual), inputs)
        except Exception as error:
            failed.append(error)
    raise failed[-1]


def _usual_arguments(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield None for all but `deterministic`, then masks and positions of several shapes for arguments so named."""
    fixed = {name: True if name == "deterministic" else None for name in names}
    masks, positions = ([name for name in fixed if word in name] for word in ("mask", "pos"))
    causal, counted = jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), jnp.arange(TOKENS)
    yield fixed
    if masks or positions:
        for front, batch in itertools.product(((1, 1), (1,), ()), ((1,), ())):
            found = dict.fromkeys(masks, causal.reshape(*front, TOKENS, TOKENS))
            yield fixed | dict.fromkeys(positions, counted.reshape(*batch, TOKENS)) | found


def _output(results: Any, inputs: jax.Array) -> np.ndarray:
    """Return the result of a layer that has the shape of its inputs."""
    shaped = (result for result in jax.tree.leaves(results) if result.shape == inputs.shape)
    found = next((np.asarray(result, np.float64) for result in shaped), None)
    if found is None:
        raise TypeError("none of its results has the shape of its inputs")
    if not np.isfinite(found).all():
        raise FloatingPointError("its results are not finite")
    return found


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
