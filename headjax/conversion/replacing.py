"""Put attention layers of headjax in the place of a model's own, behind the signature that the model calls."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import nnx

from headjax.conversion.model import convert_attention
from headjax.core.errors import HeadjaxError, require
from headjax.core.tensors import nested
from headjax.heads.discovery import ADAPTERS, find_sites
from headjax.heads.site import AttentionSite, at_path, parameters, put_at
from headjax.nn import AttentionModule, GroupedAttention, RotaryHalves
from headjax.nn.norms import RMSNorm

NO_CACHE = "cache: a layer of headjax fills no cache of the layer that it replaces; call it with whole texts"

LayerChange = Callable[[AttentionModule], AttentionModule]
"""Function of the layer with a model's own weights that returns the layer to put in its place."""


class AttentionAdapter(nnx.Module, abc.ABC):
    """An attention module of headjax behind another class's signature, `headjax.register_attention(cls, adapter=...)`.

    A subclass says what a layer is as a module of headjax (`inner_of`), and how the model calls it (`__call__`).

        >>> class Turned(nnx.MultiHeadAttention):
        ...     def __call__(self, x):
        ...         return super().__call__(jnp.flip(x, axis=-2))
        >>> class TurnedAdapter(headjax.AttentionAdapter):
        ...     @classmethod
        ...     def inner_of(cls, layer, site):
        ...         params = {name: getattr(layer, name).kernel[...] for name in ("query", "key", "value")}
        ...         params["output"] = {"kernel": layer.out.kernel[...]}
        ...         return headjax.MultiHeadAttention(
        ...             16, num_heads=site.heads, params=params, projection_bias=False, output_bias=False
        ...         )
        ...     def __call__(self, x):
        ...         return self.inner(jnp.flip(x, axis=-2))
        >>> headjax.register_attention(Turned, adapter=TurnedAdapter)
        >>> layer = Turned(4, 16, use_bias=False, decode=False, rngs=nnx.Rngs(0))
        >>> replaced = headjax.replace_attention(layer, lambda own: own)
        >>> x = jnp.ones((1, 3, 16))
        >>> bool(jnp.allclose(replaced(x), layer(x), atol=1e-5))
        True

    Attributes:
        inner: The module of headjax.
    """

    def __init__(self, inner: AttentionModule, layer: Any) -> None:
        """Take the place of a layer, by which the model calls the inner one."""
        self.inner = inner

    @classmethod
    @abc.abstractmethod
    def inner_of(cls, layer: Any, site: AttentionSite) -> AttentionModule:
        """Return the module of headjax that computes what a layer does, with its weights."""


class FlaxSignature(AttentionAdapter):
    """Called as `nnx.MultiHeadAttention`, whose random numbers and `deterministic` it keeps."""

    def __init__(self, inner: AttentionModule, layer: Any) -> None:
        super().__init__(inner, layer)
        self.rngs, self.deterministic, self.decode = layer.rngs, layer.deterministic, layer.decode

    @classmethod
    def inner_of(cls, layer: Any, site: AttentionSite) -> AttentionModule:
        """Return grouped attention with the layer's weights and dropout."""
        _require_plain(layer, site)
        paths = {"output/kernel": "out.kernel", "output/bias": "out.bias"}
        for name in ("query", "key", "value"):
            paths |= {name: f"{name}.kernel", f"{name}_bias": f"{name}.bias"}
        return _grouped(layer, site, paths, dropout_rate=layer.dropout_rate, dtype=layer.dtype)

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
        if drops and self.inner.setting.dropout_rate > 0.0:
            if rngs is None:
                raise HeadjaxError("rngs: needed for dropout, which deterministic=True turns off")
            drawn = rngs if isinstance(rngs, nnx.Rngs) else nnx.Rngs(dropout=rngs())
        output: jax.Array = self.inner(inputs_q, inputs_k, mask=mask, is_causal=is_causal, rngs=drawn)
        return output


class TunixSignature(AttentionAdapter):
    """Called as the attention of Tunix's Llama 3 and Qwen 3: inputs, positions, cache, mask."""

    @classmethod
    def inner_of(cls, layer: Any, site: AttentionSite) -> AttentionModule:
        """Return grouped attention with the layer's weights, norms and rotary embeddings."""
        paths, norms = {"output/kernel": "o_proj.w"}, dict[str, RMSNorm]()
        for name, letter in {"query": "q", "key": "k", "value": "v"}.items():
            paths |= {name: f"{letter}_proj.w", f"{name}_bias": f"{letter}_bias"}
            norm = getattr(layer, f"{letter}_norm", None)
            if norm is not None:
                paths[f"{name}_norm/scale"] = f"{letter}_norm.w"
                norms[f"{name}_norm"] = RMSNorm(norm.norm_eps)
        return _grouped(layer, site, paths, rotary=RotaryHalves(base=cls.base(layer)), **norms)

    @staticmethod
    def base(layer: Any) -> float:
        return 1e6  # that of Llama 3 and Qwen 3 of Tunix 0.1.7, whatever their config says

    def __call__(
        self,
        x: jax.Array,
        segment_pos: jax.Array | None,
        cache: Any,
        attn_mask: jax.Array | None,
        segment_ids: Any = None,
    ) -> tuple[None, jax.Array]:
        """Return no cache, and `[batch, query, width]`."""
        if cache is not None:
            raise HeadjaxError(NO_CACHE)
        mask = attn_mask
        if segment_ids is not None:
            same = segment_ids[:, :, None] == segment_ids[:, None, :]
            mask = same if mask is None else mask & same
        return None, self.inner(x, mask=None if mask is None else mask[:, None], positions=segment_pos)


class SinCosSignature(TunixSignature):
    """Called as the attention of Tunix's Qwen 2, which gets sines and cosines in place of positions.

    Positions are counted from 0. Rotary embeddings see their differences alone, which are the same wherever the tokens
    of a text follow one another.
    """

    @staticmethod
    def base(layer: Any) -> float:
        return float(layer.config.rope_theta)

    def __call__(  # type: ignore[override]
        self, x: jax.Array, cache: Any, attn_mask: jax.Array | None, sin: Any, cos: Any, segment_ids: Any = None
    ) -> tuple[None, jax.Array]:
        """Return no cache, and `[batch, query, width]`."""
        return super().__call__(x, None, cache, attn_mask, segment_ids)


def replace_attention(model: nnx.Module, to: str | LayerChange, *, layers: Iterable[str] | None = None) -> nnx.Module:
    """Return the model with its attention layers replaced by those of headjax, and nothing else changed.

    Each gets the weights of the layer that it replaces. It then becomes another formulation (`grouped:kv_heads=2`,
    `latent:rank=64`, `collaborative:shared_dim=128`, ...), or the result of a function (`lambda layer:
    layer.keep_heads([0, 1, 2])` leaves unequal groups). The model runs on whole texts and trains; its decoding cache,
    which it cannot fill, is refused. The model handed in stays as it is.

    There are adapters for `nnx.MultiHeadAttention`, and for the attention of Tunix's Llama 3, Qwen 2 and Qwen 3; any
    other class gets one by `register_attention(cls, adapter=...)`, see `AttentionAdapter`. Layers of a known class that
    compute something else (an `attention_fn` of their own, as for rotary embeddings, `normalize_qk`, more weights) are
    refused. Dropout keeps its rate, and is drawn for every example. The new layers lie at `inner` within the
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
    require(not isinstance(layers, str), "layers", f"expected a list of paths, got the text {layers!r}")
    chosen = list(sites) if layers is None else list(layers)
    copy: Any = nnx.clone(model, graph=True)
    for path in chosen:
        if path not in sites:
            raise HeadjaxError(f"layers: {path}: the model has no attention layer there; it has {', '.join(sites)}")
        layer = at_path(copy, path)
        adapter = _adapter_of(layer, sites[path])
        attention = adapter.inner_of(layer, sites[path])
        inner = convert_attention(attention, to) if isinstance(to, str) else to(attention)
        if not isinstance(inner, AttentionModule):
            raise HeadjaxError(f"to: {path}: the function returned {type(inner).__name__}, no attention of headjax")
        new = adapter(inner, layer)
        if path == ".":
            return new
        put_at(copy, path, new)
    return copy


def _adapter_of(layer: Any, site: AttentionSite) -> type[AttentionAdapter]:
    tunix = re.fullmatch(r"tunix\.models\.(llama3|qwen2|qwen3)\.model", type(layer).__module__)
    adapters = {nnx.MultiHeadAttention: FlaxSignature} | ADAPTERS
    adapter = next((adapters[cls] for cls in type(layer).__mro__ if cls in adapters), None)
    if adapter is None and tunix is not None:
        adapter = SinCosSignature if tunix[1] == "qwen2" else TunixSignature
    if adapter is None or site.layers is not None:
        raise HeadjaxError(
            f"{site.path}: there is no adapter for {type(layer).__qualname__}; there are ones for layers one by one of "
            "nnx.MultiHeadAttention, of Tunix's Llama 3, Qwen 2 and Qwen 3, and of classes with one of their own: "
            "headjax.register_attention(cls, adapter=...)"
        )
    return adapter


COMPUTED = (
    "attention_fn", "normalize_qk", "precision", "qkv_promote_dtype", "out_promote_dtype", "qkv_dot_general",
    "out_dot_general", "qkv_dot_general_cls", "out_dot_general_cls",
)  # fmt: skip
"""Arguments of `nnx.MultiHeadAttention` that change what it computes, and which a layer of headjax does not know."""


def _require_plain(layer: Any, site: AttentionSite) -> None:
    """Raise `HeadjaxError` where a `nnx.MultiHeadAttention` computes what a layer of headjax would leave out."""
    options = inspect.signature(nnx.MultiHeadAttention.__init__).parameters
    other = [f"its {name}" for name in COMPUTED if name in options and getattr(layer, name) != options[name].default]
    other += [] if type(layer).__call__ is nnx.MultiHeadAttention.__call__ else [f"{type(layer).__qualname__}.__call__"]
    for name in ("query", "key", "value", "out"):
        cls = type(getattr(layer, name))
        other += [] if cls is nnx.LinearGeneral else [f"its {name}, a {cls.__qualname__}"]
    other += [] if layer.out_features == layer.in_features else ["its out_features, other than in_features"]
    if other:
        raise HeadjaxError(f"{site.path}: {other[0]}: a layer of headjax cannot take its place, and would leave it out")


def _grouped(layer: nnx.Module, site: AttentionSite, paths: Mapping[str, str], **fields: Any) -> AttentionModule:
    """Return grouped attention with a layer's arrays, whose `paths` in the layer stand by the names of headjax."""
    arrays = {path: variable[...] for path, variable in parameters(layer) if isinstance(variable, nnx.Param)}
    other = next((path for path in arrays if path not in paths.values()), None)
    if other is not None:
        raise HeadjaxError(
            f"{site.path}: its {other}: a layer of headjax has no such parameter, and would leave it out"
        )
    params = {name: arrays[path] for name, path in paths.items() if path in arrays}
    for name, heads in (("query_bias", site.heads), ("key_bias", site.kv_heads), ("value_bias", site.kv_heads)):
        if name in params:
            params[name] = params[name].reshape(heads, site.head_dim)
    return GroupedAttention(
        params["query"].shape[0],
        params["key"].shape[0],
        num_heads=site.heads,
        kv_heads=site.kv_heads,
        head_dim=site.head_dim,
        head_ids=site.ids,
        projection_bias="query_bias" in params,
        output_bias="output/bias" in params,
        params=nested(params),
        **fields,
    )
