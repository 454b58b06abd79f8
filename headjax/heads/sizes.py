"""The static numbers of heads that attention layers, the modules around them and their configs hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.site import AttentionSite, at_path

HEADS = ("num_heads", "num_query_heads", "num_attention_heads", "n_heads", "n_head", "heads")
KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads")
"""Names by which attention layers say how many query heads and KV heads they have."""

CONFIGS = ("config", "cfg")
"""Names by which layers hold their configs."""

ENDS = (("in_features", "out_features"), ("in_features_shape", "out_features_shape"))
"""Names of the sizes of a projection, which together are the shape of its weight."""

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


def resize_layer(layer: nnx.Module, site: AttentionSite, after: Numbers) -> None:
    """Set the static numbers of heads of a layer, of the modules within it and of their configs."""
    for _, module in nnx.iter_modules(layer, graph=True):
        resize_module(module, Numbers.of(site), after)
    for path, size in site.sizes:
        if size not in after.named():
            raise HeadjaxError(f"{site.path}: sizes: {path}: expected one of {', '.join(after.named())}, got {size!r}")
        holder, _, name = path.rpartition(".")
        setattr(at_path(layer, holder), name, after.named()[size])


def resize_module(module: nnx.Module, before: Numbers, after: Numbers) -> None:
    """Replace numbers of heads in a module's attributes and its config, if they equal those of `before`."""
    new = dict(after.usual())
    for name, old in before.usual():
        if isinstance(vars(module).get(name), int) and vars(module)[name] == old:
            setattr(module, name, new[name])
    for name in CONFIGS:
        config = vars(module).get(name)
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            continue
        fields = {field.name for field in dataclasses.fields(config) if field.init}
        same = {field for field, old in before.usual() if field in fields and getattr(config, field) == old}
        resized = dataclasses.replace(config, **{field: new[field] for field in same})
        if getattr(resized, "head_dim", None) != getattr(config, "head_dim", None):
            kind = type(config).__name__
            raise HeadjaxError(f"prune: {kind} computes head_dim from the number of heads, which changes")
        setattr(module, name, resized)


def resize_projection(module: nnx.Module, old: tuple[int, ...], new: tuple[int, ...]) -> None:
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
