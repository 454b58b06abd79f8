"""ModernBERT (Warner et al. 2024) and Nomic BERT (Nussbaum et al. 2024): encoders with rotary positions.

ModernBERT has windows in two of three layers and two rotary bases; Nomic BERT is BERT with fewer biases.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.core.kind import Kind
from headjax.core.tensors import TruncatedNormal
from headjax.hub.families.bert import encoder
from headjax.hub.families.entries import BASE, TIED, classifier, labelled, masked_rules, output
from headjax.hub.families.positions import FULL, POSITIONS, SLIDING, TURNING, LayerTypes, of_layer, rotary, window
from headjax.hub.family import Family, HeadShape, ModelClass, any_size, multi_head
from headjax.hub.fields import Fields
from headjax.hub.rules import QUERY_KEY_VALUE, Rules, affine, norm, one, projection, under
from headjax.hub.table import (
    Choice,
    Custom,
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


_TYPES = LayerTypes(
    lambda fields, number: number % _EVERY.read(fields) != 0,
    Custom(  # a window reaches as far as half of `local_attention`, that distance included
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
    tied=TIED,
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
        output("ForMaskedLM", _MASKED, masked_rules("head.dense", "head.norm", "decoder"), _TIED),
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
    supported={"rope_scaling": (None,)},
)

_NOMIC_ACTIVATION = activation("hidden_act", "silu")
_NOMIC_NORM = record(LayerNorm, epsilon=number("layer_norm_eps", 1e-12))
_NOMIC_DROPOUT = number("hidden_dropout_prob", 0.0)
_NOMIC_CLASSIFIER_DROPOUT = number("classifier_dropout", _NOMIC_DROPOUT)
_NOMIC_ATTENTION = record(
    MultiHeadAttention,
    num_heads=_HEADS,
    head_dim=size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields)),
    projection_bias=False,
    output_bias=False,
    rotary=rotary(base=1000.0),
)
_NOMIC_LAYER = {"attention": _NOMIC_ATTENTION, "hidden": size("intermediate_size", 3072)}
_HEAD = "cls.predictions"
_TOKENS, _LOGITS = "nomic_bert.embeddings.word_embeddings.weight", affine("classifier", "output")
_NOMIC_CLASSES = (
    BASE,
    output(
        "ForMaskedLM",
        record(MaskedLanguageModel, activation=_NOMIC_ACTIVATION, norm=_NOMIC_NORM, tied=TIED),
        masked_rules(f"{_HEAD}.transform.dense", f"{_HEAD}.transform.layer_norm", f"{_HEAD}.decoder", f"{_HEAD}.bias"),
        ((f"{_HEAD}.decoder.weight", _TOKENS), (f"{_HEAD}.decoder.bias", f"{_HEAD}.bias")),
    ),
    output("ForSequenceClassification", classifier(_NOMIC_CLASSIFIER_DROPOUT), _LOGITS, pooler="tanh"),
    output("ForTokenClassification", labelled(TokenClassification, dropout=_NOMIC_CLASSIFIER_DROPOUT), _LOGITS),
)

NOMIC_BERT = Family(
    model_type="nomic_bert",
    class_prefix="NomicBert",
    prefix="nomic_bert.",
    config=encoder(
        Layers(size("num_hidden_layers", 12), _NOMIC_LAYER),
        width=_WIDTH,
        vocab_size=size("vocab_size", 30528),
        positions="none",
        max_length=POSITIONS,
        activation=_NOMIC_ACTIVATION,
        gated=True,
        feed_forward_bias=False,
        norm=_NOMIC_NORM,
        dropout=_NOMIC_DROPOUT,
        attention_dropout=number("attention_probs_dropout_prob", 0.0),
    ),
    classes=_NOMIC_CLASSES,
    rules=(
        *one("embeddings.word_embeddings.weight", "embeddings/token"),
        *one("embeddings.token_type_embeddings.weight", "embeddings/segment"),
        *norm("emb_ln", "embeddings/norm"),
        *under(
            "encoder.layers.{}.",
            "encoder/{}/",
            (
                *projection("attn.Wqkv", QUERY_KEY_VALUE),
                *affine("attn.out_proj", "attention/output"),
                *norm("norm1", "attention_residual/norm"),
                *projection("mlp.fc11", "feed_forward/up"),
                *projection("mlp.fc12", "feed_forward/gate"),
                *projection("mlp.fc2", "feed_forward/down"),
                *norm("norm2", "feed_forward_residual/norm"),
            ),
        ),
        *affine("pooler.dense", "pooler"),
    ),
    head_shape=any_size,
    standard=functools.partial(multi_head, projection_bias=False, output_bias=False),
    supported={"prenorm": (False,), "qkv_proj_bias": (False,), "use_rms_norm": (False,), "rotary_emb_fraction": (1.0,)},
)
