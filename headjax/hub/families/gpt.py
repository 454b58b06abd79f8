"""GPT-2, whose weights are `[inputs, outputs]`, and GPT-NeoX (Pythia): both have fused queries, keys and values."""

from __future__ import annotations

import dataclasses

from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.families.positions import rotary, written_part
from headjax.hub.family import Family
from headjax.hub.rules import (
    FLAT,
    MATRIX,
    QUERY_KEY_VALUE,
    TRANSPOSED,
    Rule,
    Rules,
    affine,
    norm,
    one,
    projection,
    under,
)
from headjax.hub.table import Choice, Fixed, Layers, Optional, activation, flag, number, record, share, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = size("n_embd", size("hidden_size", 768)), size("n_head", size("num_attention_heads", 12))
_NORM = record(LayerNorm, epsilon=number("layer_norm_epsilon", 1e-5))

_LAYER = {
    "attention": record(MultiHeadAttention, num_heads=_HEADS, head_dim=share(_WIDTH, _HEADS)),
    "hidden": size("n_inner", lambda fields: 4 * _WIDTH.read(fields)),
}
_CONFIG = record(
    DecoderConfig,
    Layers(size("n_layer", size("num_hidden_layers", 12)), _LAYER),
    width=_WIDTH,
    vocab_size=size("vocab_size"),
    max_length=size("n_positions", 1024),
    activation=activation("activation_function", "gelu_new"),
    norm=_NORM,
    dropout=number("resid_pdrop", 0.1),
    embedding_dropout=Optional(number("embd_pdrop", 0.1), when=lambda fields: True),
    attention_dropout=number("attn_pdrop", 0.1),
    initializer=INITIALIZER,
)

_RULES: Rules = (
    *one("wte.weight", "embeddings/token"),
    *one("wpe.weight", "embeddings/position"),
    *under(
        "h.{}.",
        "decoder/{}/",
        (
            *projection("attn.c_attn", QUERY_KEY_VALUE, MATRIX),
            *affine("attn.c_proj", "attention/output", MATRIX),
            *norm("ln_1", "attention_residual/norm"),
            *projection("mlp.c_fc", "feed_forward/up", MATRIX),
            *projection("mlp.c_proj", "feed_forward/down", MATRIX),
            *norm("ln_2", "feed_forward_residual/norm"),
        ),
    ),
    *norm("ln_f", "decoder/final_norm"),
)

GPT2 = Family(  # Radford et al. 2019
    model_type="gpt2",
    class_prefix="GPT2",
    prefix="transformer.",
    config=_CONFIG,
    classes=text_classes(flag("tie_word_embeddings", True), logits="LMHeadModel"),
    rules=_RULES,
    copies=(("lm_head.weight", "transformer.wte.weight"),),
)


_NEOX_WIDTH, _NEOX_HEADS = size("hidden_size", 6144), size("num_attention_heads", 64)
_HEAD_DIM, _PART, _BIAS = share(_NEOX_WIDTH, _NEOX_HEADS), number("rotary_pct", 0.25), flag("attention_bias", True)
_NEOX_ATTENTION = record(
    MultiHeadAttention,
    num_heads=_NEOX_HEADS,
    head_dim=_HEAD_DIM,
    projection_bias=_BIAS,
    output_bias=_BIAS,
    rotary=rotary(theta="rotary_emb_base", part=_PART, head_dim=_HEAD_DIM),
).writing(lambda attention: written_part(attention, _PART))
_NEOX_CONFIG = record(
    DecoderConfig,
    Layers(size("num_hidden_layers", 44), {"attention": _NEOX_ATTENTION, "hidden": size("intermediate_size", 24576)}),
    width=_NEOX_WIDTH,
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

_NEOX_RULES: Rules = (
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

GPT_NEOX = Family(  # Black et al. 2022: parallel residuals, a part of the dimensions turns, fused by head
    model_type="gpt_neox",
    class_prefix="GPTNeoX",
    prefix="gpt_neox.",
    config=_NEOX_CONFIG,
    classes=text_classes(flag("tie_word_embeddings", False), head="embed_out"),
    rules=_NEOX_RULES,
    copies=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
)
