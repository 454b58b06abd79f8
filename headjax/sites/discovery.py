"""Find the attention layers of any Flax module, and check what was found before it is believed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.attention.module import AttentionModule
from headjax.core.errors import HeadjaxError
from headjax.core.modules import declared
from headjax.core.tensors import flatten
from headjax.models.model import Model
from headjax.sites.site import ROOT, AttentionSite, Sites, View, at_path, output_matrix, parameters, size_of

HEADS = ("num_heads", "num_query_heads", "num_attention_heads", "n_heads", "n_head", "heads")
"""Names by which attention layers say how many query heads they have."""

KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads")
"""Names by which they say how many key and value heads."""

KERNELS = ("kernel", "w", "weight")
"""Names of a projection's weight."""

FLAT = {
    "query": ("query", "q_proj", "q", "wq", "to_q", "query_proj"),
    "key": ("key", "k_proj", "k", "wk", "to_k", "key_proj"),
    "value": ("value", "v_proj", "v", "wv", "to_v", "value_proj"),
    "output": ("out", "o_proj", "out_proj", "output", "wo", "to_out", "o", "output_proj", "proj", "dense"),
}
"""Names of projections whose weights are flat, `[width, heads * head_dim]`."""

LOOKED_FOR = (
    "modules of headjax, registered classes, nnx.MultiHeadAttention, einsum projections (BTNH,NHD->BTD), kernels "
    "[heads, head_dim, width], and flat kernels beside a num_heads"
)

_REGISTRY: dict[type[nnx.Module], View] = {}


def register_attention(cls: type[nnx.Module], view: View) -> None:
    """Say where the heads of an attention class of your own lie; this class and those derived from it are then found.

        def view(layer):
            return headjax.AttentionSite(
                heads=layer.heads, kv_heads=layer.heads, head_dim=layer.size, output="mix", kernel="mix.kernel",
                query={"inputs.kernel": -2, "mix.kernel": -3},
            )

        headjax.register_attention(MyAttention, view)

    Args:
        cls: Class of the attention layer, an `nnx.Module`.
        view: Function of a layer of this class that returns its `AttentionSite`. What it says is checked against the
            layer's arrays, and against the output projection's results.

    Raises:
        HeadjaxError: the class is no `nnx.Module`.
    """
    if not (isinstance(cls, type) and issubclass(cls, nnx.Module)):
        raise HeadjaxError(f"cls: expected a subclass of nnx.Module, got {cls!r}")
    _REGISTRY[cls] = view


def attention_sites(model: nnx.Module) -> Sites:
    """Return the attention layers of any `nnx.Module`, in the order of their paths.

    A layer is found as a module of headjax, by `register_attention`, or by its projections: their einsum strings,
    kernels `[width, heads, head_dim]` and `[heads, head_dim, width]` as in `nnx.MultiHeadAttention`, or flat kernels
    beside an attribute such as `num_heads`. The finding is checked: the sum over heads of context_h W_O^h must be what
    the output projection computes, parameters must have the shapes of so many heads, and attributes must not contradict
    them. A layer that appears at several places is listed once.

    Args:
        model: Any module; it is not changed.

    Raises:
        HeadjaxError: there is no attention layer, or what was found in one contradicts itself; the message names the
            layer and says how to register its class.
    """
    if isinstance(model, Model):
        raise HeadjaxError(
            "model: a headjax model names its heads by head stack and layer: headjax.all_heads(model.config)"
        )
    sites = tuple(sorted(_found(model), key=lambda site: site.places[0]))
    if not sites:
        raise HeadjaxError(
            f"model: {type(model).__name__} has no attention layer; looked for {LOOKED_FOR}; register the class of "
            "your attention: headjax.register_attention(cls, view)"
        )
    return sites


def _found(model: nnx.Module) -> Iterator[AttentionSite]:
    modules = dict(nnx.iter_modules(model, graph=True))
    for parts, layer in modules.items():
        if parts and isinstance(modules.get(parts[:-1]), AttentionModule):
            continue  # the formulation inside another one
        path = ".".join(map(str, parts)) or ROOT
        view = _view_of(layer)
        try:
            site = _discovered(layer) if view is None else _viewed(view, layer)
            if site is None:
                continue
            site = dataclasses.replace(site, path=path)
            site = dataclasses.replace(site, layers=_layers(layer, site))
            _check(layer, site)
            if view is None:
                _check_attributes(layer, site)
        except HeadjaxError as error:
            raise HeadjaxError(
                f"{path}: {str(error).removeprefix(f'{path}: ')}; say where its heads lie: "
                f"headjax.register_attention({type(layer).__qualname__}, view)"
            ) from None
        yield site


def _viewed(view: View, layer: nnx.Module) -> AttentionSite:
    """Return what a view says; an error of its own, such as an attribute that the layer lacks, is one line."""
    try:
        return view(layer)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, HeadjaxError):
            raise
        raise HeadjaxError(f"its view fails: {type(error).__name__}: {error}") from None


def _view_of(layer: nnx.Module) -> View | None:
    """Return the view of headjax's own modules, of a registered class, or of a known one; None where none is known."""
    if isinstance(layer, AttentionModule):
        return _own
    for cls in type(layer).__mro__:
        if cls in _REGISTRY:
            return _REGISTRY[cls]
        if re.fullmatch(r"tunix\.models\.\w+\.model", cls.__module__) and cls.__name__ == "Attention":
            # Their `num_heads` returns the width, which discovery refuses.
            return _tunix
    return None


def _tunix(layer: Any) -> AttentionSite:
    site = _by_projections(layer)
    if site is None:
        raise HeadjaxError("its projections are not those of Tunix 0.1.7")
    return site


def _own(layer: Any) -> AttentionSite:
    config, query, key = layer.config, list[tuple[str, int]](), list[tuple[str, int]]()
    weights = {name.replace("/", "."): weight for name, weight in flatten(declared(layer)).items()}
    for name, weight in weights.items():
        for axis, held in (("heads", query), ("kv_heads", key)):
            if axis in weight.out_sharding:
                held.append((name, weight.out_sharding.index(axis) - len(weight.out_sharding)))
    size: Any = getattr(config, "value_dim", None) or getattr(config, "head_dim", 0)
    kv_heads, output = len(set(config.groups)), next(name for name in weights if name.split(".")[-1] == "output")
    kinds: dict[str, Any] = {"output": "", "kernel": output, "query": tuple(query), "key": tuple(key)}
    return AttentionSite(heads=config.num_heads, kv_heads=kv_heads, head_dim=size, ids=tuple(config.ids), **kinds)


class Projection(NamedTuple):
    """Module that maps to heads or from heads.

    Attributes:
        name: Attribute of the layer.
        kernel: Path of its weight within the layer.
        shape: Shape of the weight, without an axis of layers.
        inputs: Whether it maps from heads.
        axis: Axis of the heads, counted from the last.
        letter: Letter of the heads in the einsum string; empty without one.
    """

    name: str
    kernel: str
    shape: tuple[int, ...]
    inputs: bool
    axis: int
    letter: str = ""


def _discovered(layer: nnx.Module) -> AttentionSite | None:
    return _by_projections(layer) or _by_names(layer)


def _by_projections(layer: nnx.Module) -> AttentionSite | None:
    """Return the site of a layer with a projection from heads and at least three to heads (queries, keys, values)."""
    found = [one for name, child in vars(layer).items() if (one := _projection(name, child)) is not None]
    outputs = [projection for projection in found if projection.inputs]
    others = [projection for projection in found if not projection.inputs]
    if len(outputs) != 1 or sum(_multiplicity(projection) for projection in others) < 3:
        return None
    output = outputs[0]
    heads, size = output.shape[output.axis], output.shape[output.axis + 1]
    query, key = [(output.kernel, output.axis)], []
    kv_heads = heads
    for projection in others:
        same = projection.shape[projection.axis] == heads
        if same and (not output.letter or projection.letter == output.letter):
            query.append((projection.kernel, projection.axis))
        else:
            key.append((projection.kernel, projection.axis))
            kv_heads = projection.shape[projection.axis]
    return _with_rest(layer, heads, kv_heads, size, output, query, key)


def _projection(name: str, child: Any) -> Projection | None:
    """Return what an attribute of a layer is, if it is a projection to heads or from heads."""
    weight = _weight(child)
    if weight is None:
        return None
    path, shape = f"{name}.{weight}", getattr(child, weight)[...].shape
    read = re.fullmatch(
        r"([a-zA-Z.]+),([a-zA-Z]+)->([a-zA-Z.]+)", str(getattr(child, "einsum_str", "")).replace(" ", "")
    )
    if read is not None:
        taken, own, made = read.groups()
        shape = shape[-len(own) :]
        gone = "".join(letter for letter in own if letter in taken and letter not in made)
        new = [letter for letter in own if letter in made and letter not in taken]
        if len(gone) == 2 and len(new) == 1 and own.startswith(gone):
            return Projection(name, path, shape, True, -3, gone[0])
        if len(gone) == 1 and len(new) >= 2 and made[-2] in new and made[-1] in new:
            return Projection(name, path, shape, False, own.index(made[-2]) - len(own), made[-2])
        return None
    inputs, outputs = getattr(child, "in_features", None), getattr(child, "out_features", None)
    if not (isinstance(inputs, tuple) and isinstance(outputs, tuple)):
        return None
    shape = shape[-len(inputs) - len(outputs) :]
    if (len(inputs), len(outputs)) == (2, 1):
        return Projection(name, path, shape, True, -3)
    return Projection(name, path, shape, False, -2) if (len(inputs), len(outputs)) == (1, 2) else None


def _weight(child: Any) -> str | None:
    """Return the name of a projection's weight; None for what is no projection."""
    if not isinstance(child, nnx.Module):
        return None
    return next((name for name in KERNELS if isinstance(vars(child).get(name), nnx.Variable)), None)


def _said(layer: nnx.Module, name: str) -> int | None:
    """Return the number that an attribute or a property says; None where there is none, or it cannot be computed."""
    try:
        value = getattr(layer, name, None)
    except Exception:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _multiplicity(projection: Projection) -> int:
    """Return how many maps to heads a projection holds: `[3, heads, width, head_dim]` is three."""
    return projection.shape[0] if len(projection.shape) == 4 else 1


def _by_names(layer: nnx.Module) -> AttentionSite | None:
    """Return the site of a layer with flat kernels under usual names, and the number of its heads beside them."""
    found: dict[str, Projection] = {}
    for role, names in FLAT.items():
        for name in names:
            child = vars(layer).get(name)
            weight = _weight(child)
            if weight is not None and isinstance(getattr(child, "in_features", 0), int):
                shape = getattr(child, weight)[...].shape[-2:]
                axis = -2 if role == "output" else -1
                found[role] = Projection(name, f"{name}.{weight}", shape, role == "output", axis)
                break
    heads = next((value for name in HEADS if (value := _said(layer, name))), None) if len(found) == len(FLAT) else None
    if heads is None:
        return None
    rows, columns = found["output"].shape[0], found["key"].shape[-1]
    size = rows // heads
    if rows % heads or columns % size:
        raise HeadjaxError(f"{heads} heads do not divide its kernels of {rows} rows and {columns} columns")
    query = [(found[role].kernel, found[role].axis) for role in ("output", "query")]
    key = [(found[role].kernel, -1) for role in ("key", "value")]
    return _with_rest(layer, heads, columns // size, size, found["output"], query, key)


def _with_rest(
    layer: nnx.Module,
    heads: int,
    kv_heads: int,
    size: int,
    output: Projection,
    query: list[tuple[str, int]],
    key: list[tuple[str, int]],
) -> AttentionSite:
    """Return the site with the biases of its projections, biases of the layer itself and a cache in its attributes."""
    of_query, of_key = ({path.rpartition(".")[0] for path, _ in held} for held in (query, key))
    known = dict((*query, *key))
    for path, variable in parameters(layer):
        holder, _, name = path.rpartition(".")
        own = holder == "" and re.fullmatch("(q|k|v|query|key|value)_?bias", name) is not None
        number, held = (heads, query) if holder in of_query or (own and name[0] == "q") else (kv_heads, key)
        if holder == "" and name in ("cached_key", "cached_value"):
            key.append((path, -2))
        elif path not in known and holder != output.name and (own or holder in of_query | of_key):
            shape = variable[...].shape
            axis = next(
                (axis for axis, end in ((-2, (number, size)), (-1, (number * size,))) if shape[axis:] == end), None
            )
            if axis is not None:
                held.append((path, axis))
    return AttentionSite(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        output=output.name,
        kernel=output.kernel,
        query=tuple(query),
        key=tuple(key),
    )


def _layers(layer: nnx.Module, site: AttentionSite) -> int | None:
    """Return the length of the axis of layers in front of the parameters, None without one."""
    if not site.output:
        return None
    shape = _parameter(layer, site.kernel).shape
    axis = dict(site.query).get(site.kernel)
    if axis is None:
        raise HeadjaxError(f"its query parameters do not name {site.kernel}, which holds the rows of query heads")
    if len(shape) == -axis:
        return None
    if len(shape) == -axis + 1:
        return int(shape[0])
    raise HeadjaxError(f"its {site.kernel} has shape {list(shape)}; the heads come first, or after an axis of layers")


def _parameter(layer: nnx.Module, path: str) -> Any:
    """Return the array at a path.

    Raises:
        HeadjaxError: there is none.
    """
    try:
        return at_path(layer, path)[...]
    except (KeyError, TypeError):
        raise HeadjaxError(
            f"it has no parameter {path}; it has {', '.join(name for name, _ in parameters(layer))}"
        ) from None


def _check(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` unless parameters have so many heads and the heads' parts sum to the projection's result."""
    if not site.output:
        return
    if min(site.heads, site.kv_heads, site.head_dim) < 1 or site.heads % site.kv_heads:
        raise HeadjaxError(f"{site.heads} heads of {site.head_dim} do not form {site.kv_heads} groups")
    for held, heads in ((site.query, site.heads), (site.key, site.kv_heads)):
        for path, axis in held:
            size_of(site, path, _parameter(layer, path).shape, axis, heads)
    kernel, axis = _parameter(layer, site.kernel), dict(site.query)[site.kernel]
    if kernel.shape[axis:-1] not in ((site.heads, site.head_dim), (site.heads * site.head_dim,)):
        raise HeadjaxError(
            f"its {site.kernel} has shape {list(kernel.shape)}, not {site.heads} heads of {site.head_dim}"
        )
    if not (callable(at_path(layer, site.output)) and site.kernel.startswith(f"{site.output}.")):
        raise HeadjaxError(f"its {site.output} is no module that is called and holds {site.kernel}")
    if not isinstance(kernel, jax.Array | np.ndarray) or isinstance(kernel, jax.core.Tracer):
        return  # shapes alone, or within a trace
    with jax.ensure_compile_time_eval():
        projection = at_path(layer, site.output)
        if site.layers is not None:
            graph, state = nnx.split(projection, graph=True)
            projection = nnx.merge(graph, jax.tree.map(lambda array: array[0], state))
            kernel = kernel[:1]
        matrix = np.asarray(output_matrix(site, kernel), np.float64).reshape(site.heads, site.head_dim, -1)
        contexts = np.random.default_rng(0).normal(size=(1, 2, site.heads, site.head_dim))
        shape = (1, 2, -1) if axis == -2 else contexts.shape
        inputs = jnp.asarray(contexts.reshape(shape), kernel.dtype)
        whole, nothing = (np.asarray(projection(array), np.float64) for array in (inputs, 0 * inputs))
        parts = np.einsum("btnh,nhd->btd", contexts, matrix)
        if whole.shape != parts.shape or np.abs(whole - nothing - parts).max() > ROUNDING * np.abs(parts).max():
            raise HeadjaxError(f"the heads' parts of {site.kernel} do not sum to what {site.output} computes")


ROUNDING = 0.03
"""Largest difference of a sum over heads and a projection's result, as a share of it: bfloat16 rounds as coarsely."""


def _check_attributes(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where an attribute or a property says another number of heads than the arrays."""
    for names, number, what in ((HEADS, site.heads, "heads"), (KV_HEADS, site.kv_heads, "key and value heads")):
        for name in names:
            said = _said(layer, name)
            if said not in (None, number):
                raise HeadjaxError(f"its {name} says {said}, and its arrays hold {number} {what}")
