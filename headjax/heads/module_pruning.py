"""Remove heads from any Flax model: smaller arrays and static sizes in step, in a model of the same class."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.checks import check_pruned
from headjax.heads.discovery import CONFIGS, ENDS, HEADS, KV_HEADS, find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.ordering import Order, Steps, fitting, flat, say_fewer, shared
from headjax.heads.site import (
    HEAD_IDS,
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
from headjax.mesh.mesh import take

WAY = "give an order of heads and a share=, which takes whole KV groups"


def prune_module(model: nnx.Module, heads: Iterable[HeadId | str]) -> nnx.Module:
    """Return a model of the same class without heads, see `headjax.prune`."""
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
            if site.path == ".":
                return kept
            put_at(pruned, site.path, kept)
        else:
            whole = at_path(model, site.path)
            _resize_layer(layer, site, plan)
            _check_scales(whole, layer, site)
            check_pruned(whole, layer, site, zip(plan.query, plan.key, strict=True))
    _resize_rest(pruned, sites, plans)
    find_sites(pruned)  # the checks of what is left
    return pruned


def _cuts_itself(model: nnx.Module, site: AttentionSite) -> bool:
    """Return whether a layer can keep any of its heads, as one of headjax can that lies along no axis of layers."""
    return site.layers is None and hasattr(at_path(model, site.path), "keep_heads")


class _Plan(NamedTuple):
    """The kept entries of a site; one layer where the site has no axis of layers."""

    query: np.ndarray  # [layers, heads] bool
    key: np.ndarray  # [layers, kv_heads] bool
    numbers: Numbers


def _plan(model: nnx.Module, site: AttentionSite, kept: np.ndarray) -> _Plan:
    """Return the kept entries of a site, and refuse those that its code cannot hold."""
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
                f"remove as many of each, or {WAY}"
            )
    shapes = {(int(row.sum()), int((row > 0).sum())) for row in groups}
    if len(shapes) > 1:
        left = ", ".join(str(int(row.sum())) for row in groups)
        raise HeadjaxError(
            f"{site.path}: its layers would keep {left} heads, and lie in one array; remove as many of each, or {WAY}"
        )
    return _Plan(layers, groups > 0, Numbers(*shapes.pop(), site.head_dim))


class _Cut(NamedTuple):
    """A parameter that holds heads, and what is kept of it."""

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
    found: dict[int, _Cut] = {}
    for site in sites:
        layer, plan = at_path(model, site.path), plans[site.path]
        for path, axis, kinds in () if _cuts_itself(model, site) else site.held():
            variable, holder = at_path(layer, path), at_path(layer, path.rpartition(".")[0])
            rows, shape = zip(plan.query, plan.key, strict=True), variable[...].shape
            kept = [np.flatnonzero(kept_along(site, path, shape, axis, kinds, *row)).tolist() for row in rows]
            cut = found.setdefault(id(variable), _Cut(site, path, variable, axis, kept, []))
            if (axis, kept) != (cut.axis, cut.kept):
                raise HeadjaxError(
                    f"{site.path}: shares its {path} with {cut.site.path} ({cut.path}), as tied layers do; remove the "
                    f"same heads of both"
                )
            cut.holders.append(holder)
    for parts, module in nnx.iter_modules(model, graph=True):
        for name, entry in vars(module).items():
            shared = found.get(id(entry))
            if shared is not None and shared.removes() and not any(module is holder for holder in shared.holders):
                other = ".".join(map(str, (*parts, name)))
                raise HeadjaxError(
                    f"{shared.site.path}: shares its {shared.path} with {other}, no part of an attention layer, which "
                    f"keeps its size; give the layer a parameter of its own"
                )
    return [cut for cut in found.values() if cut.removes()]


def _remove(cut: _Cut) -> None:
    """Remove heads from a parameter, and set the static shapes of the modules that hold it."""
    old, site = cut.variable[...], cut.site
    layers = [old] if site.layers is None else old
    pairs, name = zip(layers, cut.kept, strict=True), f"{site.path}, heads"
    taken = [take(own, np.asarray(index), cut.axis, name) for own, index in pairs]
    new = taken[0] if site.layers is None else jnp.stack(taken)
    cut.variable.set_value(new)
    front = 0 if site.layers is None else 1
    for holder in {id(holder): holder for holder in cut.holders}.values():
        _resize_projection(holder, old.shape[front:], new.shape[front:])


def _check_scales(whole: nnx.Module, layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where a property that is a fraction differs between a layer and the pruned one."""
    scales = _float_properties(whole)
    for name, value in _float_properties(layer).items():
        if value != scales.get(name, value):
            raise HeadjaxError(
                f"{site.path}: its {name} changes with the number of heads, from {scales[name]} to {value}"
            )


def _require_known(layer: nnx.Module, site: AttentionSite) -> None:
    """Raise `HeadjaxError` for a parameter that may hold heads, and of which the site does not say so."""
    known = {path for path, _, _ in site.held()}
    for path, variable in parameters(layer):
        beside = not isinstance(at_path(layer, path.rpartition(".")[0]), nnx.LoRA)
        if isinstance(variable, nnx.LoRAParam) and path not in known and beside:
            raise HeadjaxError(f"{site.path}: {path}: a low-rank matrix that is no nnx.LoRA, whose heads are not known")
    width = at_path(layer, site.kernel)[...].shape[-1]
    if site.heads in (1, site.head_dim, width, site.layers):
        return  # an axis of this length says nothing
    arrays: list[tuple[str, Any]] = [(path, variable[...]) for path, variable in parameters(layer)]
    arrays += [(name, array) for name, array in vars(layer).items() if isinstance(array, jax.Array | np.ndarray)]
    for path, array in arrays:
        if path not in known and site.heads in array.shape:
            raise HeadjaxError(
                f"{site.path}: {path} has shape {list(array.shape)} and may hold its {site.heads} heads; say "
                f"where they lie: headjax.register_attention({type(layer).__qualname__}, view)"
            )


def _float_properties(layer: Any) -> dict[str, float]:
    """Return the properties of a layer that are fractions, such as the scale of its logits."""
    found = {}
    for name in dir(type(layer)):
        if not name.startswith("_") and isinstance(getattr(type(layer), name, None), property):
            try:
                value = getattr(layer, name)
            except Exception:
                continue
            if isinstance(value, float):
                found[name] = value
    return found


def _resize_rest(model: nnx.Module, sites: Sites, plans: Mapping[str, _Plan]) -> None:
    """Set the numbers of heads of modules and configs around the layers, where all layers have the same."""
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
            _resize_module(module, old, new)


def part(model: nnx.Module, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the code of every layer holds.

    Whole KV groups go first, those with the least mean place in the order. What is left of the share goes as one head
    of every group of a layer. Layers along one axis lose equal numbers. Every layer keeps a head.
    """
    sites = find_sites(model)
    rank = {head: place for place, head in enumerate(dict.fromkeys(require_heads(sites, order)))}
    layers = {site.path: _groups(model, site) for site in sites}
    count, gone, left = shared(share, len(find_heads(sites))), Order(), Steps()
    for whole in (True, False):
        steps = [step for site in sites for step in _removals(layers[site.path], rank, gone, whole)]
        steps.sort(key=lambda step: fmean(rank[head] for head in step))
        more, others = fitting(steps, count - len(gone))
        gone, left = gone + more, left + others
    say_fewer(len(gone), count, left, "every layer keeps one of its heads")
    return gone


def _groups(model: nnx.Module, site: AttentionSite) -> list[list[Order]]:
    """Return the heads of a site that its code can lose together, layer by layer."""
    number = site.heads if site.kv_heads == 1 or _cuts_itself(model, site) else site.kv_heads
    ids, size = site.head_ids(), site.heads // number
    groups = [ids[start : start + size] for start in range(0, len(ids), size)]
    return [groups[start : start + number] for start in range(0, len(groups), number)]


def _removals(layers: list[list[Order]], rank: Mapping[HeadId, int], gone: Order, whole: bool) -> Iterator[Order]:
    """Yield what a site can lose, one after another: a group of every layer, or a head of every group that is left."""
    if whole:
        named = [[group for group in layer if rank.keys() >= set(group)] for layer in layers]
        rows = [sorted(groups, key=lambda group: sum(map(rank.__getitem__, group))) for groups in named]
    else:
        left = [group for layer in layers for group in layer if group[0] not in gone]
        rows = [[(head,) for head in sorted(rank.keys() & set(group), key=rank.__getitem__)] for group in left]
    number = len(layers[0] if whole else layers[0][0]) - 1
    for step in itertools.islice(zip(*rows, strict=False), number):
        yield flat(step)


PER_GROUP = ("n_rep", "num_key_value_groups", "num_queries_per_kv", "queries_per_kv", "group_size")
"""Names of the number of query heads that read one KV head."""

PRODUCTS = ("qkv_features", "inner_dim", "all_head_size")
"""Names of the number of query heads times their size."""


class Numbers(NamedTuple):
    """Numbers of heads of a layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, site: AttentionSite) -> Numbers:
        """Return those of a site."""
        return cls(site.heads, site.kv_heads, site.head_dim)

    def named(self) -> dict[str, int]:
        """Return the sizes by the words that `AttentionSite.sizes` has for them."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "heads // kv_heads": self.heads // self.kv_heads,
            "heads * head_dim": self.heads * self.head_dim,
        }

    def usual(self) -> Iterator[tuple[str, int]]:
        """Yield the usual attribute names and their values."""
        sizes = self.named()
        for names, size in ((HEADS, "heads"), (KV_HEADS, "kv_heads"), (PER_GROUP, "heads // kv_heads")):
            yield from ((name, sizes[size]) for name in names)
        yield from ((name, sizes["heads * head_dim"]) for name in PRODUCTS)


def _resize_layer(layer: nnx.Module, site: AttentionSite, plan: _Plan) -> None:
    """Set the static numbers of heads of a layer, of the modules within it and of their configs."""
    before, after = Numbers.of(site), plan.numbers
    for _, module in nnx.iter_modules(layer, graph=True):
        _resize_module(module, before, after)
    for path, size in site.sizes:
        if size not in after.named():
            raise HeadjaxError(f"{site.path}: sizes: {path}: expected one of {', '.join(after.named())}, got {size!r}")
        holder, _, name = path.rpartition(".")
        setattr(at_path(layer, holder), name, after.named()[size])
    kept_heads = zip(site.head_ids(), plan.query.ravel(), strict=True)
    setattr(layer, HEAD_IDS, tuple(head.head for head, stays in kept_heads if stays))


def _resize_module(module: nnx.Module, before: Numbers, after: Numbers) -> None:
    """Set the numbers of heads among a module's own attributes, where they are those from before."""
    new = dict(after.usual())
    for name, old in before.usual():
        if isinstance(vars(module).get(name), int) and vars(module)[name] == old:
            setattr(module, name, new[name])
    for name in CONFIGS:
        config = vars(module).get(name)
        if dataclasses.is_dataclass(config) and not isinstance(config, type):
            setattr(module, name, _resized_config(config, before, after))


def _resized_config(config: Any, before: Numbers, after: Numbers) -> Any:
    """Return a config with other numbers of heads."""
    fields = {field.name for field in dataclasses.fields(config) if field.init}
    new = dict(after.usual())
    changes = {name: new[name] for name, old in before.usual() if name in fields and getattr(config, name) == old}
    changed = dataclasses.replace(config, **changes)
    if getattr(changed, "head_dim", None) != getattr(config, "head_dim", None):
        raise HeadjaxError(f"prune: {type(config).__name__} computes head_dim from the number of heads, which changes")
    return changed


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
