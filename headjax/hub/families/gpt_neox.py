"""GPT-NeoX and Pythia: parallel residuals, a part of the dimensions turns, query, key and value are fused by head."""

from __future__ import annotations

import dataclasses

from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.families.positions import rotary, written_part
from headjax.hub.family import Family
from headjax.hub.rules import FLAT, QUERY_KEY_VALUE, TRANSPOSED, Rule, Rules, affine, norm, one, projection, under
from headjax.hub.table import Choice, Fixed, Layers, activation, flag, number, record, share, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = size("hidden_size", 6144), size("num_attention_heads", 64)
_HEAD_DIM, _PART, _BIAS = share(_WIDTH, _HEADS), number("rotary_pct", 0.25), flag("attention_bias", True)
_ATTENTION = record(
    MultiHeadAttention,
    num_heads=_HEADS,
    head_dim=_HEAD_DIM,
    projection_bias=_BIAS,
    output_bias=_BIAS,
    rotary=rotary(theta="rotary_emb_base", part=_PART, head_dim=_HEAD_DIM),
).writing(lambda attention: written_part(attention, _PART))
_CONFIG = record(
    DecoderConfig,
    Layers(size("num_hidden_layers", 44), {"attention": _ATTENTION, "hidden": size("intermediate_size", 24576)}),
    width=_WIDTH,
    vocab_size=size("vocab_size", 50432),
    positions="none",
    max_length=size("max_position_embeddings", 2048),
    residual=Choice(flag("use_parallel_residual", True), {True: Fixed("parallel_norm"), False: Fixed("pre_norm")}),
    activation=activation("hidden_act", "gelu"),
    norm=record(LayerNorm, epsilon=number("layer_norm_eps", 1e-5)),
    dropout=number("hidden_dropout", 0.0),
    attention_dropout=number("attention_dropout", 0.0),
    initializer=INITIALIZER,
)

_RULES: Rules = (
    *one("embed_in.weight", "embeddings/token"),
    *under(
        "layers.{}.",
        "decoder/{}/",
        (
            Rule("attention.query_key_value.weight", QUERY_KEY_VALUE, dataclasses.replace(TRANSPOSED, by_head=True)),
            Rule(
                "attention.query_key_value.bias",
                tuple(f"{name}_bias" for name in QUERY_KEY_VALUE),
                dataclasses.replace(FLAT, by_head=True),
            ),
            *affine("attention.dense", "attention/output"),
            *norm("input_layernorm", "attention_residual/norm"),
            *projection("mlp.dense_h_to_4h", "feed_forward/up"),
            *projection("mlp.dense_4h_to_h", "feed_forward/down"),
            *norm("post_attention_layernorm", "feed_forward_residual/norm"),
        ),
    ),
    *norm("final_layer_norm", "decoder/final_norm"),
)

GPT_NEOX = Family(  # Black et al. 2022
    model_type="gpt_neox",
    class_prefix="GPTNeoX",
    prefix="gpt_neox.",
    config=_CONFIG,
    classes=text_classes(flag("tie_word_embeddings", False), head="embed_out"),
    rules=_RULES,
    copies=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
)
