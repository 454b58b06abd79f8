"""Gemma 2 and 3, text only: norms around every sub-layer, scaled embeddings, some layers with windows.

Logits of Gemma 2 are capped, of attention too; windows of Gemma 3 have a rotary base of their own.
"""

from __future__ import annotations

import functools
from typing import Any

from headjax.core.kind import Kind
from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.families.llama import decoder_family, decoder_rules, grouped
from headjax.hub.families.positions import FULL, POSITIONS, SLIDING, TURNING, LayerTypes, rotary, window
from headjax.hub.family import HeadShape
from headjax.hub.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from headjax.hub.rules import Rules, one
from headjax.hub.table import Custom, Entry, Field, Layers, Record, computed, flag, nullable, number, record, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import OffsetRMSNorm
from headjax.nn.rotary import Rotary

_BASES = {FULL: number("rope_theta", 1e6), SLIDING: number("rope_local_base_freq", 1e4)}

_SCALAR = size("query_pre_attn_scalar", 256)
_NORM = record(OffsetRMSNorm, epsilon=number("rms_norm_eps", 1e-6))
_BIAS = flag("attention_bias", False)
_GELU = "gelu_pytorch_tanh"
_ACTIVATION = Field(
    "hidden_activation",
    _GELU,
    Fields.activation,
    lambda ours: _GELU if ours == ACTIVATIONS[_GELU] else ACTIVATION_NAMES[ours],  # vLLM knows this name alone
)

_cap = functools.partial(nullable, reader=Fields.number)
"""Entry of a logit cap; null means no cap."""

_WINDOW, _EVERY = window(4096), size("sliding_window_pattern", 6)
_WIDTH = Custom(_WINDOW.read, lambda width: {} if width is None else _WINDOW.write(width, ""))
"""The width of windows; nothing is written for a model without windows, so that the imported config's field stays."""
_ALTERNATING = LayerTypes(lambda fields, number: number % 2 == 0, _WIDTH)
_TYPES = LayerTypes(lambda fields, number: (number + 1) % _EVERY.read(fields) != 0, _WIDTH, _BASES)


def _config(
    types: LayerTypes, turning: Entry, *, vocab_size: int, head_norm: Record | None, cap: float | None
) -> Record:
    """Return the table of a Gemma."""
    attention = record(
        GroupedAttention,
        num_heads=size("num_attention_heads", 8),
        kv_heads=size("num_key_value_heads", 4),
        head_dim=size("head_dim", 256),
        scale=computed(lambda fields: _SCALAR.read(fields) ** -0.5 * _logit_factor(turning.read(fields)), _SCALAR.name),
        projection_bias=_BIAS,
        output_bias=_BIAS,
        rotary=turning,
        query_norm=head_norm,
        key_norm=head_norm,
    ).writing(lambda attention: {_SCALAR.name: _scalar(attention)})
    layer = {"attention": attention, "hidden": size("intermediate_size", 9216), "window": window()}
    return record(
        DecoderConfig,
        Layers(size("num_hidden_layers", 26), layer, types.spread, types.gather),
        width=size("hidden_size", 2304),
        vocab_size=size("vocab_size", vocab_size),
        positions="none",
        max_length=POSITIONS,
        scale_embeddings=True,
        activation=_ACTIVATION,
        gated=True,
        feed_forward_bias=False,
        residual="sandwich_norm",
        norm=_NORM,
        attention_softcap=_cap("attn_logit_softcapping", cap),
        attention_dropout=number("attention_dropout", 0.0),
        initializer=INITIALIZER,
    )


def _scalar(attention: Any) -> int:
    """Return the `query_pre_attn_scalar` whose scale is nearest to that of the attention."""
    return max(round((attention.logit_scale / _logit_factor(attention.rotary)) ** -2), 1)


def _logit_factor(rotary: Rotary | None) -> float:
    return 1.0 if rotary is None else rotary.logit_factor


def _standard(shape: HeadShape, like: Kind) -> Kind:
    """Return Gemma's heads of this shape; a scale that `query_pre_attn_scalar` cannot express goes into the weights."""
    plain = grouped(shape, like)
    source = like if like.of is GroupedAttention else plain
    return plain.replace(scale=_scalar(source) ** -0.5 * _logit_factor(plain.rotary))


_NORMS: Rules = (
    *one("input_layernorm.weight", "attention_residual/norm/scale"),
    *one("post_attention_layernorm.weight", "attention_residual/after/scale"),
    *one("pre_feedforward_layernorm.weight", "feed_forward_residual/norm/scale"),
    *one("post_feedforward_layernorm.weight", "feed_forward_residual/after/scale"),
)
_TIED = flag("tie_word_embeddings", True)
_SHARED: dict[str, Any] = {
    "rules": decoder_rules(_NORMS),
    "standard": _standard,
}

GEMMA2 = decoder_family(  # Gemma Team 2024
    "gemma2",
    "Gemma2",
    _config(_ALTERNATING, rotary(), vocab_size=256000, head_norm=None, cap=50.0),
    classes=text_classes(_TIED, padding=0, softcap=_cap("final_logit_softcapping", 30.0)),
    **_SHARED,
)
GEMMA3_TEXT = decoder_family(  # Gemma Team 2025
    "gemma3_text",
    "Gemma3",
    _config(_TYPES, TURNING, vocab_size=262208, head_norm=_NORM, cap=None),
    classes=text_classes(_TIED, base="TextModel", padding=0, softcap=_cap("final_logit_softcapping", None)),
    base="TextModel",
    **_SHARED,
)
