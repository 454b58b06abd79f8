"""GPT-2: weights are `[inputs, outputs]`, and query, key and value are one tensor."""

from __future__ import annotations

from headjax.hub.families.entries import INITIALIZER, text_classes
from headjax.hub.family import Family
from headjax.hub.rules import MATRIX, QUERY_KEY_VALUE, Rules, affine, norm, one, projection, under
from headjax.hub.table import Layers, Optional, activation, flag, number, record, share, size
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
