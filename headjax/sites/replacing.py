"""Put attention layers of headjax in the place of a model's own, behind the signature that the model calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import nnx

from headjax.attention import AttentionModule, GroupedAttention, RotaryHalves
from headjax.core.errors import HeadjaxError
from headjax.core.norms import RMSNorm
from headjax.sites.discovery import find_sites
from headjax.sites.site import AttentionSite, at_path, parameters, put_at

NO_CACHE = "cache: a layer of headjax fills no cache of the layer that it replaces; call it with whole texts"

LayerChange = Callable[[AttentionModule], AttentionModule]
"""Function of the layer with a model's own weights that returns the layer to put in its place."""


class Adapter(nnx.Module):
    """An attention module of headjax behind another one's signature.

    Attributes:
        inner: The module of headjax.
    """

    def __init__(self, inner: AttentionModule, layer: Any) -> None:
        """Take the place of a layer, by which the model calls the inner one."""
        self.inner = inner


class FlaxSignature(Adapter):
    """Called as `nnx.MultiHeadAttention`, whose random numbers and `deterministic` it keeps."""

    def __init__(self, inner: AttentionModule, layer: Any) -> None:
        super().__init__(inner, layer)
        self.rngs, self.deterministic, self.decode = layer.rngs, layer.deterministic, layer.decode

    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        rngs: Any = None,
        decode: bool | None = None,
        is_causal: bool = False,
        **options: Any,
    ) -> jax.Array:
        """Return `[batch, query, width]`."""
        if self.decode if decode is None else decode:
            raise HeadjaxError(NO_CACHE)
        if inputs_v is not None and inputs_v is not inputs_k:
            raise HeadjaxError("inputs_v: a layer of headjax takes keys and values from the same inputs")
        unknown = next((name for name, value in options.items() if value is not None and value is not False), None)
        if unknown is not None:
            raise HeadjaxError(f"{unknown}: a layer of headjax takes no such argument")
        rngs, drawn = self.rngs if rngs is None else rngs, None
        drops = not (self.deterministic if deterministic is None else deterministic)
        if drops and self.inner.options.dropout_rate > 0.0:
            if rngs is None:
                raise HeadjaxError("rngs: needed for dropout, which deterministic=True turns off")
            drawn = rngs if isinstance(rngs, nnx.Rngs) else nnx.Rngs(dropout=rngs())
        found: jax.Array = self.inner(inputs_q, inputs_k, mask=mask, is_causal=is_causal, rngs=drawn)
        return found


class TunixSignature(Adapter):
    """Called as the attention of Tunix's Llama 3 and Qwen 3: inputs, positions, cache, mask."""

    def __call__(
        self, x: jax.Array, segment_pos: jax.Array, cache: Any, attn_mask: jax.Array | None, segment_ids: Any = None
    ) -> tuple[None, jax.Array]:
        """Return no cache, and `[batch, query, width]`."""
        return None, _causal(self.inner, x, cache, attn_mask, segment_ids, segment_pos)


class TurnedSignature(Adapter):
    """Called as the attention of Tunix's Qwen 2, which gets sines and cosines in place of positions.

    Positions are counted from 0. Rotary embeddings see their differences alone, which are the same wherever the tokens
    of a text follow one another.
    """

    def __call__(
        self, x: jax.Array, cache: Any, attn_mask: jax.Array | None, sin: Any, cos: Any, segment_ids: Any = None
    ) -> tuple[None, jax.Array]:
        """Return no cache, and `[batch, query, width]`."""
        return None, _causal(self.inner, x, cache, attn_mask, segment_ids, None)


def _causal(inner: Any, x: jax.Array, cache: Any, mask: Any, segment_ids: Any, positions: Any) -> jax.Array:
    if cache is not None:
        raise HeadjaxError(NO_CACHE)
    if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        mask = same if mask is None else mask & same
    found: jax.Array = inner(x, mask=None if mask is None else mask[:, None], positions=positions)
    return found


def replace_attention(model: nnx.Module, to: str | LayerChange, *, layers: Iterable[str] | None = None) -> nnx.Module:
    """Return the model with its attention layers replaced by those of headjax, and nothing else changed.

    Each gets the weights of the layer that it replaces. It then becomes another formulation (`grouped:kv_heads=2`,
    `latent:rank=64`, `collaborative:shared_dim=128`, ...), or the result of a function (`lambda layer:
    layer.keep_heads([0, 1, 2])` leaves unequal groups). The model runs on whole texts and trains; its decoding cache,
    which it cannot fill, is refused. The model handed in stays as it is.

    There are adapters for `nnx.MultiHeadAttention`, and for the attention of Tunix's Llama 3, Qwen 2 and Qwen 3. Layers
    that compute something else (an `attention_fn` of their own, as for rotary embeddings, `normalize_qk`, more weights)
    are refused. Dropout keeps its rate, and is drawn for every example. The new layers lie at `inner` within the
    adapter, so that their heads are named `layers.3.attn.inner/5`.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> model = headjax.replace_attention(nnx.List([layer]), "grouped:kv_heads=2")
        >>> [(site.path, site.kv_heads) for site in headjax.attention_sites(model)]
        [('0.inner', 2)]

    Args:
        model: Any module; its layers are found as `attention_sites` finds them.
        to: Target of `headjax.convert`, or function of a layer of headjax that returns another one.
        layers: Paths of the layers to replace; None is all.

    Raises:
        HeadjaxError: There is no adapter for a layer's class, a layer has something that the new one would leave out,
            there is no layer at a path, or a layer cannot become the target.
    """
    sites = {site.path: site for site in find_sites(model)}
    chosen = list(sites) if layers is None else list(layers)
    copy: Any = nnx.clone(model, graph=True)
    for path in chosen:
        if path not in sites:
            raise HeadjaxError(f"layers: {path}: the model has no attention layer there; it has {', '.join(sites)}")
        layer = at_path(copy, path)
        own, signature = _own_layer(layer, sites[path])
        new = signature(own.convert(to) if isinstance(to, str) else to(own), layer)
        if path == ".":
            return new
        put_at(copy, path, new)
    return copy


def _own_layer(layer: Any, site: AttentionSite) -> tuple[AttentionModule, type[Adapter]]:
    """Return the module of headjax with a layer's weights, and the adapter for the layer's class."""
    named = re.fullmatch(r"tunix\.models\.(llama3|qwen2|qwen3)\.model", type(layer).__module__)
    if site.layers is None and isinstance(layer, nnx.MultiHeadAttention):
        _require_plain(layer, site)
        paths = {name: f"{name}.kernel" for name in ("query", "key", "value")} | {"output": "out.kernel"}
        paths |= {f"{name}_bias": path.replace("kernel", "bias") for name, path in paths.items()}
        params = _taken(layer, site, paths)
        return _module(site, params, dropout_rate=layer.dropout_rate, dtype=layer.dtype), FlaxSignature
    if site.layers is not None or named is None:
        raise HeadjaxError(
            f"{site.path}: there is no adapter for {type(layer).__qualname__}; there are ones for layers one by one of "
            "nnx.MultiHeadAttention, and of Tunix's Llama 3, Qwen 2 and Qwen 3"
        )
    names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    paths = {name: f"{letter}_proj.w" for name, letter in names.items()}
    paths |= {f"{name}_bias": f"{letter}_bias" for name, letter in list(names.items())[:3]}
    norms = {f"{name}_norm": getattr(layer, f"{name[0]}_norm", None) for name in ("query", "key")}
    params = _taken(layer, site, paths | {name: f"{name[0]}_norm.w" for name in norms})
    params |= {name: {"scale": params[name]} for name in norms if name in params}
    fields = {name: RMSNorm(norm.norm_eps) for name, norm in norms.items() if norm is not None}
    # Llama 3 and Qwen 3 of Tunix 0.1.7 turn by a base of their own, whatever their config says.
    base = float(layer.config.rope_theta) if named[1] == "qwen2" else 1e6
    own = _module(site, params, rotary=RotaryHalves(base=base), **fields)
    return own, TurnedSignature if named[1] == "qwen2" else TunixSignature


COMPUTED = (
    "attention_fn", "normalize_qk", "precision", "qkv_promote_dtype", "out_promote_dtype", "qkv_dot_general",
    "out_dot_general", "qkv_dot_general_cls", "out_dot_general_cls",
)  # fmt: skip
"""Arguments of `nnx.MultiHeadAttention` that change what it computes, and which a layer of headjax does not know."""


def _require_plain(layer: Any, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where a `nnx.MultiHeadAttention` computes what a layer of headjax would leave out."""
    known = inspect.signature(nnx.MultiHeadAttention.__init__).parameters
    other = [f"its {name}" for name in COMPUTED if name in known and getattr(layer, name) != known[name].default]
    other += [] if type(layer).__call__ is nnx.MultiHeadAttention.__call__ else [f"{type(layer).__qualname__}.__call__"]
    for name in ("query", "key", "value", "out"):
        cls = type(getattr(layer, name))
        other += [] if cls is nnx.LinearGeneral else [f"its {name}, a {cls.__qualname__}"]
    other += [] if layer.out_features == layer.in_features else ["its out_features, other than in_features"]
    if other:
        raise HeadjaxError(f"{site.path}: {other[0]}: a layer of headjax cannot take its place, and would leave it out")


def _taken(layer: nnx.Module, site: AttentionSite, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the arrays at these paths by the names of headjax, those that there are."""
    held = {path: variable for path, variable in parameters(layer) if isinstance(variable, nnx.Param)}
    other = next((path for path in held if path not in paths.values()), None)
    if other is not None:
        raise HeadjaxError(
            f"{site.path}: its {other}: a layer of headjax has no such parameter, and would leave it out"
        )
    return {name: held[path][...] for name, path in paths.items() if path in held}


def _module(site: AttentionSite, params: dict[str, Any], **fields: Any) -> AttentionModule:
    """Return the grouped attention that has these arrays."""
    sizes: dict[str, Any] = {"num_heads": site.heads, "kv_heads": site.kv_heads, "head_dim": site.head_dim}
    held = dict(params)
    for name, heads in (("query_bias", site.heads), ("key_bias", site.kv_heads), ("value_bias", site.kv_heads)):
        if name in held:
            held[name] = held[name].reshape(heads, site.head_dim)
    sizes |= {"projection_bias": "query_bias" in held, "output_bias": "output_bias" in held}
    width, memory_width = held["query"].shape[0], held["key"].shape[0]
    return GroupedAttention(width, params=held, memory_width=memory_width, **sizes, **fields)
