"""ModernBERT (Warner et al. 2024): windows in two of three layers, two rotary bases, gated feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.core.tensors import TruncatedNormal
from headjax.hub.families.entries import BASE, classifier, labelled, masked_rules, output
from headjax.hub.families.positions import (
    FULL,
    POSITIONS,
    SLIDING,
    TURNING,
    of_layer,
    own_windows,
    read_layer_types,
    turning_by_type,
    typed_fields,
    window,
)
from headjax.hub.family import Family, HeadShape, ModelClass, multi_head
from headjax.hub.fields import Fields
from headjax.hub.rules import QUERY_KEY_VALUE, Rules, affine, norm, one, projection, under
from headjax.hub.table import (
    Choice,
    Entry,
    Fixed,
    Layers,
    Optional,
    TrainingOnly,
    activation,
    flag,
    number,
    record,
    share,
    size,
    text,
)
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import MaskedLanguageModel, Span, TokenClassification
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = size("hidden_size", 768), size("num_attention_heads", 12)
_NORM = record(LayerNorm, epsilon=number("norm_eps", 1e-5), bias=flag("norm_bias", False))
_BIAS, _HEAD_BIAS = flag("attention_bias", False), flag("classifier_bias", False)
_HEAD_ACTIVATION = activation("classifier_activation", "gelu")
_BASES = {FULL: number("global_rope_theta", 160000.0), SLIDING: number("local_rope_theta", 10000.0)}
_REACH, _EVERY = size("local_attention", 128), size("global_attn_every_n_layers", 3)
_NORMED = of_layer("attention_norm")


def _spread(fields: Fields, count: int) -> list[dict[str, Any]]:
    """Return each layer's own fields. A window reaches as far as half of `local_attention`, that distance included."""
    every = _EVERY.read(fields)
    types = read_layer_types(fields, count, lambda number: SLIDING if number % every else FULL)
    layers = own_windows(fields, types, _REACH.read(fields) // 2 + 1)
    normed = [{**layer, "attention_norm": number > 0} for number, layer in enumerate(layers)]
    return turning_by_type(fields, types, normed, _BASES)


def _gather(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the config's fields; a model without windows leaves their size to the config it came with."""
    fields = typed_fields(written, _BASES)
    reach = fields.pop("sliding_window")
    del fields["attention_norm"], fields["rope_scaling"]  # of both types in transformers
    return fields if reach is None else fields | {_REACH.name: max(2 * (reach - 1), 1)}


_ATTENTION = record(
    MultiHeadAttention,
    num_heads=_HEADS,
    head_dim=share(_WIDTH, _HEADS),
    projection_bias=_BIAS,
    output_bias=_BIAS,
    rotary=TURNING,
)
_LAYER = {
    "attention": _ATTENTION,
    "hidden": size("intermediate_size", 1152),
    "window": window(),
    "attention_norm": _NORMED,
}


def _standard(shape: HeadShape, like: Kind) -> Kind:
    """Return heads of this shape, with all biases if `like` has any."""
    biased = any(like.options.get(name, True) for name in ("projection_bias", "output_bias"))
    return multi_head(shape, like, projection_bias=biased, output_bias=biased)


def _with_head(suffix: str, task: Entry, reads: Entry | str) -> ModelClass:
    """Return a class with ModernBERT's map and norm before the map to logits; `reads` is what the first map reads."""
    head: dict[str, Any] = {"pooler": _HEAD_ACTIVATION, "pooler_bias": _HEAD_BIAS, "pooler_norm": _NORM}
    rules = (*affine("head.dense", "pooler"), *norm("head.norm", "pooler/norm"), *affine("classifier", "output"))
    return output(suffix, task, rules, pooler_reads=reads, **head)


_DROPOUT = number("classifier_dropout", 0.0)
_TIED = (("decoder.weight", "model.embeddings.tok_embeddings.weight"),)
_MASKED = record(
    MaskedLanguageModel,
    activation=_HEAD_ACTIVATION,
    norm=_NORM,
    transform_bias=_HEAD_BIAS,
    bias=flag("decoder_bias", True),
)
_RULES: Rules = (
    *one("embeddings.tok_embeddings.weight", "embeddings/token"),
    *norm("embeddings.norm", "embeddings/norm"),
    *under(
        "layers.{}.",
        "encoder/{}/",
        (
            *norm("attn_norm", "attention_residual/norm"),
            *projection("attn.Wqkv", QUERY_KEY_VALUE),
            *affine("attn.Wo", "attention/output"),
            *norm("mlp_norm", "feed_forward_residual/norm"),
            *projection("mlp.Wi", ("feed_forward/gate", "feed_forward/up")),
            *projection("mlp.Wo", "feed_forward/down"),
        ),
    ),
    *norm("final_norm", "encoder/final_norm"),
)

MODERNBERT = Family(
    model_type="modernbert",
    class_prefix="ModernBert",
    prefix="model.",
    config=record(
        EncoderConfig,
        Layers(size("num_hidden_layers", 22), _LAYER, _spread, _gather),
        width=_WIDTH,
        vocab_size=size("vocab_size", 50368),
        positions="none",
        max_length=POSITIONS,
        segments=0,
        activation=activation("hidden_activation", "gelu"),
        gated=True,
        feed_forward_bias=flag("mlp_bias", False),
        residual="pre_norm",
        norm=_NORM,
        pooler=None,
        dropout=0.0,
        embedding_dropout=Optional(number("embedding_dropout", 0.0), when=lambda fields: True),
        attention_dropout=number("attention_dropout", 0.0),
        feed_forward_dropout=number("mlp_dropout", 0.0),
        initializer=TrainingOnly(record(TruncatedNormal, stddev=number("initializer_range", 0.02))),
    ),
    classes=(
        BASE,
        output("ForMaskedLM", _MASKED, masked_rules("head.dense", "head.norm", "decoder.bias"), _TIED),
        _with_head(
            "ForSequenceClassification",
            classifier(_DROPOUT),
            Choice(text("classifier_pooling", "cls"), {"cls": Fixed("first"), "mean": Fixed("mean")}),
        ),
        _with_head("ForTokenClassification", labelled(TokenClassification, dropout=_DROPOUT), "tokens"),
        _with_head("ForQuestionAnswering", record(Span, dropout=_DROPOUT), "tokens"),
    ),
    rules=_RULES,
    standard=_standard,
    defaults={"pad_token_id": None},  # transformers has a token of ModernBERT-base, which smaller vocabularies lack
    supported={"rope_scaling": (None,), "tie_word_embeddings": (True,)},
)
