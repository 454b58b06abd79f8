"""BART and Marian: the Transformer of Vaswani et al. (2017) with a bias on its logits."""

from __future__ import annotations

from typing import Any

from headjax.core.tensors import Normal
from headjax.hub.family import Copies, Family, ModelClass
from headjax.hub.rules import Rules, given, leading, norm, one, projection, projections, under, unless
from headjax.hub.table import (
    Layers,
    Optional,
    Record,
    TrainingOnly,
    activation,
    flag,
    integer,
    number,
    record,
    share,
    size,
)
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm

_WIDTH, _VOCABULARY = size("d_model"), size("vocab_size")
_NORM = LayerNorm(1e-5)


def _layers(side: str) -> Layers:
    heads = size(f"{side}_attention_heads")
    attention = record(MultiHeadAttention, num_heads=heads, head_dim=share(_WIDTH, heads))
    count, hidden = size(f"{side}_layers"), size(f"{side}_ffn_dim")
    if side == "encoder":
        return Layers(count, {"attention": attention, "hidden": hidden})
    parts = {"decoder_attention": attention, "cross_attention": attention, "decoder_hidden": hidden}
    return Layers(count, parts, count_name="decoder_layers")


def _config(start: int, padding: int, **parts: Any) -> Record:
    """Return the table of a family, whose decoder starts with `start`, and pads with `padding`, by default."""
    return record(
        EncoderDecoderConfig,
        _layers("encoder"),
        _layers("decoder"),
        width=_WIDTH,
        vocab_size=_VOCABULARY,
        scale_embeddings=flag("scale_embedding", False),
        activation=activation("activation_function", "gelu"),
        norm=_NORM,
        dropout=number("dropout", 0.1),
        attention_dropout=number("attention_dropout", 0.0),
        feed_forward_dropout=number("activation_dropout", 0.0),
        start_token=integer("decoder_start_token_id", start),
        padding_token=integer("pad_token_id", padding),
        initializer=TrainingOnly(record(Normal, stddev=number("init_std", 0.02))),
        **parts,
    )


def _classes(generator: str) -> tuple[ModelClass, ModelClass]:
    """Return the class with logits, whose name ends with `generator`, and the base model."""
    logits = one("final_logits_bias", "output/bias", leading())
    return (
        ModelClass(suffix=generator, parts={"output_bias": True}, rules=logits),
        ModelClass(suffix="Model", parts={"output_bias": False}),
    )


def _attention(theirs: str, ours: str) -> Rules:
    return (
        *projections(f"{theirs}.", "q_proj k_proj v_proj out_proj", ours),
        *norm(f"{theirs}_layer_norm", f"{ours}_residual/norm"),
    )


_LAYER: Rules = (
    *_attention("self_attn", "attention"),
    *_attention("encoder_attn", "cross_attention"),
    *projection("fc1", "feed_forward/up"),
    *projection("fc2", "feed_forward/down"),
    *norm("final_layer_norm", "feed_forward_residual/norm"),
)
_STACKS: Rules = (
    *under("encoder.layers.{}.", "encoder/{}/", _LAYER),
    *under("decoder.layers.{}.", "decoder/{}/", _LAYER),
)
_SHARED: Copies = (
    ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ("lm_head.weight", "model.shared.weight"),
)
_SUPPORTED = {"tie_word_embeddings": (True,)}
_CONSTANTS = {"is_encoder_decoder": True, "tie_word_embeddings": True}

BART = Family(  # Lewis et al. 2020: learned positions and normalised embeddings on each side
    model_type="bart",
    class_prefix="Bart",
    prefix="model.",
    config=_config(
        start=2,
        padding=1,
        positions="learned",
        max_length=size("max_position_embeddings", 1024),
        position_offset=2,
        embedding_norm=True,
    ),
    classes=_classes("ForConditionalGeneration"),
    rules=(
        *one("shared.weight", "embeddings/token"),
        *one("encoder.embed_positions.weight", "embeddings/position"),
        *norm("encoder.layernorm_embedding", "embeddings/norm"),
        *one("decoder.embed_positions.weight", "decoder_embeddings/position"),
        *norm("decoder.layernorm_embedding", "decoder_embeddings/norm"),
        *_STACKS,
    ),
    copies=_SHARED,
    supported=_SUPPORTED,
    constants=_CONSTANTS,
)

_SHARES = flag("share_encoder_decoder_embeddings", True)

MARIAN = Family(  # Junczys-Dowmunt et al. 2018, OPUS-MT: sinusoidal positions; the two sides may have their own tokens
    model_type="marian",
    class_prefix="Marian",
    prefix="model.",
    config=_config(
        start=58100,
        padding=58100,
        positions="sinusoidal",
        target_vocab_size=Optional(
            size("decoder_vocab_size", _VOCABULARY), when=lambda fields: not _SHARES.read(fields)
        ),
        share_tokens=_SHARES,
    ),
    classes=_classes("MTModel"),
    rules=(
        *unless("decoder_embeddings/token", one("shared.weight", "embeddings/token")),
        *given("decoder_embeddings/token", one("encoder.embed_tokens.weight", "embeddings/token")),
        *one("decoder.embed_tokens.weight", "decoder_embeddings/token"),
        *_STACKS,
    ),
    copies=(*_SHARED, ("lm_head.weight", "model.decoder.embed_tokens.weight")),
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
    supported=_SUPPORTED,
    constants=_CONSTANTS,
)
