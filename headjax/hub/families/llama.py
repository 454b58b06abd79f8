"""Llama, Mistral, Qwen2, Qwen3, SmolLM3 and Phi-3: grouped heads, rotary positions, gated feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.families.positions import POSITIONS, LayerTypes, rotary, window, written_part
from headjax.hub.family import Family, HeadShape, any_size
from headjax.hub.fields import Fields
from headjax.hub.rules import QUERY_KEY_VALUE, Rules, affine, one, projection, projections, under
from headjax.hub.table import Custom, Entry, Field, Layers, Optional, Record, activation, flag, number, record, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import RMSNorm

_WIDTH, _HEADS = size("hidden_size"), size("num_attention_heads")
_KV_HEADS = "num_key_value_heads"
_HEAD_DIM = size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields))
_NORM = record(RMSNorm, epsilon=number("rms_norm_eps", 1e-6))


def decoder_table(
    *,
    projection_bias: Entry | bool,
    output_bias: Entry | bool,
    feed_forward_bias: Entry | bool = False,
    rotary_positions: Entry = rotary(),
    head_dim: Field | None = None,
    kv_heads: int | None = None,
    head_norm: Record | None = None,
    layer_window: Entry | None = None,
    layers: Callable[[Field, Mapping[str, Any]], Layers] = Layers,
    part: Field | None = None,
    **more: Any,
) -> Record:
    """Return the table of a decoder; `part` is the field of the share of dimensions that turn.

    `kv_heads` counts where there is no field of their number; where it is null, or without `kv_heads`, all heads do.
    """
    attention = record(
        GroupedAttention,
        num_heads=_HEADS,
        kv_heads=size(
            _KV_HEADS,
            lambda fields: kv_heads if kv_heads and _KV_HEADS not in fields.data else _HEADS.read(fields),
        ),
        head_dim=head_dim or _HEAD_DIM,
        projection_bias=projection_bias,
        output_bias=output_bias,
        rotary=rotary_positions,
        query_norm=head_norm,
        key_norm=head_norm,
    )
    if part is not None:
        attention = attention.writing(lambda attention: written_part(attention, part))
    layer = {"attention": attention, "hidden": size("intermediate_size"), "window": layer_window}
    return record(
        DecoderConfig,
        layers(size("num_hidden_layers"), layer),
        width=_WIDTH,
        vocab_size=size("vocab_size"),
        positions="none",
        max_length=POSITIONS,
        activation=activation("hidden_act", "silu"),
        gated=True,
        feed_forward_bias=feed_forward_bias,
        attention_dropout=number("attention_dropout", 0.0),
        initializer=INITIALIZER,
        **{"norm": _NORM} | more,
    )


_WEIGHTS: Rules = (
    *projections("self_attn.", "q_proj k_proj v_proj o_proj", "attention"),
    *one("self_attn.q_norm.weight", "attention/query_norm/scale"),
    *one("self_attn.k_norm.weight", "attention/key_norm/scale"),
    *projection("mlp.gate_proj", "feed_forward/gate"),
    *projection("mlp.up_proj", "feed_forward/up"),
)


def decoder_rules(norms: Rules, weights: Rules = _WEIGHTS) -> Rules:
    """Return the names of a decoder's tensors with these of a layer's norms and maps."""
    layer = (*weights, *projection("mlp.down_proj", "feed_forward/down"), *norms)
    return (
        *one("embed_tokens.weight", "embeddings/token"),
        *under("layers.{}.", "decoder/{}/", layer),
        *one("norm.weight", "decoder/final_norm/scale"),
    )


_NORMS: Rules = (
    *one("input_layernorm.weight", "attention_residual/norm/scale"),
    *one("post_attention_layernorm.weight", "feed_forward_residual/norm/scale"),
)


def grouped(shape: HeadShape, like: Kind) -> Kind:
    """Return grouped heads with the biases, rotary positions and norms that `like` has."""
    names = ("projection_bias", "output_bias", "rotary", "query_norm", "key_norm")
    alike = {name: like.options[name] for name in names if name in like.options}
    return Kind(
        GroupedAttention,
        num_heads=shape.num_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        **(alike if issubclass(like.of, GroupedAttention) else {}),
    )


_DEFAULTS = {"max_position_embeddings": 2048}
"""A context length, without which llama.cpp loads no model; transformers assumes this one for Llama."""


def decoder_family(model_type: str, class_prefix: str, config: Record, **parts: Any) -> Family:
    """Return a family of decoders."""
    shared: dict[str, Any] = {
        "prefix": "model.",
        "classes": text_classes(flag("tie_word_embeddings", False)),
        "rules": decoder_rules(_NORMS),
        "copies": (("lm_head.weight", "model.embed_tokens.weight"),),
        "defaults": _DEFAULTS,
        "head_shape": any_size,
        "standard": grouped,
    }
    return Family(model_type=model_type, class_prefix=class_prefix, config=config, **(shared | parts))


def _used(default: int | None) -> Custom:
    """Return the entry of a window, of a family with the field `use_sliding_window`."""
    return Custom(
        lambda fields: window(default).read(fields) if fields.flag("use_sliding_window", False) else None,
        lambda width: {"use_sliding_window": width is not None, "sliding_window": width},
    )


def _windows(count: Field, layer: Mapping[str, Any]) -> Layers:
    """Return Qwen's layers, of which those from `max_window_layers` on slide where no types are listed."""
    width, after = _used(4096), size("max_window_layers", 28)
    types = LayerTypes(lambda fields, number: width.read(fields) is not None and number >= after.read(fields), width)
    return Layers(count, layer, types.spread, types.gather)


def _without_positions(count: Field, layer: Mapping[str, Any]) -> Layers:
    """Return SmolLM3's layers, of which every fourth has no rotary positions unless a list says otherwise."""
    width = _used(None)

    def spread(fields: Fields, length: int) -> list[dict[str, Any]]:
        every = size("no_rope_layer_interval", 4).read(fields)
        turning = fields.data.get("no_rope_layers")
        if turning is None:
            turning = [int((number + 1) % every != 0) for number in range(length)]
        if not isinstance(turning, list) or len(turning) < length or not {*turning} <= {0, 1}:
            message = f"expected a list of {length} numbers, 1 for rotary positions and 0 for none, got {turning!r}"
            raise fields.error("no_rope_layers", message)
        types = LayerTypes(lambda fields, number: width.read(fields) is not None and not turning[number], width)
        layers = zip(types.spread(fields, length), turning, strict=False)
        return [config | {_TURNS.name: bool(turns)} for config, turns in layers]

    def gather(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        fields = LayerTypes(lambda fields, number: False, width).gather(written)
        del fields[_TURNS.name]
        return fields | {"no_rope_layers": [int(layer[_TURNS.name]) for layer in written]}

    return Layers(count, layer, spread, gather)


_TURNS = flag("use_rope")
"""Whether a layer has rotary positions: no field of the file, which has a list in `no_rope_layers`."""
_ATTENTION_BIAS, _BIAS = flag("attention_bias", False), flag("mlp_bias", False)

LLAMA = decoder_family(  # Touvron et al. 2023
    "llama",
    "Llama",
    decoder_table(projection_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, feed_forward_bias=_BIAS),
)
MISTRAL = decoder_family(  # Jiang et al. 2023
    "mistral",
    "Mistral",
    decoder_table(projection_bias=False, output_bias=False, kv_heads=8, layer_window=window(4096)),
    supported={"layer_types": (None,)},
)
QWEN2 = decoder_family(
    "qwen2",
    "Qwen2",
    decoder_table(projection_bias=True, output_bias=False, kv_heads=32, layer_window=window(), layers=_windows),
)
QWEN3 = decoder_family(
    "qwen3",
    "Qwen3",
    decoder_table(
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        head_dim=size("head_dim", 128),
        kv_heads=32,
        head_norm=_NORM,
        layer_window=window(),
        layers=_windows,
    ),
)
SMOLLM3 = decoder_family(
    "smollm3",
    "SmolLM3",
    decoder_table(
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        feed_forward_bias=_BIAS,
        rotary_positions=Optional(rotary(base=2e6), when=_TURNS),
        kv_heads=4,
        layer_window=window(),
        layers=_without_positions,
    ),
    classes=text_classes(flag("tie_word_embeddings", True)),
)

_PART = number("partial_rotary_factor", 1.0)
_FUSED: Rules = (
    *projection("self_attn.qkv_proj", QUERY_KEY_VALUE),
    *affine("self_attn.o_proj", "attention/output"),
    *projection("mlp.gate_up_proj", ("feed_forward/gate", "feed_forward/up")),
)

PHI3 = decoder_family(  # Abdin et al. 2024: fused maps, of whose heads a part of the dimensions may turn
    "phi3",
    "Phi3",
    decoder_table(
        projection_bias=False,
        output_bias=False,
        rotary_positions=rotary(part=_PART, head_dim=_HEAD_DIM),
        part=_PART,
        layer_window=window(),
        norm=record(RMSNorm, epsilon=number("rms_norm_eps", 1e-5)),
        dropout=number("resid_pdrop", 0.0),
        embedding_dropout=Optional(number("embd_pdrop", 0.0), when=lambda fields: True),
    ),
    classes=text_classes(flag("tie_word_embeddings", False), padding=32000),
    rules=decoder_rules(_NORMS, _FUSED),
    supported={"layer_types": (None,), "rope_scaling": (None,)},  # longrope depends on the length of a text
)
