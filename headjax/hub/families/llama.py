"""Llama, Mistral, Qwen2, Qwen3, SmolLM3, Phi-3, Gemma: grouped heads, rotary positions, gated feed-forward layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.hub import rules, table
from headjax.hub.families import entries
from headjax.hub.family import Family, HeadShape, any_size
from headjax.hub.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import OffsetRMSNorm, RMSNorm
from headjax.nn.rotary import Rotary

_WIDTH, _HEADS = table.size("hidden_size"), table.size("num_attention_heads")
_KV_HEADS = "num_key_value_heads"
_HEAD_DIM = table.size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields))
_NORM = table.record(RMSNorm, epsilon=table.number("rms_norm_eps", 1e-6))


def _table(
    *,
    projection_bias: table.Entry | bool,
    output_bias: table.Entry | bool,
    feed_forward_bias: table.Entry | bool = False,
    rotary_positions: table.Entry = entries.rotary(),
    head_dim: table.Field | None = None,
    kv_heads: int | None = None,
    head_norm: table.Record | None = None,
    layer_window: table.Entry | None = None,
    layers: Callable[[table.Field, Mapping[str, Any]], table.Layers] = table.Layers,
    part: table.Field | None = None,
    **more: Any,
) -> table.Record:
    """Return the table of a decoder; `part` is the field of the share of dimensions that turn.

    `kv_heads` counts where there is no field of their number; where it is null, or without `kv_heads`, all heads do.
    """
    attention = table.record(
        GroupedAttention,
        num_heads=_HEADS,
        kv_heads=table.size(
            _KV_HEADS, lambda fields: kv_heads if kv_heads and _KV_HEADS not in fields.data else _HEADS.read(fields)
        ),
        head_dim=head_dim or _HEAD_DIM,
        projection_bias=projection_bias,
        output_bias=output_bias,
        rotary=rotary_positions,
        query_norm=head_norm,
        key_norm=head_norm,
    )
    if part is not None:
        attention = attention.writing(lambda attention: entries.written_part(attention, part))
    layer = {"attention": attention, "hidden": table.size("intermediate_size"), "window": layer_window}
    return table.record(
        DecoderConfig,
        layers(table.size("num_hidden_layers"), layer),
        width=_WIDTH,
        vocab_size=table.size("vocab_size"),
        positions="none",
        max_length=entries.POSITIONS,
        activation=table.activation("hidden_act", "silu"),
        gated=True,
        feed_forward_bias=feed_forward_bias,
        attention_dropout=table.number("attention_dropout", 0.0),
        initializer=entries.INITIALIZER,
        **{"norm": _NORM} | more,
    )


_ATTENTION: rules.Rules = (
    *rules.projections("self_attn.", "q_proj k_proj v_proj o_proj", "attention"),
    *rules.norm("self_attn.q_norm", "attention/query_norm"),
    *rules.norm("self_attn.k_norm", "attention/key_norm"),
)


def _rules(
    attention: rules.Rules = _ATTENTION,
    norms: str = "input_layernorm post_attention_layernorm",
    feed_forward: str | rules.Rules = "mlp.gate_proj mlp.up_proj mlp.down_proj",
    after: rules.Rules = (),
) -> rules.Rules:
    """Return the names of a decoder's tensors, `after` those of norms behind the sub-layers."""
    return (
        *rules.one("embed_tokens.weight", "embeddings/token"),
        *rules.layers(("layers.{}.", "decoder/{}/"), attention, norms, feed_forward, after),
        *rules.norm("norm", "decoder/final_norm"),
    )


def _grouped(shape: HeadShape, like: Kind) -> Kind:
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


def _family(model_type: str, class_prefix: str, config: table.Record, **parts: Any) -> Family:
    shared: dict[str, Any] = {
        "prefix": "model.",
        "classes": entries.text_classes(table.flag("tie_word_embeddings", False)),
        "rules": _rules(),
        "copies": (("lm_head.weight", "model.embed_tokens.weight"),),
        "defaults": _DEFAULTS,
        "head_shape": any_size,
        "standard": _grouped,
    }
    return Family(model_type=model_type, class_prefix=class_prefix, config=config, **(shared | parts))


def _used(default: int | None) -> table.Custom:
    """Return the entry of a window, of a family with the field `use_sliding_window`."""
    return table.Custom(
        lambda fields: entries.window(default).read(fields) if fields.flag("use_sliding_window", False) else None,
        lambda width: {"use_sliding_window": width is not None, "sliding_window": width},
    )


def _windows(count: table.Field, layer: Mapping[str, Any]) -> table.Layers:
    """Return Qwen's layers, of which those from `max_window_layers` on slide where no types are listed."""
    width, after = _used(4096), table.size("max_window_layers", 28)
    types = entries.LayerTypes(
        lambda fields, number: width.read(fields) is not None and number >= after.read(fields), width
    )
    return table.Layers(count, layer, types.spread, types.gather)


def _without_positions(count: table.Field, layer: Mapping[str, Any]) -> table.Layers:
    """Return SmolLM3's layers, of which every fourth has no rotary positions unless a list says otherwise."""
    width = _used(None)

    def spread(fields: Fields, length: int) -> list[dict[str, Any]]:
        every = table.size("no_rope_layer_interval", 4).read(fields)
        turning = fields.data.get("no_rope_layers")
        if turning is None:
            turning = [int((number + 1) % every != 0) for number in range(length)]
        if not isinstance(turning, list) or len(turning) < length or not {*turning} <= {0, 1}:
            message = f"expected a list of {length} numbers, 1 for rotary positions and 0 for none, got {turning!r}"
            raise fields.error("no_rope_layers", message)
        types = entries.LayerTypes(lambda fields, number: width.read(fields) is not None and not turning[number], width)
        layers = zip(types.spread(fields, length), turning, strict=False)
        return [config | {_TURNS.name: bool(turns)} for config, turns in layers]

    def gather(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        fields = entries.LayerTypes(lambda fields, number: False, width).gather(written)
        del fields[_TURNS.name]
        return fields | {"no_rope_layers": [int(layer[_TURNS.name]) for layer in written]}

    return table.Layers(count, layer, spread, gather)


_TURNS = table.flag("use_rope")
"""Whether a layer has rotary positions: no field of the file, which has a list in `no_rope_layers`."""
_ATTENTION_BIAS, _BIAS = table.flag("attention_bias", False), table.flag("mlp_bias", False)

LLAMA = _family(  # Touvron et al. 2023
    "llama", "Llama", _table(projection_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, feed_forward_bias=_BIAS)
)
MISTRAL = _family(  # Jiang et al. 2023
    "mistral",
    "Mistral",
    _table(projection_bias=False, output_bias=False, kv_heads=8, layer_window=entries.window(4096)),
    supported={"layer_types": (None,)},
)
QWEN2 = _family(
    "qwen2",
    "Qwen2",
    _table(projection_bias=True, output_bias=False, kv_heads=32, layer_window=entries.window(), layers=_windows),
)
QWEN3 = _family(
    "qwen3",
    "Qwen3",
    _table(
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        head_dim=table.size("head_dim", 128),
        kv_heads=32,
        head_norm=_NORM,
        layer_window=entries.window(),
        layers=_windows,
    ),
)
SMOLLM3 = _family(
    "smollm3",
    "SmolLM3",
    _table(
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        feed_forward_bias=_BIAS,
        rotary_positions=table.Optional(entries.rotary(base=2e6), when=_TURNS),
        kv_heads=4,
        layer_window=entries.window(),
        layers=_without_positions,
    ),
    classes=entries.text_classes(table.flag("tie_word_embeddings", True)),
)

_PART = table.number("partial_rotary_factor", 1.0)

PHI3 = _family(  # Abdin et al. 2024: fused maps, of whose heads a part of the dimensions may turn
    "phi3",
    "Phi3",
    _table(
        projection_bias=False,
        output_bias=False,
        rotary_positions=entries.rotary(part=_PART, head_dim=_HEAD_DIM),
        part=_PART,
        layer_window=entries.window(),
        norm=table.record(RMSNorm, epsilon=table.number("rms_norm_eps", 1e-5)),
        dropout=table.number("resid_pdrop", 0.0),
        embedding_dropout=table.Optional(table.number("embd_pdrop", 0.0), when=lambda fields: True),
    ),
    classes=entries.text_classes(table.flag("tie_word_embeddings", False), padding=32000),
    rules=_rules(
        (
            *rules.projection("self_attn.qkv_proj", rules.QUERY_KEY_VALUE),
            *rules.affine("self_attn.o_proj", "attention/output"),
        ),
        feed_forward=(
            *rules.projection("mlp.gate_up_proj", rules.GATE_UP),
            *rules.projection("mlp.down_proj", "feed_forward/down"),
        ),
    ),
    supported={"layer_types": (None,), "rope_scaling": (None,)},  # longrope depends on the length of a text
)


# Gemma 2 and 3, text only: norms around every sub-layer, scaled embeddings, some layers with windows. Logits of Gemma 2
# are capped, of attention too; windows of Gemma 3 have a rotary base of their own.

_BASES = {entries.FULL: table.number("rope_theta", 1e6), entries.SLIDING: table.number("rope_local_base_freq", 1e4)}

_SCALAR = table.size("query_pre_attn_scalar", 256)
_OFFSET_NORM = table.record(OffsetRMSNorm, epsilon=table.number("rms_norm_eps", 1e-6))
_GELU = "gelu_pytorch_tanh"
_ACTIVATION = table.Field(
    "hidden_activation",
    _GELU,
    Fields.activation,
    lambda ours: _GELU if ours == ACTIVATIONS[_GELU] else ACTIVATION_NAMES[ours],  # vLLM knows this name alone
)

_cap = functools.partial(table.nullable, reader=Fields.number)
"""Entry of a logit cap; null means no cap."""

_WINDOW, _EVERY = entries.window(4096), table.size("sliding_window_pattern", 6)
_WINDOW_WIDTH = table.Custom(_WINDOW.read, lambda width: {} if width is None else _WINDOW.write(width, ""))
"""The width of windows; nothing is written for a model without windows, so that the imported config's field stays."""
_ALTERNATING = entries.LayerTypes(lambda fields, number: number % 2 == 0, _WINDOW_WIDTH)
_PATTERN = entries.LayerTypes(lambda fields, number: (number + 1) % _EVERY.read(fields) != 0, _WINDOW_WIDTH, _BASES)


def _gemma(
    types: entries.LayerTypes,
    turning: table.Entry,
    *,
    vocab_size: int,
    head_norm: table.Record | None,
    cap: float | None,
) -> table.Record:
    """Return the table of a Gemma."""
    attention = table.record(
        GroupedAttention,
        num_heads=table.size("num_attention_heads", 8),
        kv_heads=table.size("num_key_value_heads", 4),
        head_dim=table.size("head_dim", 256),
        scale=table.computed(
            lambda fields: _SCALAR.read(fields) ** -0.5 * _logit_factor(turning.read(fields)), _SCALAR.name
        ),
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        rotary=turning,
        query_norm=head_norm,
        key_norm=head_norm,
    ).writing(lambda attention: {_SCALAR.name: _scalar(attention)})
    layer = {"attention": attention, "hidden": table.size("intermediate_size", 9216), "window": entries.window()}
    return table.record(
        DecoderConfig,
        table.Layers(table.size("num_hidden_layers", 26), layer, types.spread, types.gather),
        width=table.size("hidden_size", 2304),
        vocab_size=table.size("vocab_size", vocab_size),
        positions="none",
        max_length=entries.POSITIONS,
        scale_embeddings=True,
        activation=_ACTIVATION,
        gated=True,
        feed_forward_bias=False,
        residual="sandwich_norm",
        norm=_OFFSET_NORM,
        attention_softcap=_cap("attn_logit_softcapping", cap),
        attention_dropout=table.number("attention_dropout", 0.0),
        initializer=entries.INITIALIZER,
    )


def _scalar(attention: Any) -> int:
    """Return the `query_pre_attn_scalar` whose scale is nearest to that of the attention."""
    return max(round((attention.logit_scale / _logit_factor(attention.rotary)) ** -2), 1)


def _logit_factor(rotary: Rotary | None) -> float:
    return 1.0 if rotary is None else rotary.logit_factor


def _standard(shape: HeadShape, like: Kind) -> Kind:
    """Return Gemma's heads of this shape; a scale that `query_pre_attn_scalar` cannot express goes into the weights."""
    plain = _grouped(shape, like)
    source = like if like.of is GroupedAttention else plain
    return plain.replace(scale=_scalar(source) ** -0.5 * _logit_factor(plain.rotary))


_SANDWICHED: dict[str, Any] = {
    "rules": _rules(
        norms="input_layernorm pre_feedforward_layernorm",
        after=(
            *rules.norm("post_attention_layernorm", "attention_residual/after"),
            *rules.norm("post_feedforward_layernorm", "feed_forward_residual/after"),
        ),
    ),
    "standard": _standard,
}
_TIED = table.flag("tie_word_embeddings", True)

GEMMA2 = _family(  # Gemma Team 2024
    "gemma2",
    "Gemma2",
    _gemma(_ALTERNATING, entries.rotary(), vocab_size=256000, head_norm=None, cap=50.0),
    classes=entries.text_classes(_TIED, padding=0, softcap=_cap("final_logit_softcapping", 30.0)),
    **_SANDWICHED,
)
GEMMA3_TEXT = _family(  # Gemma Team 2025
    "gemma3_text",
    "Gemma3",
    _gemma(_PATTERN, entries.TURNING, vocab_size=262208, head_norm=_OFFSET_NORM, cap=None),
    classes=entries.text_classes(_TIED, base="TextModel", padding=0, softcap=_cap("final_logit_softcapping", None)),
    base="TextModel",
    **_SANDWICHED,
)
