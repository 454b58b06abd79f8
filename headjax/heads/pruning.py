"""Remove heads and their parameters from any model: named ones, or a share of all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.checks import check_pruned
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId, named_heads, tied_heads
from headjax.heads.ordering import Order, Steps, count_of_share, fitting, flat, group_removals, say_fewer
from headjax.heads.site import (
    HEAD_IDS,
    ROOT,
    AttentionSite,
    Sites,
    at_path,
    find_heads,
    kept_along,
    parameters,
    put_at,
    require_heads,
    without,
)
from headjax.heads.sizes import Numbers, resize_layer, resize_module, resize_projection
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


def part_of(model: Any, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold.

    Whole KV groups go first, those with the least mean place in the order. Of a model whose code needs equal groups,
    what is left of the share goes as one head of every group of a layer.
    """
    sites, any_numbers = find_sites(model), regroups(model)
    rank = {head: place for place, head in enumerate(dict.fromkeys(require_heads(sites, order)))}
    count, removed, refused = count_of_share(share, len(find_heads(sites))), Order(), Steps()
    for whole_groups in (True,) if any_numbers else (True, False):
        equal = [] if any_numbers else _equal_removals(model, sites, rank, removed, whole_groups)
        steps = list(group_removals(sites, rank)) if any_numbers else equal
        fitted, others = fitting(steps, count - len(removed))
        removed, refused = removed + fitted, refused + others
    none = "the order names no others" if any_numbers else "every layer keeps one of its heads"
    say_fewer(len(removed), count, refused, none)
    return removed


def _equal_removals(
    model: Any, sites: Sites, rank: Mapping[HeadId, int], removed: Order, whole_groups: bool
) -> list[Order]:
    """Return the sets of heads that layers can lose, the lowest mean rank first; see `_site_removals`."""
    steps = list[Order]()
    for site in sites:
        number = site.heads if site.kv_heads == 1 or _cuts_itself(model, site) else site.kv_heads
        ids, size = site.head_ids(), site.heads // number
        groups = [ids[start : start + size] for start in range(0, len(ids), size)]
        layers = [groups[start : start + number] for start in range(0, len(groups), number)]
        steps += _site_removals(layers, rank, removed, whole_groups)
    return sorted(steps, key=lambda step: fmean(rank[head] for head in step))


def _site_removals(
    layers: list[list[Order]], rank: Mapping[HeadId, int], removed: Order, whole_groups: bool
) -> Iterator[Order]:
    """Yield sets of heads that a site can lose: a group of every layer, or a head of every group that still exists."""
    if whole_groups:
        named = [[group for group in layer if rank.keys() >= set(group)] for layer in layers]
        rows = [sorted(groups, key=lambda group: sum(map(rank.__getitem__, group))) for groups in named]
    else:
        present = [group for layer in layers for group in layer if group[0] not in removed]
        rows = [[(head,) for head in sorted(rank.keys() & set(group), key=rank.__getitem__)] for group in present]
    number = len(layers[0] if whole_groups else layers[0][0]) - 1
    for step in itertools.islice(zip(*rows, strict=False), number):
        yield flat(step)


def _prune_model(model: Model, heads: Iterable[HeadId | str]) -> Model:
    """Return a headjax model without heads; a layer that loses its last one becomes `NoHeadsAttention`."""
    removed = {tied for head in named_heads(heads) for tied in tied_heads(model.config, head)}
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
    """Return a model of the same class without heads."""
    sites = find_sites(model)
    gates = without(sites, require_heads(sites, heads))
    plans = {site.path: _plan(model, site, np.asarray(gates[site.path]) > 0.0) for site in sites}
    pruned = nnx.clone(model, graph=True)
    less = [site for site in sites if plans[site.path].numbers != Numbers.of(site)]
    for site in less:
        if not _cuts_itself(model, site):
            _require_known(at_path(pruned, site.path), site)
    for cut in _cuts(pruned, sites, plans):
        _remove(cut)
    for site in less:
        layer, plan = at_path(pruned, site.path), plans[site.path]
        if _cuts_itself(model, site):
            kept = layer.keep_heads(np.flatnonzero(plan.query[0]).tolist())
            if site.path == ROOT:
                return kept
            put_at(pruned, site.path, kept)
        else:
            original = at_path(model, site.path)
            resize_layer(layer, site, plan.numbers)
            kept_heads = zip(site.head_ids(), plan.query.ravel(), strict=True)
            setattr(layer, HEAD_IDS, tuple(head.head for head, stays in kept_heads if stays))
            _check_scales(original, layer, site)
            check_pruned(original, layer, site, zip(plan.query, plan.key, strict=True))
    _resize_rest(pruned, sites, plans)
    find_sites(pruned)  # which checks the arrays of every layer
    return pruned


def _cuts_itself(model: nnx.Module, site: AttentionSite) -> bool:
    """Return whether a layer has `keep_heads` (headjax's have), which works without an axis of layers."""
    return site.layers is None and hasattr(at_path(model, site.path), "keep_heads")


class _Plan(NamedTuple):
    """The heads that a site keeps, in every layer along its axis of layers, or in its only one."""

    query: np.ndarray  # [layers, heads] bool
    key: np.ndarray  # [layers, kv_heads] bool
    numbers: Numbers


def _plan(model: nnx.Module, site: AttentionSite, kept: np.ndarray) -> _Plan:
    """Return the heads that a site keeps; raise `HeadjaxError` where its code cannot hold them."""
    layers = kept.reshape(-1, site.heads)
    names = [str(head).rpartition("/")[0] for head in site.head_ids()[:: site.heads]]
    for name, row in zip(names, layers, strict=True):
        if not row.any():
            raise HeadjaxError(f"{name}: all its heads are to be removed; the code of its class needs one")
    if _cuts_itself(model, site):
        return _Plan(layers, np.zeros((1, 0), bool), Numbers.of(site)._replace(heads=int(kept.sum())))
    groups = layers.reshape(len(layers), site.kv_heads, -1).sum(axis=-1)
    for name, row in zip(names, groups, strict=True):
        if len(set(row[row > 0].tolist())) > 1:
            served = ", ".join(map(str, row))
            raise HeadjaxError(
                f"{name}: its KV heads would serve {served} query heads, and its code takes equal groups; "
                f"remove as many of each, or {USE_SHARE}"
            )
    shapes = {(int(row.sum()), int((row > 0).sum())) for row in groups}
    if len(shapes) > 1:
        numbers = ", ".join(str(int(row.sum())) for row in groups)
        raise HeadjaxError(
            f"{site.path}: its layers would keep {numbers} heads, and lie in one array; remove as many of each, or "
            f"{USE_SHARE}"
        )
    return _Plan(layers, groups > 0, Numbers(*shapes.pop(), site.head_dim))


class _Cut(NamedTuple):
    """A parameter that holds heads, and the entries of it that stay."""

    site: AttentionSite
    path: str
    variable: nnx.Variable
    axis: int
    kept: list[list[int]]  # entries along the axis, by layer
    holders: list[Any]  # modules that have the parameter

    def removes(self) -> bool:
        """Return whether entries go."""
        return len(self.kept[0]) < self.variable[...].shape[self.axis]


def _cuts(model: nnx.Module, sites: Sites, plans: Mapping[str, _Plan]) -> list[_Cut]:
    """Return the parameters that lose heads, each once, and refuse tied ones that would lose others elsewhere."""
    cuts: dict[int, _Cut] = {}
    for site in sites:
        layer, plan = at_path(model, site.path), plans[site.path]
        for path, axis, kinds in () if _cuts_itself(model, site) else site.held():
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
    for parts, module in nnx.iter_modules(model, graph=True):
        for name, entry in vars(module).items():
            shared = cuts.get(id(entry))
            if shared is not None and shared.removes() and not any(module is holder for holder in shared.holders):
                other = ".".join(map(str, (*parts, name)))
                raise HeadjaxError(
                    f"{shared.site.path}: shares its {shared.path} with {other}, no part of an attention layer, which "
                    f"keeps its size; give the layer a parameter of its own"
                )
    return [cut for cut in cuts.values() if cut.removes()]


def _remove(cut: _Cut) -> None:
    """Remove heads from a parameter, and set the static shapes of the modules that hold it."""
    old, site = cut.variable[...], cut.site
    layers = [old] if site.layers is None else old
    pairs, name = zip(layers, cut.kept, strict=True), f"{site.path}, heads"
    kept = [take(array, np.asarray(index), cut.axis, name) for array, index in pairs]
    new = kept[0] if site.layers is None else jnp.stack(kept)
    cut.variable.set_value(new)
    front = 0 if site.layers is None else 1
    for holder in {id(holder): holder for holder in cut.holders}.values():
        resize_projection(holder, old.shape[front:], new.shape[front:])


def _check_scales(original: nnx.Module, pruned: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where a property that is a fraction differs between a layer and the pruned one."""
    scales = _float_properties(original)
    for name, value in _float_properties(pruned).items():
        if value != scales.get(name, value):
            raise HeadjaxError(
                f"{site.path}: its {name} changes with the number of heads, from {scales[name]} to {value}"
            )


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


def _float_properties(layer: Any) -> dict[str, float]:
    """Return the properties of a layer that are fractions, such as the scale of its logits."""
    properties = {}
    for name in dir(type(layer)):
        if not name.startswith("_") and isinstance(getattr(type(layer), name, None), property):
            try:
                value = getattr(layer, name)
            except Exception:
                continue
            if isinstance(value, float):
                properties[name] = value
    return properties


def _resize_rest(model: nnx.Module, sites: Sites, plans: Mapping[str, _Plan]) -> None:
    """Set the numbers of heads in modules and configs outside the layers, if all layers have equal numbers."""
    within = {id(module) for site in sites for _, module in nnx.iter_modules(at_path(model, site.path), graph=True)}
    before = {Numbers.of(site) for site in sites}
    heads, kv_heads = ({getattr(plan.numbers, name) for plan in plans.values()} for name in ("heads", "kv_heads"))
    if len(before) > 1:
        return
    old = before.pop()
    new = old._replace(
        heads=heads.pop() if len(heads) == 1 else old.heads,
        kv_heads=kv_heads.pop() if len(kv_heads) == 1 else old.kv_heads,
    )
    for _, module in nnx.iter_modules(model, graph=True):
        if id(module) not in within:
            resize_module(module, old, new)
