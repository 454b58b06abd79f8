"""An attention site: where an attention layer lies in a Flax module, and which of its parameters hold heads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.heads.head_id import ANY_LAYER, HeadId, named_heads, stack_of
from headjax.models.inputs import on_device

HEAD_IDS = "headjax_ids"
"""Attribute of a pruned layer with the original numbers of its heads, as `AttentionSite.ids`."""

ROOT = "."
"""Path of a model that is an attention layer itself."""

Axes = tuple[tuple[str, int], ...]
"""Parameters that hold heads: path within the layer, and the axis of the heads, counted from the last one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSite:
    """Attention layer of a Flax module.

    Paths of parameters and modules are relative to the layer: `o_proj.w`. A parameter holds heads along one axis, one
    entry a head (`[width, heads, head_dim]`) or `head_dim` entries a head (`[width, heads * head_dim]`). Axes are
    counted from the last one, so that they hold under `nnx.scan`, too, which puts an axis of layers in front.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> (site,) = headjax.attention_sites(layer)
        >>> site.heads, site.head_dim, site.kernel
        (4, 4, 'out.kernel')

    Attributes:
        heads: Number of query heads.
        kv_heads: Number of KV heads; query head h reads KV head h // (heads // kv_heads).
        head_dim: Size of a head's context.
        output: Path of the output projection, a module that is called with the contexts of all heads,
            `[..., heads, head_dim]` or `[..., heads * head_dim]`. Empty for layers of headjax, which take gates.
        kernel: Path of the parameter W_O, `[heads, head_dim, width]` or `[heads * head_dim, width]`.
        query: Parameters that hold query heads, W_O among them, and their axes.
        key: Parameters that hold KV heads, and their axes.
        fused: Parameters that hold both, one kind after the other along one axis, `[width, 3 * heads * head_dim]`: the
            axis and the kinds in their order, `{"c_attn.kernel": (-1, "qkv")}`.
        sizes: Static attributes that `prune` sets, by their path: `heads`, `kv_heads`, `heads // kv_heads` or
            `heads * head_dim`. Those with usual names (`num_heads`, `num_kv_heads`, `n_rep`, `qkv_features`, ...), and
            the shapes that projections hold, need not be listed.
        path: Path of the layer in the model, `layers.3.attn`; filled in by `attention_sites`.
        layers: Length of the axis of layers in front of every parameter, None without one; filled in likewise.
        kv_index: KV head that each query head reads; None is equal consecutive groups.
        ids: Numbers of the heads, of one layer or of all of them in turn; None counts from 0.
        first: Head stack and layer of the site's first layer, where the model names its heads by them.
        tied: Whether its layers share all parameters, which then have no axis of layers.
    """

    heads: int
    kv_heads: int
    head_dim: int
    output: str
    kernel: str
    query: Axes
    key: Axes = ()
    fused: tuple[tuple[str, tuple[int, str]], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    path: str = ""
    layers: int | None = None
    kv_index: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    first: tuple[str, int] | None = None
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("query", "key", "fused", "sizes"):
            pairs = getattr(self, name)
            object.__setattr__(self, name, tuple(pairs.items()) if isinstance(pairs, Mapping) else tuple(pairs))

    @property
    def rows(self) -> tuple[str, ...]:
        """Parameters of the output projection that hold the rows of query heads: W_O, and factors of its `nnx.LoRA`."""
        return tuple(path for path, _ in self.query if path == self.kernel or path.startswith(f"{self.output}."))

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Head stack and layer of every layer of the site: one, or as many as lie along the axis in front."""
        if self.first is not None:
            stack, number = self.first
            return tuple((stack, number + layer) for layer in range(self.layers or 1))
        if self.layers is None:
            return (stack_of(self.path),)
        return tuple((f"{self.path}.{ANY_LAYER}", layer) for layer in range(self.layers))

    @property
    def groups(self) -> np.ndarray:
        """KV head that each query head reads, `[heads]`."""
        equal = np.arange(self.heads) // max(self.heads // self.kv_heads, 1)
        return equal if self.kv_index is None else np.asarray(self.kv_index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the site's gates: `[heads]`, or `[layers, heads]`."""
        return (self.heads,) if self.layers is None else (self.layers, self.heads)

    def held(self) -> Iterator[tuple[str, int, str]]:
        """Yield every parameter that holds heads: its path, their axis, and the kinds of heads along it."""
        yield from ((path, axis, "q") for path, axis in self.query)
        yield from ((path, axis, "k") for path, axis in self.key)
        yield from ((path, axis, kinds) for path, (axis, kinds) in self.fused)

    def count(self, kinds: str) -> int:
        """Return the number of heads of these kinds: `q` are query heads, `k` and `v` KV heads."""
        return sum(self.heads if kind == "q" else self.kv_heads for kind in kinds)

    def head_ids(self) -> tuple[HeadId, ...]:
        """Return the heads in the order of the entries of the site's gates."""
        rows = np.resize(range(self.heads) if self.ids is None else self.ids, (len(self.places), self.heads)).tolist()
        return tuple(HeadId(*place, head) for place, row in zip(self.places, rows, strict=True) for head in row)


Sites = tuple[AttentionSite, ...]
"""Attention sites of a model."""

Gates = dict[str, jax.Array]
"""Gates by the path of the site, of the site's `shape`."""


def ones(sites: Sites) -> Gates:
    """Return gates of 1, which change nothing."""
    return {site.path: jax.device_put(np.ones(site.shape, np.float32)) for site in sites}


def filled(sites: Sites, gates: Mapping[Any, Any] | None) -> Gates:
    """Return the gates of every site: those given by site and by head, and 1 where none are given."""
    if not isinstance(gates, Mapping | None):
        raise HeadjaxError(f"gates: expected numbers by head, as in {{'decoder/0/3': 0.0}}, got {type(gates).__name__}")
    rest = dict(gates or {})
    heads = [head for head in rest if isinstance(head, HeadId) or "/" in head]
    values = dict(zip(require_heads(sites, heads), map(rest.pop, heads), strict=True))
    filled_gates = ones(sites)
    for path, array in rest.items():
        if path not in filled_gates:
            raise HeadjaxError(f"gates: the model has no attention layer {path}; it has {', '.join(filled_gates)}")
        shape, expected = jnp.shape(array), filled_gates[path].shape
        if shape[: len(expected) - 1] + shape[-1:] != expected:
            raise HeadjaxError(f"gates: {path} has shape {list(shape)}; expected {list(expected)}")
        filled_gates[path] = on_device(array)
    for site in sites:
        named = [head in values for head in site.head_ids()]
        if any(named):
            whole = filled_gates[site.path]  # with inner axes, where gates differ between examples or positions
            shape = (*site.shape[:-1], *(1,) * (whole.ndim - len(site.shape)), site.heads)
            array = jnp.array([values.get(head, 0.0) for head in site.head_ids()], jnp.float32).reshape(shape)
            filled_gates[site.path] = jnp.where(np.reshape(named, shape), array, whole)
    return filled_gates


def without(sites: Sites, heads: Iterable[HeadId]) -> Gates:
    """Return gates that are 0 for the given heads and 1 for all others."""
    return filled(sites, dict.fromkeys(heads, 0.0))


def find_heads(sites: Sites) -> dict[HeadId, tuple[AttentionSite, tuple[int, ...]]]:
    """Return for every head its site and its index into the site's gates."""
    return {
        head: (site, index)
        for site in sites
        for head, index in zip(site.head_ids(), np.ndindex(*site.shape), strict=True)
    }


def require_heads(sites: Sites, heads: Iterable[HeadId | str]) -> tuple[HeadId, ...]:
    """Return heads that are given as `HeadId`s or as text such as `layers.3.attn/5`."""
    known, named = find_heads(sites), named_heads(heads)
    for head in named:
        if head not in known:
            some = ", ".join(f"{site.path} ({site.heads} heads)" for site in sites[:8])
            raise HeadjaxError(f"head {head}: the model has no such head; its attention layers are {some}")
    return named


def require_stacks(sites: Sites, stacks: Iterable[str] | None) -> tuple[str, ...]:
    """Return the head stacks that are given, or all."""
    known = dict.fromkeys(stack for site in sites for stack, _ in site.places)
    for stack in (chosen := tuple(stacks or known)):
        if stack not in known:
            raise HeadjaxError(f"head stack: the model has no head stack {stack!r}; it has {', '.join(known)}")
    return chosen


def with_tied(sites: Sites, heads: Iterable[HeadId]) -> tuple[HeadId, ...]:
    """Return the heads, and those at other depths of layers that share parameters."""
    known, named = find_heads(sites), dict.fromkeys(heads)
    for head in tuple(named):
        site, _ = known[head]
        named |= dict.fromkeys(HeadId(*place, head.head) for place in site.places if site.tied)
    return tuple(named)


def to_values(sites: Sites, arrays: Mapping[str, Any]) -> dict[HeadId, float]:
    """Return the entries of arrays of the gates' shape by head."""
    values: dict[HeadId, float] = {}
    for site in sites:
        values |= dict(zip(site.head_ids(), map(float, arrays[site.path].reshape(-1)), strict=True))
    return values


def at_path(root: Any, path: str) -> Any:
    """Return the object at a path of attributes, keys and numbers, such as `layers.3.attn`, or raise KeyError."""
    here = root
    for part in filter(None, path.split(".")):
        try:
            here = here[_key(here, part)] if isinstance(here, Mapping | Sequence) else getattr(here, part)
        except (AttributeError, LookupError, ValueError):
            raise KeyError(path) from None
    return here


def is_within(path: str, outer: str) -> bool:
    """Return whether the object at a path is inside the one at the path `outer`."""
    return path != outer and (outer == ROOT or path.startswith(f"{outer}."))


def cuts_itself(model: nnx.Module, site: AttentionSite) -> bool:
    """Return whether a layer has `keep_heads` (headjax's have), which works without an axis of layers."""
    return site.layers is None and hasattr(at_path(model, site.path), "keep_heads")


def put_at(root: Any, path: str, new: Any) -> None:
    """Put a module in the place of the one at a path that is not the root."""
    parent, _, last = path.rpartition(".")
    holder = at_path(root, parent)
    if isinstance(holder, Mapping | Sequence):
        holder[_key(holder, last)] = new  # type: ignore[index]
    else:
        setattr(holder, last, new)


def _key(holder: Any, part: str) -> Any:
    return int(part) if isinstance(holder, Sequence) or (part.isdecimal() and part not in holder) else part


def size_of(site: AttentionSite, path: str, shape: Sequence[int], axis: int, heads: int) -> int:
    """Return the number of entries that a head has along its axis: 1, or `head_dim`."""
    if not -len(shape) <= axis < 0:
        raise HeadjaxError(f"{site.path}: {path} has shape {list(shape)}, which has no axis {axis} from the last one")
    if shape[axis] == heads:
        return 1
    beside = (heads, site.head_dim) in itertools.pairwise(shape)  # the heads lie there, and not along an equal width
    if shape[axis] == heads * site.head_dim and not beside:
        return site.head_dim
    what = f"axis {axis} is not that of {heads} heads of {site.head_dim}"
    raise HeadjaxError(f"{site.path}: {path} has shape {list(shape)}, whose {what}")


def kept_along(
    site: AttentionSite, path: str, shape: Sequence[int], axis: int, kinds: str, query: np.ndarray, key: np.ndarray
) -> np.ndarray:
    """Return which entries along a parameter's axis belong to kept query heads `[heads]` and KV heads `[kv_heads]`."""
    entries = size_of(site, path, shape, axis, site.count(kinds))
    return np.repeat(np.concatenate([query if kind == "q" else key for kind in kinds]), entries)


def output_matrix(site: AttentionSite, projection: Any) -> jax.Array:
    """Return W_O of an output projection as `[..., heads, head_dim, width]`, low-rank matrices (`nnx.LoRA`) added."""
    kernel = at_path(projection, site.kernel.removeprefix(f"{site.output}."))[...]
    front = kernel.shape[: kernel.ndim + dict(site.query)[site.kernel]]
    matrix: jax.Array = kernel.reshape(*front, site.heads * site.head_dim, -1)
    for _, module in nnx.iter_modules(projection, graph=True):
        if isinstance(module, nnx.LoRA):
            matrix = matrix + module.lora_a[...] @ module.lora_b[...]
    return matrix.reshape(*front, site.heads, site.head_dim, -1)


def parameters(layer: Any) -> Iterator[tuple[str, nnx.Variable]]:
    """Yield the path and the variable of every array within a layer."""
    for path, module in nnx.iter_modules(layer, graph=True):
        for name, entry in vars(module).items():
            if isinstance(entry, nnx.Variable) and hasattr(entry[...], "shape"):
                yield ".".join(map(str, (*path, name))), entry


SECOND_MAPS = ("down_proj", "fc2", "linear2", "dense2", "w2", "wo", "linear_out", "fc_out", "c_proj", "down")
"""Names of a feed-forward's second map."""


def second_maps(model: nnx.Module, sites: Sites) -> Iterator[AttentionSite]:
    """Yield the second maps of the feed-forwards beside the attention layers, whose units are heads of size 1."""
    for site in sites:
        block = site.path.rpartition(".")[0]
        modules: dict[str, Any] = {
            ".".join(map(str, path)): module
            for path, module in nnx.iter_modules(at_path(model, block), graph=True)
            if path
            and path[-1] in SECOND_MAPS
            and isinstance(getattr(module, "kernel", None), nnx.Variable)
            and str(path[0]) != site.path.rpartition(".")[2]
        }
        if len(modules) != 1:
            raise HeadjaxError(
                f"feed_forward: beside {site.path} there are {len(modules)} second maps of a feed-forward; looked for "
                f"{', '.join(SECOND_MAPS)}"
            )
        ((path, module),) = modules.items()
        holder, _, name = f"{block}.{path}".strip(".").rpartition(".")
        units = module.kernel[...].shape[-2]
        kinds: dict[str, Any] = {"output": name, "kernel": f"{name}.kernel", "query": ((f"{name}.kernel", -2),)}
        yield AttentionSite(heads=units, kv_heads=units, head_dim=1, path=holder, layers=site.layers, **kinds)
