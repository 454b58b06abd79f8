"""Remove heads and their parameters from any model: named ones, or a share of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.checks import check_pruned
from headjax.heads.discovery import CONFIGS, ENDS, HEADS, KV_HEADS, find_sites
from headjax.heads.head_id import HeadId, named_heads, position
from headjax.heads.ordering import part_of
from headjax.heads.site import (
    HEAD_IDS,
    ROOT,
    AttentionSite,
    Sites,
    at_path,
    cuts_itself,
    kept_along,
    parameters,
    put_at,
    require_heads,
)
from headjax.heads.surgery import LayerModule, map_attention, regroups
from headjax.mesh.mesh import on_automatic_axes, take
from headjax.models.model import Model
from headjax.nn import CollaborativeAttention
from headjax.nn.module import AttentionModule

M = TypeVar("M", bound=nnx.Module)

PERCENTAGES = tuple(range(5, 101, 5))
"""5, 10, ..., 100: the steps of Michel et al.'s BERT experiments."""


def percent_steps(total: int, percentages: Iterable[int] = PERCENTAGES) -> list[int]:
    """Return floor(total * p / 100) for each p: 7, 14, 21, 28, 36, ..., 144 of 144 (Michel et al.'s code for BERT)."""
    return [total * percentage // 100 for percentage in percentages]


USUAL = {
    "heads": HEADS,
    "kv_heads": KV_HEADS,
    "heads // kv_heads": ("n_rep", "num_key_value_groups", "num_queries_per_kv", "queries_per_kv", "group_size"),
    "heads * head_dim": ("qkv_features", "inner_dim", "all_head_size"),
}
"""Names of the numbers of heads in attention layers and their configs, by the words of `AttentionSite.sizes`."""

USE_SHARE = "give an order of heads and a share=, which takes whole KV groups"


def prune(model: M, heads: Iterable[HeadId | str], *, share: float | None = None) -> M:
    """Return the model without these heads, or without the first heads of an order until a share of all is gone.

    Their slices of every parameter with a head axis (W_Q, W_K, W_V, their biases, the rows of W_O, ...) are removed;
    output biases stay. The result equals the model with these heads' gates at 0, up to the rounding of a shorter sum.
    The model handed in stays as it is.

    Kept heads keep their original numbers. In a headjax model a layer may lose its last head, and the removal is added
    to the history. Layers that share their parameters (ALBERT) lose a head at every depth.

    Any other `nnx.Module` becomes a model of the same class, whose static sizes (`num_heads`, `num_kv_heads`, `n_rep`,
    shapes of projections, configs) are in step with the smaller arrays. Layers may differ in their numbers of heads
    where they are separate modules. A KV head goes with the last query head that reads it; the others must serve equal
    numbers of query heads, because such code reshapes by heads // kv_heads.

    With `share`, query heads that read one KV head go together, by the mean of their places in the order, as many such
    groups as fit. Where the code of a Flax model needs equal groups, the rest of the share goes as one head of every
    group of a layer; layers along one axis lose equal numbers, and every layer keeps a head. A warning says why fewer
    heads go than the share asks for.

        >>> print(headjax.prune(headjax.demo_model(), ["decoder/0/0", "decoder/3/4"]))
        Model: decoder, width 128, output tied
          heads: decoder 30 in 4 layers
          parameters: 1,071,776 (float32)
          tokenizer: yes; history: import, prune

    Args:
        model: Model to prune.
        heads: Heads to remove, as `HeadId`s or as text: `encoder/3/7`, or `layers.3.attn/7` of a Flax model. With
            `share`, all heads in the order of their removal (`order_heads`).
        share: Share of all heads to remove, from 0 to 1; None removes exactly `heads`.

    Raises:
        HeadjaxError: A head does not exist (any more), or the model's code cannot hold what would be left; the message
            names the head or the layer. Nothing is removed then.
    """
    chosen = heads if share is None else part_of(model, heads, share)
    remove: Any = on_automatic_axes(_prune_model) if regroups(model) else _prune_module
    pruned: M = remove(model, chosen)
    return pruned


def _prune_model(model: Model, heads: Iterable[HeadId | str]) -> Model:
    """Return a headjax model without heads; a layer that loses its last one becomes `NoHeadsAttention`."""
    removed = set[HeadId]()
    for head in named_heads(heads):
        position(model.config, head)  # refuses a head that does not exist
        tied = model.config.site(head.stack, head.layer).tied
        removed |= {dataclasses.replace(head, layer=layer) for layer in tied}
    if not removed:
        return model

    def keep(layer: LayerModule) -> AttentionModule:
        module: AttentionModule = layer.module
        kept = [place for place, head in enumerate(module.ids) if HeadId(layer.stack, layer.layer, head) not in removed]
        return module if len(kept) == len(module.ids) else _drop_unused(module.keep_heads(kept))

    pruned = map_attention(model, keep, {head.stack for head in removed})
    return pruned.with_entry("prune", removed=[str(head) for head in sorted(removed)])


def _drop_unused(module: AttentionModule) -> AttentionModule:
    """Return a layer without the shared dimensions (collaborative) whose mixing weights are 0 for every head."""
    params = module.params
    if not isinstance(module, CollaborativeAttention) or isinstance(params["mixing"], jax.core.Tracer):
        return module  # of shapes alone nothing is known to be unused
    used = np.flatnonzero(np.any(np.asarray(params["mixing"]) != 0.0, axis=0))
    used = used if len(used) else np.array([0])  # a layer needs one dimension
    names = {"query", "query_bias", "key", "key_bias", "mixing"} & params.keys()
    kept = {name: jnp.take(params[name], used, axis=-1) for name in names}
    return module.like(module.kind.replace(shared_dim=len(used)), params | kept)


def _prune_module(model: nnx.Module, heads: Iterable[HeadId | str]) -> nnx.Module:
    sites = find_sites(model)
    removed = set(require_heads(sites, heads))
    plans = {site.path: _plan(model, site, [head not in removed for head in site.head_ids()]) for site in sites}
    pruned = nnx.clone(model, graph=True)
    less = [site for site in sites if plans[site.path].sizes != _sizes_of(site)]
    for site in less:
        if not cuts_itself(model, site):
            _require_known(at_path(pruned, site.path), site)
    for cut in _cuts(pruned, sites, plans):
        old, stacked = cut.variable[...], cut.site.layers is not None
        pairs = zip(old if stacked else [old], cut.kept, strict=True)
        kept = [take(array, np.asarray(index), cut.axis, f"{cut.site.path}, heads") for array, index in pairs]
        cut.variable.set_value(jnp.stack(kept) if stacked else kept[0])
        for holder in {id(holder): holder for holder in cut.holders}.values():
            _resize_projection(holder, old.shape[stacked:], kept[0].shape)
    for site in less:
        layer, plan = at_path(pruned, site.path), plans[site.path]
        if cuts_itself(model, site):
            smaller: nnx.Module = layer.keep_heads(np.flatnonzero(plan.query[0]).tolist())
            if site.path == ROOT:
                return smaller
            put_at(pruned, site.path, smaller)
        else:
            original = at_path(model, site.path)
            _resize_layer(layer, site, plan.sizes)
            kept_heads = zip(site.head_ids(), plan.query.ravel(), strict=True)
            setattr(layer, HEAD_IDS, tuple(head.head for head, stays in kept_heads if stays))
            _check_scales(original, layer, site)
            check_pruned(original, layer, site, zip(plan.query, plan.key, strict=True))
    _resize_rest(pruned, sites, plans)
    find_sites(pruned)  # which checks the arrays of every layer
    return pruned


Sizes = dict[str, int]
"""Numbers of heads of a layer, by the words that `AttentionSite.sizes` has for them."""


def _sizes_of(site: AttentionSite) -> Sizes:
    return {
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "heads // kv_heads": site.heads // site.kv_heads,
        "heads * head_dim": site.heads * site.head_dim,
    }


class _Plan(NamedTuple):
    """The heads that a site keeps, in every layer along its axis of layers, or in its only one."""

    query: np.ndarray  # [layers, heads] bool
    key: np.ndarray  # [layers, kv_heads] bool
    sizes: Sizes


def _plan(model: nnx.Module, site: AttentionSite, kept: Sequence[bool]) -> _Plan:
    """Return the heads that a site keeps; raise `HeadjaxError` where its code cannot hold them."""
    layers, itself = np.reshape(kept, (-1, site.heads)), cuts_itself(model, site)
    names = [str(head).rpartition("/")[0] for head in site.head_ids()[:: site.heads]]
    # Query heads that each KV head serves; such a module of headjax takes any numbers.
    groups = layers.reshape(len(layers), 1 if itself else site.kv_heads, -1).sum(axis=-1)
    for name, row in zip(names, groups, strict=True):
        if not row.any():
            raise HeadjaxError(f"{name}: all its heads are to be removed; the code of its class needs one")
        if len(set(row[row > 0].tolist())) > 1:
            raise HeadjaxError(
                f"{name}: its KV heads would serve {', '.join(map(str, row))} query heads, and its code takes equal "
                f"groups; remove as many of each, or {USE_SHARE}"
            )
    if itself:
        return _Plan(layers, np.zeros((1, 0), bool), _sizes_of(dataclasses.replace(site, heads=sum(kept))))
    shapes = {(int(row.sum()), int((row > 0).sum())) for row in groups}
    if len(shapes) > 1:
        numbers = ", ".join(str(int(row.sum())) for row in groups)
        raise HeadjaxError(
            f"{site.path}: its layers would keep {numbers} heads, and lie in one array; remove as many of each, or "
            f"{USE_SHARE}"
        )
    heads, kv_heads = shapes.pop()
    return _Plan(layers, groups > 0, _sizes_of(dataclasses.replace(site, heads=heads, kv_heads=kv_heads)))


class _Cut(NamedTuple):
    """A parameter that holds heads, and the entries of it that stay."""

    site: AttentionSite
    path: str
    variable: nnx.Variable
    axis: int
    kept: list[list[int]]  # entries along the axis, by layer
    holders: list[Any]  # modules that have the parameter


def _cuts(model: nnx.Module, sites: Sites, plans: Mapping[str, _Plan]) -> list[_Cut]:
    """Return the parameters that lose heads, each once, and refuse tied ones that would lose others elsewhere."""
    cuts: dict[int, _Cut] = {}
    for site in sites:
        layer, plan = at_path(model, site.path), plans[site.path]
        for path, axis, kinds in () if cuts_itself(model, site) else site.held():
            variable, holder = at_path(layer, path), at_path(layer, path.rpartition(".")[0])
            rows, shape = zip(plan.query, plan.key, strict=True), variable[...].shape
            kept = [np.flatnonzero(kept_along(site, path, shape, axis, kinds, *row)).tolist() for row in rows]
            cut = cuts.setdefault(id(variable), _Cut(site, path, variable, axis, kept, []))
            if (axis, kept) != (cut.axis, cut.kept):
                raise HeadjaxError(
                    f"{site.path}: shares its {path} with {cut.site.path} ({cut.path}), as tied layers do; remove the "
                    f"same heads of both"
                )
            cut.holders.append(holder)
    cuts = {key: cut for key, cut in cuts.items() if len(cut.kept[0]) < cut.variable[...].shape[cut.axis]}
    for parts, module in nnx.iter_modules(model, graph=True):
        for name, entry in vars(module).items():
            shared = cuts.get(id(entry))
            if shared is not None and not any(module is holder for holder in shared.holders):
                other = ".".join(map(str, (*parts, name)))
                raise HeadjaxError(
                    f"{shared.site.path}: shares its {shared.path} with {other}, no part of an attention layer, which "
                    f"keeps its size; give the layer a parameter of its own"
                )
    return list(cuts.values())


def _check_scales(original: nnx.Module, pruned: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where a property that is a fraction, such as a scale, differs in the pruned layer."""
    for name in dir(type(original)):
        if name.startswith("_") or not isinstance(getattr(type(original), name, None), property):
            continue
        try:
            before, after = getattr(original, name), getattr(pruned, name)
        except Exception:
            continue
        if isinstance(before, float) and isinstance(after, float) and before != after:
            raise HeadjaxError(f"{site.path}: its {name} changes with the number of heads, from {before} to {after}")


def _require_known(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` for a parameter that may hold heads and that the site does not name."""
    named = {path for path, _, _ in site.held()}
    for path, variable in parameters(layer):
        beside = not isinstance(at_path(layer, path.rpartition(".")[0]), nnx.LoRA)
        if isinstance(variable, nnx.LoRAParam) and path not in named and beside:
            raise HeadjaxError(f"{site.path}: {path}: a low-rank matrix that is no nnx.LoRA, whose heads are not known")
    width = at_path(layer, site.kernel)[...].shape[-1]
    if site.heads in (1, site.head_dim, width, site.layers):
        return  # an axis of this length says nothing
    arrays: list[tuple[str, Any]] = [(path, variable[...]) for path, variable in parameters(layer)]
    arrays += [(name, array) for name, array in vars(layer).items() if isinstance(array, jax.Array | np.ndarray)]
    for path, array in arrays:
        if path not in named and site.heads in array.shape:
            raise HeadjaxError(
                f"{site.path}: {path} has shape {list(array.shape)} and may hold its {site.heads} heads; say "
                f"where they lie: headjax.register_attention({type(layer).__qualname__}, view)"
            )


def _resize_rest(model: nnx.Module, sites: Sites, plans: Mapping[str, _Plan]) -> None:
    """Set the numbers of heads in modules and configs outside the layers, if all layers have equal numbers."""
    within = {id(module) for site in sites for _, module in nnx.iter_modules(at_path(model, site.path), graph=True)}
    if any(_sizes_of(site) != _sizes_of(sites[0]) for site in sites):
        return
    left = {name: {plan.sizes[name] for plan in plans.values()} for name in ("heads", "kv_heads")}
    equal: dict[str, Any] = {name: numbers.pop() for name, numbers in left.items() if len(numbers) == 1}
    old, new = _sizes_of(sites[0]), _sizes_of(dataclasses.replace(sites[0], **equal))
    for _, module in nnx.iter_modules(model, graph=True):
        if id(module) not in within:
            _resize_module(module, old, new)


def _resize_layer(layer: nnx.Module, site: AttentionSite, sizes: Sizes) -> None:
    """Set the static numbers of heads of a layer, of the modules within it and of their configs."""
    for _, module in nnx.iter_modules(layer, graph=True):
        _resize_module(module, _sizes_of(site), sizes)
    for path, size in site.sizes:
        if size not in sizes:
            raise HeadjaxError(f"{site.path}: sizes: {path}: expected one of {', '.join(sizes)}, got {size!r}")
        holder, _, name = path.rpartition(".")
        setattr(at_path(layer, holder), name, sizes[size])


def _resize_module(module: nnx.Module, before: Sizes, after: Sizes) -> None:
    """Replace numbers of heads in a module's attributes and its config, if they equal those of `before`."""
    usual = [(name, before[size], after[size]) for size, names in USUAL.items() for name in names]
    for name, old, new in usual:
        if isinstance(vars(module).get(name), int) and vars(module)[name] == old:
            setattr(module, name, new)
    for name in CONFIGS:
        config = vars(module).get(name)
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            continue
        fields = {field.name for field in dataclasses.fields(config) if field.init}
        changes = {field: new for field, old, new in usual if field in fields and getattr(config, field) == old}
        resized = dataclasses.replace(config, **changes)
        if getattr(resized, "head_dim", None) != getattr(config, "head_dim", None):
            kind = type(config).__name__
            raise HeadjaxError(f"prune: {kind} computes head_dim from the number of heads, which changes")
        setattr(module, name, resized)


def _resize_projection(module: nnx.Module, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Set the static shapes of a module one of whose parameters has another shape now."""
    if isinstance(module, nnx.LoRA):  # a parameter is one factor of the matrix whose shape the module has
        module.in_features += new[0] - old[0]
        module.out_features += new[-1] - old[-1]
        return
    for name, value in list(vars(module).items()):
        if isinstance(value, tuple) and value == old:
            setattr(module, name, new)
    for names in ENDS:
        ends = [vars(module).get(name) for name in names]
        if all(isinstance(end, int | tuple) for end in ends):
            first, second = (end if isinstance(end, tuple) else (end,) for end in ends)
            if first + second == old:
                for name, end, part in zip(names, ends, (new[: len(first)], new[len(first) :]), strict=True):
                    setattr(module, name, part if isinstance(end, tuple) else part[0])
    features = vars(module).get("features")
    if isinstance(features, int | tuple) and features:
        tail = features if isinstance(features, tuple) else (features,)
        if old[-len(tail) :] == tail and len(old) > len(tail):
            vars(module)["features"] = new[-len(tail) :] if isinstance(features, tuple) else new[-1]
