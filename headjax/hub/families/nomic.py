"""Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions, gated feed-forward layers and fewer biases."""

from __future__ import annotations

import functools

from headjax.hub.families.bert import encoder
from headjax.hub.families.entries import BASE, classifier, labelled, masked_rules, output
from headjax.hub.families.positions import POSITIONS, rotary
from headjax.hub.family import Family, any_size, multi_head
from headjax.hub.rules import QUERY_KEY_VALUE, affine, norm, one, projection, under
from headjax.hub.table import Layers, activation, number, record, size
from headjax.models.tasks import MaskedLanguageModel, TokenClassification
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = size("hidden_size", 768), size("num_attention_heads", 12)
_ACTIVATION, _NORM = activation("hidden_act", "silu"), record(LayerNorm, epsilon=number("layer_norm_eps", 1e-12))
_DROPOUT = number("hidden_dropout_prob", 0.0)
_CLASSIFIER_DROPOUT = number("classifier_dropout", _DROPOUT)
_ATTENTION = record(
    MultiHeadAttention,
    num_heads=_HEADS,
    head_dim=size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields)),
    projection_bias=False,
    output_bias=False,
    rotary=rotary(base=1000.0),
)


_HEAD = "cls.predictions"
_TOKENS, _LOGITS = "nomic_bert.embeddings.word_embeddings.weight", affine("classifier", "output")
_CLASSES = (
    BASE,
    output(
        "ForMaskedLM",
        record(MaskedLanguageModel, activation=_ACTIVATION, norm=_NORM),
        masked_rules(f"{_HEAD}.transform.dense", f"{_HEAD}.transform.layer_norm", f"{_HEAD}.bias"),
        ((f"{_HEAD}.decoder.weight", _TOKENS), (f"{_HEAD}.decoder.bias", f"{_HEAD}.bias")),
    ),
    output("ForSequenceClassification", classifier(_CLASSIFIER_DROPOUT), _LOGITS, pooler="tanh"),
    output("ForTokenClassification", labelled(TokenClassification, dropout=_CLASSIFIER_DROPOUT), _LOGITS),
)

NOMIC_BERT = Family(
    model_type="nomic_bert",
    class_prefix="NomicBert",
    prefix="nomic_bert.",
    config=encoder(
        Layers(size("num_hidden_layers", 12), {"attention": _ATTENTION, "hidden": size("intermediate_size", 3072)}),
        width=_WIDTH,
        vocab_size=size("vocab_size", 30528),
        positions="none",
        max_length=POSITIONS,
        activation=_ACTIVATION,
        gated=True,
        feed_forward_bias=False,
        norm=_NORM,
        dropout=_DROPOUT,
        attention_dropout=number("attention_probs_dropout_prob", 0.0),
    ),
    classes=_CLASSES,
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
