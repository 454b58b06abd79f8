"""GPT-2, whose weights are `[inputs, outputs]`, and GPT-NeoX (Pythia): both have fused queries, keys and values."""

from __future__ import annotations

import dataclasses

from headjax.hub import rules
from headjax.hub.families.entries import INITIALIZER, heads, rotary, text_classes, written_part
from headjax.hub.family import Family
from headjax.hub.table import Choice, Fixed, Layers, Optional, activation, flag, number, record, share, size
from headjax.models.decoder import DecoderConfig
from headjax.nn.norms import LayerNorm

_WIDTH, _HEADS = size("n_embd", size("hidden_size", 768)), size("n_head", size("num_attention_heads", 12))
_NORM = record(LayerNorm, epsilon=number("layer_norm_epsilon", 1e-5))

_LAYER = {"attention": heads(_WIDTH, _HEADS), "hidden": size("n_inner", lambda fields: 4 * _WIDTH.read(fields))}
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

_RULES: rules.Rules = (
    *rules.one("wte.weight", "embeddings/token"),
    *rules.one("wpe.weight", "embeddings/position"),
    *rules.layers(
        ("h.{}.", "decoder/{}/"),
        (
            *rules.projection("attn.c_attn", rules.QUERY_KEY_VALUE, rules.MATRIX),
            *rules.affine("attn.c_proj", "attention/output", rules.MATRIX),
        ),
        "ln_1 ln_2",
        "mlp.c_fc mlp.c_proj",
        weight=rules.MATRIX,
    ),
    *rules.norm("ln_f", "decoder/final_norm"),
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
_PART, _BIAS = number("rotary_pct", 0.25), flag("attention_bias", True)
_ROTARY = rotary(theta="rotary_emb_base", part=_PART, head_dim=share(_NEOX_WIDTH, _NEOX_HEADS))
_NEOX_ATTENTION = heads(_NEOX_WIDTH, _NEOX_HEADS, projection_bias=_BIAS, output_bias=_BIAS, rotary=_ROTARY).writing(
    lambda attention: written_part(attention, _PART)
)
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

_NEOX_RULES: rules.Rules = (
    *rules.one("embed_in.weight", "embeddings/token"),
    *rules.layers(
        ("layers.{}.", "decoder/{}/"),
        (
            *(
                dataclasses.replace(rule, form=dataclasses.replace(rule.form, by_head=True))
                for rule in rules.projection("attention.query_key_value", rules.QUERY_KEY_VALUE)
            ),
            *rules.affine("attention.dense", "attention/output"),
        ),
        "input_layernorm post_attention_layernorm",
        "mlp.dense_h_to_4h mlp.dense_4h_to_h",
    ),
    *rules.norm("final_layer_norm", "decoder/final_norm"),
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
