"""ModernBERT (Warner et al. 2024) and Nomic BERT (Nussbaum et al. 2024): encoders with rotary positions.

ModernBERT has windows in two of three layers and two rotary bases; Nomic BERT is BERT with fewer biases.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.core.tensors import TruncatedNormal
from headjax.hub import table
from headjax.hub.families import entries
from headjax.hub.families.bert import encoder
from headjax.hub.family import Family, HeadShape, ModelClass, any_size, multi_head
from headjax.hub.fields import Fields
from headjax.hub.rules import GATE_UP, QUERY_KEY_VALUE, Rules, affine, layers, norm, one, projection
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import Span, TokenClassification
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = table.size("hidden_size", 768), table.size("num_attention_heads", 12)
_NORM = table.record(LayerNorm, epsilon=table.number("norm_eps", 1e-5), bias=table.flag("norm_bias", False))
_BIAS, _HEAD_BIAS = table.flag("attention_bias", False), table.flag("classifier_bias", False)
_HEAD_ACTIVATION = table.activation("classifier_activation", "gelu")
_BASES = {
    entries.FULL: table.number("global_rope_theta", 160000.0),
    entries.SLIDING: table.number("local_rope_theta", 10000.0),
}
_REACH, _EVERY = table.size("local_attention", 128), table.size("global_attn_every_n_layers", 3)
_NORMED = entries.of_layer("attention_norm")


_TYPES = entries.LayerTypes(
    lambda fields, number: number % _EVERY.read(fields) != 0,
    table.Custom(  # a window reaches as far as half of `local_attention`, that distance included
        lambda fields: _REACH.read(fields) // 2 + 1,
        lambda width: {} if width is None else {_REACH.name: max(2 * (width - 1), 1)},
    ),
    _BASES,
)


def _spread(fields: Fields, count: int) -> list[dict[str, Any]]:
    return [layer | {"attention_norm": number > 0} for number, layer in enumerate(_TYPES.spread(fields, count))]


def _gather(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    fields = _TYPES.gather(written)
    del fields["attention_norm"], fields["rope_scaling"]  # of both types in transformers
    return fields


_LAYER = {
    "attention": entries.heads(_WIDTH, _HEADS, projection_bias=_BIAS, output_bias=_BIAS, rotary=entries.TURNING),
    "hidden": table.size("intermediate_size", 1152),
    "window": entries.window(),
    "attention_norm": _NORMED,
}


def _standard(shape: HeadShape, like: Kind) -> Kind:
    """Return heads of this shape, with all biases if `like` has any."""
    biased = any(like.options.get(name, True) for name in ("projection_bias", "output_bias"))
    return multi_head(shape, like, projection_bias=biased, output_bias=biased)


def _with_head(suffix: str, task: table.Entry, reads: table.Entry | str) -> ModelClass:
    """Return a class with ModernBERT's map and norm before the map to logits; `reads` is what the first map reads."""
    head: dict[str, Any] = {"pooler": _HEAD_ACTIVATION, "pooler_bias": _HEAD_BIAS, "pooler_norm": _NORM}
    rules = (*affine("head.dense", "pooler"), *norm("head.norm", "pooler/norm"), *affine("classifier", "output"))
    return entries.output(suffix, task, rules, pooler_reads=reads, **head)


_DROPOUT = table.number("classifier_dropout", 0.0)
_MASKED = entries.masked_class(
    "model.embeddings.tok_embeddings.weight",
    *("head.dense", "head.norm", "decoder"),
    activation=_HEAD_ACTIVATION,
    norm=_NORM,
    transform_bias=_HEAD_BIAS,
    bias=table.flag("decoder_bias", True),
)
_RULES: Rules = (
    *one("embeddings.tok_embeddings.weight", "embeddings/token"),
    *norm("embeddings.norm", "embeddings/norm"),
    *layers(
        ("layers.{}.", "encoder/{}/"),
        (*projection("attn.Wqkv", QUERY_KEY_VALUE), *affine("attn.Wo", "attention/output")),
        "attn_norm mlp_norm",
        (*projection("mlp.Wi", GATE_UP), *projection("mlp.Wo", "feed_forward/down")),
    ),
    *norm("final_norm", "encoder/final_norm"),
)

MODERNBERT = Family(
    model_type="modernbert",
    class_prefix="ModernBert",
    prefix="model.",
    config=table.record(
        EncoderConfig,
        table.Layers(table.size("num_hidden_layers", 22), _LAYER, _spread, _gather),
        width=_WIDTH,
        vocab_size=table.size("vocab_size", 50368),
        positions="none",
        max_length=entries.POSITIONS,
        segments=0,
        activation=table.activation("hidden_activation", "gelu"),
        gated=True,
        feed_forward_bias=table.flag("mlp_bias", False),
        residual="pre_norm",
        norm=_NORM,
        pooler=None,
        dropout=0.0,
        embedding_dropout=table.Optional(table.number("embedding_dropout", 0.0), when=lambda fields: True),
        attention_dropout=table.number("attention_dropout", 0.0),
        feed_forward_dropout=table.number("mlp_dropout", 0.0),
        initializer=table.TrainingOnly(table.record(TruncatedNormal, stddev=table.number("initializer_range", 0.02))),
    ),
    classes=(
        entries.BASE,
        _MASKED,
        _with_head(
            "ForSequenceClassification",
            entries.classifier(_DROPOUT),
            table.Choice(
                table.text("classifier_pooling", "cls"), {"cls": table.Fixed("first"), "mean": table.Fixed("mean")}
            ),
        ),
        _with_head("ForTokenClassification", entries.labelled(TokenClassification, dropout=_DROPOUT), "tokens"),
        _with_head("ForQuestionAnswering", table.record(Span, dropout=_DROPOUT), "tokens"),
    ),
    rules=_RULES,
    standard=_standard,
    defaults={"pad_token_id": None},  # transformers has a token of ModernBERT-base, which smaller vocabularies lack
    supported={"rope_scaling": (None,)},
)

_NOMIC_ACTIVATION = table.activation("hidden_act", "silu")
_NOMIC_NORM = table.record(LayerNorm, epsilon=table.number("layer_norm_eps", 1e-12))
_NOMIC_DROPOUT = table.number("hidden_dropout_prob", 0.0)
_NOMIC_CLASSIFIER_DROPOUT = table.number("classifier_dropout", _NOMIC_DROPOUT)
_NOMIC_ATTENTION = table.record(
    MultiHeadAttention,
    num_heads=_HEADS,
    head_dim=table.size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields)),
    projection_bias=False,
    output_bias=False,
    rotary=entries.rotary(base=1000.0),
)
_NOMIC_LAYER = {"attention": _NOMIC_ATTENTION, "hidden": table.size("intermediate_size", 3072)}
_LOGITS = affine("classifier", "output")
_NOMIC_CLASSES = (
    entries.BASE,
    entries.masked_class(
        "nomic_bert.embeddings.word_embeddings.weight",
        *(f"cls.predictions.{name}" for name in ("transform.dense", "transform.layer_norm", "decoder", "bias")),
        activation=_NOMIC_ACTIVATION,
        norm=_NOMIC_NORM,
    ),
    entries.output("ForSequenceClassification", entries.classifier(_NOMIC_CLASSIFIER_DROPOUT), _LOGITS, pooler="tanh"),
    entries.output(
        "ForTokenClassification", entries.labelled(TokenClassification, dropout=_NOMIC_CLASSIFIER_DROPOUT), _LOGITS
    ),
)

NOMIC_BERT = Family(
    model_type="nomic_bert",
    class_prefix="NomicBert",
    prefix="nomic_bert.",
    config=encoder(
        table.Layers(table.size("num_hidden_layers", 12), _NOMIC_LAYER),
        width=_WIDTH,
        vocab_size=table.size("vocab_size", 30528),
        positions="none",
        max_length=entries.POSITIONS,
        activation=_NOMIC_ACTIVATION,
        gated=True,
        feed_forward_bias=False,
        norm=_NOMIC_NORM,
        dropout=_NOMIC_DROPOUT,
        attention_dropout=table.number("attention_probs_dropout_prob", 0.0),
    ),
    classes=_NOMIC_CLASSES,
    rules=(
        *one("embeddings.word_embeddings.weight", "embeddings/token"),
        *one("embeddings.token_type_embeddings.weight", "embeddings/segment"),
        *norm("emb_ln", "embeddings/norm"),
        *layers(
            ("encoder.layers.{}.", "encoder/{}/"),
            (*projection("attn.Wqkv", QUERY_KEY_VALUE), *affine("attn.out_proj", "attention/output")),
            "norm1 norm2",
            "mlp.fc12 mlp.fc11 mlp.fc2",
        ),
        *affine("pooler.dense", "pooler"),
    ),
    head_shape=any_size,
    standard=functools.partial(multi_head, projection_bias=False, output_bias=False),
    supported={"prenorm": (False,), "qkv_proj_bias": (False,), "use_rms_norm": (False,), "rotary_emb_fraction": (1.0,)},
)
