"""GPT-2: weights are `[inputs, outputs]`, and query, key and value are one tensor."""

from __future__ import annotations

from headjax.attention.multi_head import MultiHeadAttention
from headjax.core.norms import LayerNorm
from headjax.core.tensors import Normal
from headjax.hub.families.entries import CAUSAL
from headjax.hub.family import Family, ModelClass
from headjax.hub.rules import FLAT, MATRIX, TRANSPOSED, Rule, Rules, affine, norm, one, projection, under
from headjax.hub.table import Choice, Layers, TrainingOnly, activation, flag, number, record, share, size
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, Learned
from headjax.models.layer import Layer
from headjax.models.outputs import Tied, Untied
from headjax.models.residuals import PreNorm
from headjax.models.stack import Stack
from headjax.models.sublayers import Dense

_WIDTH, _HEADS = size("n_embd", 768), size("n_head", 12)
_NORM = record(LayerNorm, epsilon=number("layer_norm_epsilon", 1e-5))
_TIED = flag("tie_word_embeddings", True)

_LAYER = record(
    Layer,
    attention=record(MultiHeadAttention, num_heads=_HEADS, head_dim=share(_WIDTH, _HEADS)),
    feed_forward=record(
        Dense,
        hidden=size("n_inner", lambda fields: 4 * _WIDTH.read(fields)),
        activation=activation("activation_function", "gelu_new"),
    ),
    residual=record(PreNorm, norm=_NORM),
    dropout=number("resid_pdrop", 0.1),
    attention_dropout=number("attn_pdrop", 0.1),
)
_CONFIG = record(
    DecoderModel,
    width=_WIDTH,
    embeddings=record(
        Embeddings,
        vocab_size=size("vocab_size"),
        positions=record(Learned, max_length=size("n_positions", 1024)),
        dropout=number("embd_pdrop", 0.1),
    ),
    decoder=record(Stack, layers=Layers(size("n_layer", 12), _LAYER), final_norm=_NORM),
    initializer=TrainingOnly(record(Normal, stddev=number("initializer_range", 0.02))),
)

_QUERY_KEY_VALUE = tuple(f"attention/{name}" for name in ("query", "key", "value"))
_RULES: Rules = (
    *one("wte.weight", "embeddings/token"),
    *one("wpe.weight", "embeddings/position"),
    *under(
        "h.{}.",
        "decoder/{}/",
        (
            Rule("attn.c_attn.weight", _QUERY_KEY_VALUE, MATRIX),
            Rule("attn.c_attn.bias", tuple(f"{name}_bias" for name in _QUERY_KEY_VALUE), FLAT),
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
    classes=(
        ModelClass(
            suffix="LMHeadModel",
            parts={"output": Choice(_TIED, {True: record(Tied), False: record(Untied)})},
            rules=one("lm_head.weight", "output/kernel", TRANSPOSED),
        ),
        ModelClass(suffix="Model", parts={"output": Choice(_TIED, {True: record(Tied)})}),
    ),
    rules=_RULES,
    copies=(("lm_head.weight", "transformer.wte.weight"),),
    aliases={
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
    },
    ignored=(r"(transformer\.)?h\.[0-9]+\.attn\.(bias|masked_bias)",),
    supported=CAUSAL
    | {
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    head_groups=(("decoder",),),
)
