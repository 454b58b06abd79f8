"""Gemma 2 and 3, text only: norms around every sub-layer, scaled embeddings, some layers with windows.

Logits of Gemma 2 are capped, of attention too; windows of Gemma 3 have a rotary base of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.families.llama import decoder_family, decoder_rules, grouped
from headjax.hub.families.positions import (
    FULL,
    POSITIONS,
    SLIDING,
    TURNING,
    common,
    own_windows,
    read_layer_types,
    rotary,
    turning_by_type,
    typed_fields,
    types_and_window,
    window,
)
from headjax.hub.family import HeadShape
from headjax.hub.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from headjax.hub.rules import Rules, one
from headjax.hub.table import Field, Layers, Record, computed, flag, nullable, number, record, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import OffsetRMSNorm
from headjax.nn.rotary import Rotary

_ROTARY = rotary()
_BASES = {FULL: number("rope_theta", 1e6), SLIDING: number("rope_local_base_freq", 1e4)}

_SCALAR = size("query_pre_attn_scalar", 256)
_NORM = record(OffsetRMSNorm, epsilon=number("rms_norm_eps", 1e-6))
_BIAS = flag("attention_bias", False)
_GELU = "gelu_pytorch_tanh"
_ACTIVATION = Field(
    "hidden_activation",
    _GELU,
    Fields.activation,
    lambda ours: _GELU if ours == ACTIVATIONS[_GELU] else ACTIVATION_NAMES[ours],  # the only one of its names in vLLM
)

_cap = functools.partial(nullable, reader=Fields.number)
"""A cap of logits; null is none."""


def _spread(fields: Fields, count: int) -> list[dict[str, Any]]:
    """Return each layer's own fields: its window, and its rotary positions under a name that no file has."""
    every = size("sliding_window_pattern", 6).read(fields)
    types = read_layer_types(fields, count, lambda number: SLIDING if (number + 1) % every else FULL)
    return turning_by_type(fields, types, own_windows(fields, types, window(4096).read(fields)), _BASES)


def _spread_alternating(fields: Fields, count: int) -> list[dict[str, Any]]:
    """Return the same of Gemma 2, whose layers turn alike and alternate, the first one sliding."""
    types = read_layer_types(fields, count, lambda number: FULL if number % 2 else SLIDING)
    turning = TURNING.write(_ROTARY.read(fields), "")
    return [own | turning for own in own_windows(fields, types, window(4096).read(fields))]


def _gather(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the config's fields; a model without windows leaves their size to the config it came with."""
    fields = typed_fields(written, _BASES)
    if fields["sliding_window"] is None:
        del fields["sliding_window"]
    return fields


def _gather_alternating(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the config's fields of Gemma 2."""
    found, (types, first) = common(written), types_and_window(written)
    turning = found.pop("rotary")
    del found["sliding_window"]
    found |= _ROTARY.write(turning, "") | {"layer_types": types}
    return found | ({} if first is None else {"sliding_window": first})


def _config(
    spread: Callable[[Fields, int], Sequence[Mapping[str, Any]]],
    gather: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]],
    *,
    vocab_size: int,
    head_norm: Record | None,
    cap: float | None,
) -> Record:
    """Return the table of a Gemma."""
    attention = record(
        GroupedAttention,
        num_heads=size("num_attention_heads", 8),
        kv_heads=size("num_key_value_heads", 4),
        head_dim=size("head_dim", 256),
        scale=computed(lambda fields: _SCALAR.read(fields) ** -0.5 * _sharper(TURNING.read(fields)), _SCALAR.name),
        projection_bias=_BIAS,
        output_bias=_BIAS,
        rotary=TURNING,
        query_norm=head_norm,
        key_norm=head_norm,
    ).writing(lambda attention: {_SCALAR.name: _scalar(attention)})
    layer = {"attention": attention, "hidden": size("intermediate_size", 9216), "window": window()}
    return record(
        DecoderConfig,
        Layers(size("num_hidden_layers", 26), layer, spread, gather),
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
    return max(round((attention.logit_scale / _sharper(attention.rotary)) ** -2), 1)


def _sharper(rotary: Rotary | None) -> float:
    return 1.0 if rotary is None else rotary.logit_factor


def _standard(shape: HeadShape, like: Kind) -> Kind:
    """Return Gemma's heads of this shape; a scale that `query_pre_attn_scalar` cannot express goes into the weights."""
    plain = grouped(shape, like)
    source = like if like.of is GroupedAttention else plain
    return plain.replace(scale=_scalar(source) ** -0.5 * _sharper(plain.rotary))


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
    _config(_spread_alternating, _gather_alternating, vocab_size=256000, head_norm=None, cap=50.0),
    classes=text_classes(_TIED, padding=0, softcap=_cap("final_logit_softcapping", 30.0)),
    **_SHARED,
)
GEMMA3_TEXT = decoder_family(  # Gemma Team 2025
    "gemma3_text",
    "Gemma3",
    _config(_spread, _gather, vocab_size=262208, head_norm=_NORM, cap=None),
    classes=text_classes(_TIED, base="TextModel", padding=0, softcap=_cap("final_logit_softcapping", None)),
    base="TextModel",
    **_SHARED,
)
