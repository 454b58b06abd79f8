"""Find the attention layers of any Flax module, and check each finding."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.modules import declared
from headjax.core.tensors import flatten
from headjax.heads.checks import check_alone, check_arrays, check_projection, layers_in_front
from headjax.heads.site import HEAD_IDS, ROOT, AttentionSite, Sites, at_path, is_within, parameters
from headjax.nn.module import AttentionModule, NoHeadsAttention

KERNELS = ("kernel", "w", "weight")
"""Names of a projection's weight."""

FLAT = {
    "q": ("query", "q_proj", "q", "wq", "to_q", "query_proj"),
    "k": ("key", "k_proj", "k", "wk", "to_k", "key_proj"),
    "v": ("value", "v_proj", "v", "wv", "to_v", "value_proj"),
    "kv": ("kv", "kv_proj", "wkv", "to_kv"),
    "qkv": ("c_attn", "qkv", "qkv_proj", "wqkv", "Wqkv", "to_qkv", "in_proj", "query_key_value"),
    "o": (
        "out", "o_proj", "out_proj", "output", "wo", "Wo", "to_out", "o", "output_proj", "proj", "c_proj", "dense",
    ),
}  # fmt: skip
"""Names of projections whose weights are flat, `[width, heads * head_dim]`, by the kinds of heads that they hold."""

HEADS = ("num_heads", "num_query_heads", "num_attention_heads", "n_heads", "n_head", "heads")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads")
"""Names by which attention layers say how many query heads and KV heads they have."""

CONFIGS = ("config", "cfg")
"""Names by which layers hold their configs."""

ENDS = (("in_features", "out_features"), ("in_features_shape", "out_features_shape"))
"""Names of the sizes of a projection, which together are the shape of its weight."""

FORMS = (("q", "k", "v"), ("q", "kv"), ("qkv",))
"""Flat projections that make up an attention layer, beside `o`."""

REGISTER = "say where its heads lie: headjax.register_attention(cls, view)"

HeadAxes = dict[str, tuple[int, str]]
"""By parameter, the axis of its heads and their kinds."""

View = Callable[[Any], AttentionSite]
"""Function of an attention layer that returns its site."""

_REGISTRY: dict[type[nnx.Module], View] = {}

ADAPTERS: dict[type[nnx.Module], Any] = {}
"""By class, the adapter that stands in its place, see `headjax.conversion.replacing.AttentionAdapter`."""


def register_attention(
    cls: type[nnx.Module], view: View | None = None, *, adapter: type[nnx.Module] | None = None
) -> None:
    """Declare where the heads of an attention class lie; this class and those derived from it are then found.

        >>> class Mine(nnx.MultiHeadAttention):
        ...     pass
        >>> def view(layer):
        ...     heads = {"query.kernel": -2, "out.kernel": -3}
        ...     return headjax.AttentionSite(
        ...         heads=layer.num_heads, kv_heads=layer.num_heads, head_dim=layer.head_dim,
        ...         output="out", kernel="out.kernel", query=heads, key={"key.kernel": -2, "value.kernel": -2},
        ...     )
        >>> headjax.register_attention(Mine, view)
        >>> layer = Mine(4, 16, use_bias=False, decode=False, rngs=nnx.Rngs(0))
        >>> headjax.attention_sites(layer)[0].heads
        4

    Args:
        cls: Class of the attention layer, an `nnx.Module`.
        view: Function of a layer of this class that returns its `AttentionSite`. What it says is checked against the
            layer's arrays, and against the output projection's results. None where `attention_sites` finds it without.
        adapter: Subclass of `headjax.AttentionAdapter`, by which `replace_attention` replaces layers of this class.

    Raises:
        HeadjaxError: the class is no `nnx.Module`.
    """
    if not (isinstance(cls, type) and issubclass(cls, nnx.Module)):
        raise HeadjaxError(f"cls: expected a subclass of nnx.Module, got {cls!r}")
    if view is not None:
        _REGISTRY[cls] = view
    if adapter is not None:
        ADAPTERS[cls] = adapter


def attention_sites(model: nnx.Module, *, strict: bool = False) -> Sites:
    """Return the attention layers of any `nnx.Module`, in the order of their paths.

    A layer is found as a module of headjax, by `register_attention`, or by its projections. Those have einsum strings,
    kernels `[width, heads, head_dim]` and `[heads, head_dim, width]` as in `nnx.MultiHeadAttention`, or flat kernels
    beside an attribute such as `num_heads`. The finding is checked: the output projection must compute the sum over
    heads of context_h W_O^h, parameters must have the shapes of this number of heads, and attributes must not
    contradict them. A layer that appears at several places is listed once.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> sites = headjax.attention_sites(layer)
        >>> [(site.path, site.heads, site.head_dim) for site in sites]
        [('.', 4, 4)]

    A warning names layers that are not recognised: further ones of the same classes, and those with projections under
    usual names. `score_heads` sees any attention that its loss computes.

    Args:
        model: Any module; it is not changed.
        strict: Whether layers that are not recognised are an error.

    Raises:
        HeadjaxError: there is no attention layer, or what was found in one contradicts itself; the message names the
            layer and says how to register its class.
    """
    sites = find_sites(model)
    others = {path: type(at_path(model, path)).__qualname__ for path in not_recognised(model, sites)}
    report_unrecognised(others, strict)
    return sites


def find_sites(model: nnx.Module) -> Sites:
    """Return the attention layers that are recognised, see `attention_sites`."""
    sites = sites_within(model)
    if not sites and not hasattr(model, "named_sites"):
        raise HeadjaxError(
            f"model: {type(model).__name__} has no attention layer; looked for modules of headjax, registered classes, "
            "nnx.MultiHeadAttention, einsum projections (BTNH,NHD->BTD), kernels [heads, head_dim, width], and flat "
            "kernels, apart or as one c_attn, beside a num_heads; register the class of your attention: "
            "headjax.register_attention(cls, view)"
        )
    return sites


def not_recognised(model: nnx.Module, sites: Sites) -> Iterator[str]:
    """Yield the paths of modules that look like attention layers, and that no site has to do with."""
    recognised = [site.path for site in sites]
    classes = {type(at_path(model, path)) for path in recognised}
    for parts, module in nnx.iter_modules(model, graph=True):
        path = ".".join(map(str, parts)) or ROOT
        children = {name for name, entry in vars(module).items() if isinstance(entry, nnx.Module | nnx.Variable)}
        kinds = {kinds for kinds, names in FLAT.items() if children & {*names} - {"in_proj"}}  # Mamba's, too
        looks = type(module) in classes or any(kinds.issuperset(form) for form in FORMS)
        if looks and not any(path == site or is_within(path, site) or is_within(site, path) for site in recognised):
            yield path


def report_unrecognised(layers: Mapping[str, str], strict: bool, advice: str = REGISTER) -> None:
    """Warn of attention layers that are not recognised, by path with their classes; an error where `strict`."""
    if not layers:
        return
    named = [f"{path} ({about})" if about else path for path, about in layers.items()]
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    text = f"model: attention in {', '.join(named[:8])}{more} is not recognised, and is left out; {advice}"
    if strict:
        raise HeadjaxError(text)
    warnings.warn(text, stacklevel=3)


def sites_within(model: nnx.Module) -> Sites:
    """Return the sites of a module; there may be none."""
    modules, sites = dict(nnx.iter_modules(model, graph=True)), list[AttentionSite]()
    for parts, layer in modules.items():
        inner = parts and isinstance(modules.get(parts[:-1]), AttentionModule)  # the formulation inside another one
        if inner or isinstance(layer, NoHeadsAttention):
            continue
        path = ".".join(map(str, parts)) or ROOT
        try:
            site = _checked_site(layer, path)
        except HeadjaxError as error:
            raise HeadjaxError(
                f"{path}: {str(error).removeprefix(f'{path}: ')}; say where its heads lie: "
                f"headjax.register_attention({type(layer).__qualname__}, view)"
            ) from None
        if site is None:
            continue
        if any("." in str(part) for part in parts):
            raise HeadjaxError(
                f"{path}: dots separate names in a path, so no attribute or key may have one in its name"
            )
        sites.append(site)
    named = getattr(model, "named_sites", None)
    return tuple(sorted(sites, key=lambda site: site.places[0]) if named is None else named(sites))


def _checked_site(layer: nnx.Module, path: str) -> AttentionSite | None:
    """Return the site of a layer; None where it is no attention, an error where what it says contradicts itself."""
    view = _view_of(layer)
    site = (view or _by_projections)(layer)
    flat = site is None
    site = _by_names(layer) if site is None else site
    if site is None:
        return None
    site = dataclasses.replace(site, path=path, layers=layers_in_front(layer, site))
    kept = vars(layer).get(HEAD_IDS, ())
    if len(kept) == math.prod(site.shape):
        site = dataclasses.replace(site, ids=kept)
    if view is not _headjax_site:
        check_arrays(layer, site)
        check_projection(layer, site)
    if flat:
        check_alone(layer, site)
    for names, number, what in ((HEADS, site.heads, "heads"), (KV_HEADS, site.kv_heads, "KV heads")):
        for name in names if view is None else ():
            if (attribute := _number(layer, name)) not in (None, number):
                raise HeadjaxError(f"its {name} says {attribute}, and its arrays hold {number} {what}")
    return site


def _view_of(layer: nnx.Module) -> Callable[[Any], AttentionSite | None] | None:
    """Return the function from a layer to its site, by the layer's class; None where no class is known."""
    if isinstance(layer, AttentionModule):
        return _headjax_site
    for cls in type(layer).__mro__:
        if cls in _REGISTRY:
            return _REGISTRY[cls]
        if re.fullmatch(r"tunix\.models\.\w+\.model", cls.__module__) and cls.__name__ == "Attention":
            # Their `num_heads` returns the width, which discovery refuses.
            return _by_projections
    return None


def _headjax_site(layer: Any) -> AttentionSite:
    # Names of axes are those of the formulation: weights and low-rank matrices that a user sets need not name theirs.
    query, key = list[tuple[str, int]](), list[tuple[str, int]]()
    ours = flatten(declared(layer.kind.module(layer.width, layer.memory_width)))
    weights = {name.replace("/", "."): weight for name, weight in flatten(declared(layer)).items()}
    for name in weights:
        plain = name.replace("base_module.", "").replace(".", "/")
        axes = ours[plain].out_sharding if plain in ours else ()
        for axis, entries in (("heads", query), ("kv_heads", key)):
            if axis in axes:
                entries.append((name, axes.index(axis) - len(axes)))
    kernel = next(name for name in weights if f".{name}".endswith(("output.kernel", "base_module.kernel")))
    heads, size, _ = weights[kernel].shape[-3:]
    kv_heads, output = len(set(layer.groups)), kernel[: kernel.index("output") + len("output")]
    query += [(path, -2) for path in _low_rank(layer, kernel, -2)]
    axes_of: dict[str, Any] = {"output": output, "kernel": kernel, "query": tuple(query), "key": tuple(key)}
    named: dict[str, Any] = {"ids": layer.ids, "kv_index": layer.groups}
    return AttentionSite(heads=heads, kv_heads=kv_heads, head_dim=size, **named, **axes_of)


class Projection(NamedTuple):
    """Attribute of a layer that maps to heads or from heads."""

    name: str
    kernel: str  # path of its weight within the layer
    shape: tuple[int, ...]  # of the weight, without an axis of layers
    inputs: bool  # whether it maps from heads
    axis: int  # of the heads, counted from the last
    parts: int = 1  # maps along an axis of their own: [3, heads, width, head_dim] is three
    letter: str = ""  # of the heads in the einsum string


def _by_projections(layer: nnx.Module) -> AttentionSite | None:
    """Return the site of a layer with a projection from heads and at least three to heads (queries, keys, values)."""
    projections = list(filter(None, (_projection(name, child) for name, child in vars(layer).items())))
    outputs = [projection for projection in projections if projection.inputs]
    others = [projection for projection in projections if not projection.inputs]
    if len(outputs) != 1 or not others:
        return None
    output = outputs[0]
    heads, size = output.shape[output.axis], output.shape[output.axis + 1]
    head_axes, parts, kv_heads = {output.kernel: (output.axis, "q")}, 0, heads
    for projection in others:
        count = projection.shape[projection.axis]
        if len(others) == 1 and projection.parts == 1:  # queries, keys and values in one
            after, within = count > heads and (count - heads) % 2 == 0, projection.shape[-1] == 3 * size
            kv_heads = (count - heads) // 2 if after else heads
            head_axes[projection.kernel] = (projection.axis, "qkv" if after else "q")
            parts = 3 if after or within else 1
            continue
        same = count == heads and (not output.letter or projection.letter == output.letter)
        head_axes[projection.kernel] = (projection.axis, "q" if same else "k")
        kv_heads = kv_heads if same else count
        parts += projection.parts
    return _with_rest(layer, (heads, kv_heads, size), output, head_axes) if parts >= 3 else None


def _projection(name: str, child: Any) -> Projection | None:
    """Return the role of a layer's attribute, if it is a projection to heads or from heads."""
    weight = _weight(child)
    if weight is None:
        return None
    path, shape = f"{name}.{weight}", at_path(child, weight)[...].shape
    einsum = str(getattr(child, "einsum_str", "")).replace(" ", "")
    read = re.fullmatch(r"([a-zA-Z.]+),([a-zA-Z]+)->([a-zA-Z.]+)", einsum)
    if read is not None:
        inputs, weight_axes, outputs = read.groups()
        shape = shape[-len(weight_axes) :]
        summed = "".join(letter for letter in weight_axes if letter in inputs and letter not in outputs)
        new = [letter for letter in weight_axes if letter in outputs and letter not in inputs]
        if len(summed) == 2 and len(new) == 1 and weight_axes.startswith(summed):
            return Projection(name, path, shape, True, -3, letter=summed[0])
        if len(summed) == 1 and len(new) >= 2 and outputs[-2] in new and outputs[-1] in new:
            sizes = dict(zip(weight_axes, shape, strict=False))
            parts = math.prod(sizes.get(letter, 1) for letter in new if letter not in outputs[-2:])
            return Projection(
                name, path, shape, False, weight_axes.index(outputs[-2]) - len(weight_axes), parts, outputs[-2]
            )
        return None
    attributes = vars(child)
    ins, outs = (
        next((attributes[name] for name in names if name in attributes), None) for names in zip(*ENDS, strict=True)
    )
    if not (isinstance(ins, tuple) and isinstance(outs, tuple)):
        return None
    shape = shape[-len(ins) - len(outs) :]
    if (len(ins), len(outs)) == (2, 1):
        return Projection(name, path, shape, True, -3)
    inward = len(ins) == 1 and len(outs) in (2, 3)
    return Projection(name, path, shape, False, -2, math.prod(outs[:-2])) if inward else None


def _weight(child: Any) -> str | None:
    """Return the path of a projection's weight, within the one that a `nnx.LoRA` is around; None elsewhere."""
    if not isinstance(child, nnx.Module):
        return None
    if isinstance(child, nnx.LoRA):
        inner = _weight(child.base_module)
        return None if inner is None else f"base_module.{inner}"
    return next((name for name in KERNELS if isinstance(vars(child).get(name), nnx.Variable)), None)


def _number(layer: Any, name: str) -> int | None:
    """Return the positive integer in an attribute or a property; None without one, or where it raises an error."""
    try:
        value = getattr(layer, name, None)
    except Exception:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _by_names(layer: nnx.Module) -> AttentionSite | None:
    """Return the site of a layer with flat kernels under the names of `FLAT` and an attribute such as `num_heads`."""
    by_kinds = dict[str, Projection]()
    for kinds, name in ((kinds, name) for kinds, names in FLAT.items() for name in names):
        child, axis = vars(layer).get(name), -2 if kinds == "o" else -1
        weight = _weight(child)
        if kinds not in by_kinds and weight is not None and isinstance(getattr(child, "in_features", 0), int):
            shape = at_path(child, weight)[...].shape[-2:]
            by_kinds[kinds] = Projection(name, f"{name}.{weight}", shape, kinds == "o", axis)
    form = next((form for form in FORMS if {*form, "o"} <= by_kinds.keys()), None)
    holders = [layer, *(vars(layer)[name] for name in CONFIGS if name in vars(layer))]
    heads = next(filter(None, (_number(holder, name) for holder in holders for name in HEADS)), None)
    if form is None or heads is None:
        return None
    rows, columns = by_kinds["o"].shape[0], sum(by_kinds[kinds].shape[-1] for kinds in form)
    size = rows // heads
    kv_heads = (columns // max(size, 1) - heads) // 2
    if rows % heads or kv_heads < 1 or columns != (heads + 2 * kv_heads) * size:
        raise HeadjaxError(f"{heads} heads do not divide its kernels of {rows} rows and {columns} columns")
    head_axes = {by_kinds["o"].kernel: (-2, "q")} | {by_kinds[kinds].kernel: (-1, kinds) for kinds in form}
    return _with_rest(layer, (heads, kv_heads, size), by_kinds["o"], head_axes)


def _with_rest(
    layer: nnx.Module, numbers: tuple[int, int, int], output: Projection, head_axes: HeadAxes
) -> AttentionSite:
    """Return the site with the biases of its projections, biases of the layer itself and a cache in its attributes."""
    (heads, kv_heads, head_dim), weights = numbers, {path.rpartition(".")[0]: path for path in head_axes}
    others = {factor: along for path, along in head_axes.items() for factor in _low_rank(layer, path, along[0])}
    for path, variable in parameters(layer):
        holder, _, name = path.rpartition(".")
        is_bias = holder == "" and re.fullmatch("(q|k|v|query|key|value)_?bias", name) is not None
        if holder == "" and name in ("cached_key", "cached_value"):
            others[path] = (-2, "k")
        elif path not in head_axes and holder.partition(".")[0] != output.name and (is_bias or holder in weights):
            axis, kinds = (-1, name[0]) if is_bias else head_axes[weights[holder]]
            last = head_dim if axis == -1 else at_path(layer, weights[holder])[...].shape[-1]
            number, shape = sum(heads if kind == "q" else kv_heads for kind in kinds), variable[...].shape
            ends = ((-2, (number, last)), (-1, (number * head_dim,)))
            place = next((axis for axis, end in ends if shape[axis:] == end), None)
            others |= {} if place is None else {path: (place, kinds)}
    head_axes = head_axes | others
    return AttentionSite(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        output=output.name,
        kernel=output.kernel,
        query=tuple((path, axis) for path, (axis, kinds) in head_axes.items() if kinds == "q"),
        key=tuple((path, axis) for path, (axis, kinds) in head_axes.items() if kinds in ("k", "v")),
        fused=tuple((path, along) for path, along in head_axes.items() if len(along[1]) > 1),
    )


def _low_rank(layer: nnx.Module, weight: str, axis: int) -> Iterator[str]:
    """Yield the paths of the `nnx.LoRA` factors of a projection that hold its heads, which lie along `axis`."""
    projection, factor = weight.partition(".")[0], "lora_a" if axis == -2 else "lora_b"
    for parts, module in nnx.iter_modules(at_path(layer, projection), graph=True):
        if isinstance(module, nnx.LoRA):
            yield ".".join(map(str, (projection, *parts, factor)))
