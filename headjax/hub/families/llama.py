"""Llama, Mistral, Qwen2 and Qwen3: grouped heads, rotary positions, gated feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headjax.attention.formulation import Attention
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.rotary import LinearScaling, Llama3Scaling, RotaryHalves
from headjax.core.norms import RMSNorm
from headjax.core.tensors import Normal
from headjax.hub.family import Family, HeadShape, ModelClass, any_size
from headjax.hub.fields import Fields
from headjax.hub.rules import Rules, Transposed, one, projection, under
from headjax.hub.table import (
    Choice,
    Custom,
    Entry,
    Fixed,
    Layers,
    Optional,
    Record,
    TrainingOnly,
    activation,
    flag,
    number,
    record,
    size,
    text,
)
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, NoPositions
from headjax.models.layer import Layer, PreNorm
from headjax.models.outputs import Tied, Untied
from headjax.models.stack import Stack
from headjax.models.sublayers import GatedDense

_SCALING = Choice(
    text("rope_type", text("type", "default")),
    {
        "default": Fixed(None),
        "linear": record(LinearScaling, factor=number("factor")),
        "llama3": record(
            Llama3Scaling,
            factor=number("factor"),
            low_frequency=number("low_freq_factor"),
            high_frequency=number("high_freq_factor"),
            original_length=size("original_max_position_embeddings"),
        ),
    },
)
_ROPE = record(RotaryHalves, base=number("rope_theta"), scaling=_SCALING)


def _read_rotary(fields: Fields) -> RotaryHalves:
    """Read `rope_parameters`, or `rope_theta` and `rope_scaling` of transformers 4."""
    parameters = dict(fields.group("rope_parameters") or fields.group("rope_scaling"))
    parameters.setdefault("rope_theta", fields.number("rope_theta", 10000.0))
    rope = Fields(parameters, f"{fields.file}: rope_parameters")
    rope.only("partial_rotary_factor", [1.0], 1.0)
    rotary: RotaryHalves = _ROPE.read(rope)
    return rotary


def _write_rotary(rotary: Any) -> Mapping[str, Any]:
    """Write the fields of both generations of transformers."""
    parameters = _ROPE.write(rotary, "rotary")
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    return {
        "rope_theta": rotary.base,
        "rope_scaling": None if rotary.scaling is None else scaling,
        "rope_parameters": parameters,
    }


_WIDTH, _HEADS = size("hidden_size"), size("num_attention_heads")
_TIED = flag("tie_word_embeddings", False)
_NORM = record(RMSNorm, epsilon=number("rms_norm_eps", 1e-6))


def _config(
    *,
    projection_bias: Entry | bool,
    output_bias: Entry | bool,
    feed_forward_bias: Entry | bool = False,
    longest: Entry | None = None,
    head_norm: Record | None = None,
) -> Record:
    """Return the table of a decoder.

    Args:
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the attention's output has a bias.
        feed_forward_bias: whether the feed-forward layers have biases.
        longest: number of tokens up to which attention sees everything before it; None is any number.
        head_norm: normalisation of each head's queries and keys, or None.
    """
    attention = record(
        Grouped,
        num_heads=_HEADS,
        kv_heads=size("num_key_value_heads", _HEADS),
        head_dim=size("head_dim", lambda fields: _WIDTH.read(fields) // _HEADS.read(fields)),
        projection_bias=projection_bias,
        output_bias=output_bias,
        rotary=Custom(_read_rotary, _write_rotary),
        query_norm=head_norm,
        key_norm=head_norm,
    )
    layer = record(
        Layer,
        attention=attention,
        feed_forward=record(
            GatedDense,
            hidden=size("intermediate_size"),
            activation=activation("hidden_act", "silu"),
            bias=feed_forward_bias,
        ),
        residual=record(PreNorm, norm=_NORM),
        attention_dropout=number("attention_dropout", 0.0),
    )
    positions = record(NoPositions, max_length=longest)
    return record(
        DecoderModel,
        width=_WIDTH,
        embeddings=record(Embeddings, vocab_size=size("vocab_size"), positions=positions),
        decoder=record(Stack, layers=Layers(size("num_hidden_layers"), layer), final_norm=_NORM),
        initializer=TrainingOnly(record(Normal, stddev=number("initializer_range", 0.02))),
    )


_RULES: Rules = (
    *one("embed_tokens.weight", "embeddings/token"),
    *under(
        "layers.{}.",
        "decoder/{}/",
        (
            *projection("self_attn.q_proj", "attention/query"),
            *projection("self_attn.k_proj", "attention/key"),
            *projection("self_attn.v_proj", "attention/value"),
            *projection("self_attn.o_proj", "attention/output"),
            *one("self_attn.q_norm.weight", "attention/query_norm/scale"),
            *one("self_attn.k_norm.weight", "attention/key_norm/scale"),
            *one("input_layernorm.weight", "attention_residual/norm/scale"),
            *projection("mlp.gate_proj", "feed_forward/gate"),
            *projection("mlp.up_proj", "feed_forward/up"),
            *projection("mlp.down_proj", "feed_forward/down"),
            *one("post_attention_layernorm.weight", "feed_forward_residual/norm/scale"),
        ),
    ),
    *one("norm.weight", "decoder/final_norm/scale"),
)


def _grouped(shape: HeadShape, like: Attention) -> Attention:
    """Return grouped heads with the biases, rotary positions and norms that `like` has."""
    biased = isinstance(like, Grouped | MultiHead)
    return Grouped(
        num_heads=shape.num_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        projection_bias=biased and like.projection_bias,  # type: ignore[attr-defined]
        output_bias=biased and like.output_bias,  # type: ignore[attr-defined]
        rotary=like.rotary if isinstance(like, Grouped | MultiHead) else None,
        query_norm=like.query_norm if isinstance(like, Grouped) else None,
        key_norm=like.key_norm if isinstance(like, Grouped) else None,
    )


def _family(model_type: str, class_prefix: str, config: Record) -> Family:
    return Family(
        model_type=model_type,
        class_prefix=class_prefix,
        prefix="model.",
        config=config,
        classes=(
            ModelClass(
                suffix="ForCausalLM",
                parts={"output": Choice(_TIED, {True: record(Tied), False: record(Untied)})},
                rules=one("lm_head.weight", "output/kernel", Transposed()),
            ),
            ModelClass(suffix="Model", parts={"output": Choice(_TIED, {True: record(Tied)})}),
        ),
        rules=_RULES,
        copies=(("lm_head.weight", "model.embed_tokens.weight"),),
        ignored=(r"(model\.)?layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq",),
        head_groups=(("decoder",),),
        # llama.cpp loads no model without a context length; transformers assumes this one for Llama.
        defaults={"max_position_embeddings": 2048},
        head_shape=any_size,
        standard=_grouped,
    )


_ATTENTION_BIAS = flag("attention_bias", False)
# Attention over a window sees everything up to the window's length, so that the window limits the length here.
_WINDOW = Custom(
    lambda fields: fields.integer("sliding_window", 0) or None,
    lambda longest: {"sliding_window": longest},
    name="sliding_window",
)
_WINDOW_IF_USED = Optional(size("sliding_window", 4096), when=flag("use_sliding_window", False))

LLAMA = _family(  # Touvron et al. 2023
    "llama",
    "Llama",
    _config(projection_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, feed_forward_bias=flag("mlp_bias", False)),
)
MISTRAL = _family(  # Jiang et al. 2023
    "mistral", "Mistral", _config(projection_bias=False, output_bias=False, longest=_WINDOW)
)
QWEN2 = _family("qwen2", "Qwen2", _config(projection_bias=True, output_bias=False, longest=_WINDOW_IF_USED))
QWEN3 = _family(
    "qwen3",
    "Qwen3",
    _config(
        projection_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        longest=_WINDOW_IF_USED,
        head_norm=_NORM,
    ),
)
