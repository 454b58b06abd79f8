"""BART and Marian, the Transformer of Vaswani et al. (2017) with a bias on its logits, and T5 and mT5."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from headjax.core.tensors import FanIn, Normal
from headjax.hub import table
from headjax.hub.families.entries import heads
from headjax.hub.family import Copies, Family, ModelClass, any_size, multi_head
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.rules import TRANSPOSED, Rules, given, layers, leading, norm, one, projection, projections, unless
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm, RMSNorm
from headjax.nn.projections import ActivationName

_WIDTH, _VOCABULARY = table.size("d_model"), table.size("vocab_size")
_NORM = LayerNorm(1e-5)


def _layers(side: str) -> table.Layers:
    attention = heads(_WIDTH, table.size(f"{side}_attention_heads"))
    count, hidden = table.size(f"{side}_layers"), table.size(f"{side}_ffn_dim")
    if side == "encoder":
        return table.Layers(count, {"attention": attention, "hidden": hidden})
    parts = {"decoder_attention": attention, "cross_attention": attention, "decoder_hidden": hidden}
    return table.Layers(count, parts, count_name="decoder_layers")


def _config(start: int, padding: int, **parts: Any) -> table.Record:
    """Return the table of a family, whose decoder starts with `start`, and pads with `padding`, by default."""
    return table.record(
        EncoderDecoderConfig,
        _layers("encoder"),
        _layers("decoder"),
        width=_WIDTH,
        vocab_size=_VOCABULARY,
        scale_embeddings=table.flag("scale_embedding", False),
        activation=table.activation("activation_function", "gelu"),
        norm=_NORM,
        dropout=table.number("dropout", 0.1),
        attention_dropout=table.number("attention_dropout", 0.0),
        feed_forward_dropout=table.number("activation_dropout", 0.0),
        start_token=table.integer("decoder_start_token_id", start),
        padding_token=table.integer("pad_token_id", padding),
        initializer=table.TrainingOnly(table.record(Normal, stddev=table.number("init_std", 0.02))),
        **parts,
    )


def _classes(generator: str) -> tuple[ModelClass, ModelClass]:
    """Return the class with logits, whose name ends with `generator`, and the base model."""
    logits = one("final_logits_bias", "output/bias", leading())
    return (
        ModelClass(suffix=generator, parts={"output_bias": True}, rules=logits),
        ModelClass(suffix="Model", parts={"output_bias": False}),
    )


_ATTENTION: Rules = (
    *projections("self_attn.", "q_proj k_proj v_proj out_proj", "attention"),
    *projections("encoder_attn.", "q_proj k_proj v_proj out_proj", "cross_attention"),
    *norm("encoder_attn_layer_norm", "cross_attention_residual/norm"),
)
_STACKS: Rules = tuple(
    rule
    for side in ("encoder", "decoder")
    for rule in layers(
        (f"{side}.layers.{{}}.", f"{side}/{{}}/"), _ATTENTION, "self_attn_layer_norm final_layer_norm", "fc1 fc2"
    )
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
        max_length=table.size("max_position_embeddings", 1024),
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

_SHARES = table.flag("share_encoder_decoder_embeddings", True)

MARIAN = Family(  # Junczys-Dowmunt et al. 2018, OPUS-MT: sinusoidal positions; the two sides may have their own tokens
    model_type="marian",
    class_prefix="Marian",
    prefix="model.",
    config=_config(
        start=58100,
        padding=58100,
        positions="sinusoidal",
        target_vocab_size=table.Optional(
            table.size("decoder_vocab_size", _VOCABULARY), when=lambda fields: not _SHARES.read(fields)
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


# T5 (Raffel et al. 2020), version 1.0 (tied, scaled logits) and 1.1 (untied, gated feed-forward), and mT5.

_HIDDEN = table.size("d_ff")


def _read_activation(fields: Fields, usual: str) -> tuple[bool, ActivationName]:
    """Read an activation, or `gated-` and one; `gated-gelu` means the tanh approximation."""
    *gate, name = fields.text("feed_forward_proj", usual).split("-")
    name = "gelu_new" if gate and name == "gelu" else name
    activation = Fields({"feed_forward_proj": name}, fields.file).activation("feed_forward_proj", name)
    if gate not in ([], ["gated"]):
        raise fields.error("feed_forward_proj", "expected an activation, or gated- and an activation")
    return bool(gate), activation


def _write_activation(config: EncoderDecoderConfig) -> Mapping[str, Any]:
    name = ACTIVATION_NAMES[config.activation]
    if config.gated:
        name = "gated-gelu" if config.activation == "gelu_tanh" else f"gated-{name}"
    return {"feed_forward_proj": name}


def _output(scales: bool) -> dict[str, table.Custom]:
    """Return the entries of the logits: T5 scales them by the width if they are tied, mT5 (not `scales`) never."""
    # transformers 5 writes `tie_word_embeddings: true` for T5 1.1 too: the tensors show whether the output has weights.
    scaled = table.flag("scale_decoder_outputs", table.flag("tie_word_embeddings", True))

    def by_width(fields: Fields) -> bool:
        return scales and bool(scaled.read(fields))

    def write(by_width: bool) -> Mapping[str, Any]:
        return {"tie_word_embeddings": by_width} | ({"scale_decoder_outputs": by_width} if scales else {})

    tied = table.computed(lambda fields: by_width(fields) or "lm_head.weight" not in fields.tensors)
    return {"tied": tied, "scale_logits": table.Custom(by_width, write)}


_PADDING = table.integer("pad_token_id", 0)
_UNBIASED: dict[str, Any] = {"scale": 1.0, "projection_bias": False, "output_bias": False}


def _t5(*, num_layers: int, num_heads: int, feed_forward: str) -> table.Record:
    """Return the table of a family, with these values where a config has none."""
    count = table.size("num_layers", num_layers)
    head_count = table.size("num_heads", table.size("num_attention_heads", num_heads))
    dropout, head_dim = table.number("dropout_rate", 0.1), table.size("d_kv", table.size("head_dim", 64))
    attention = table.record(MultiHeadAttention, num_heads=head_count, head_dim=head_dim, **_UNBIASED)
    bias = table.record(
        RelativeBuckets,
        num_heads=head_count,
        buckets=table.size("relative_attention_num_buckets", 32),
        max_distance=table.size("relative_attention_max_distance", 128),
    )
    return table.record(
        EncoderDecoderConfig,
        table.Layers(count, {"attention": attention, "hidden": _HIDDEN}),
        table.Layers(
            table.size("num_decoder_layers", count),
            {"decoder_attention": attention, "cross_attention": attention, "decoder_hidden": _HIDDEN},
            count_name="decoder_layers",
        ),
        width=table.size("d_model"),
        vocab_size=table.size("vocab_size"),
        gated=table.computed(lambda fields: _read_activation(fields, feed_forward)[0], "feed_forward_proj"),
        activation=table.computed(lambda fields: _read_activation(fields, feed_forward)[1], "feed_forward_proj"),
        feed_forward_bias=False,
        residual="pre_norm",
        norm=table.record(RMSNorm, epsilon=table.number("layer_norm_epsilon", 1e-6)),
        position_bias=bias,
        decoder_position_bias=bias,
        dropout=dropout,
        attention_dropout=dropout,
        feed_forward_dropout=dropout,
        start_token=table.integer("decoder_start_token_id", _PADDING),
        padding_token=_PADDING,
        initializer=FanIn(),
    ).writing(_write_activation)


def _side(side: str, feed_forward: str) -> Rules:
    """Return the rules of the encoder or the decoder; `feed_forward` is the part of a block that holds it."""
    dense, gate = f"{feed_forward}.DenseReluDense", "feed_forward/gate"
    attention = (
        *projections("layer.0.SelfAttention.", "q k v o", "attention"),
        *projections("layer.1.EncDecAttention.", "q k v o", "cross_attention"),
        *norm("layer.1.layer_norm", "cross_attention_residual/norm"),
    )
    maps = (
        *unless(gate, projection(f"{dense}.wi", "feed_forward/up")),
        *projection(f"{dense}.wi_0", gate),
        *given(gate, projection(f"{dense}.wi_1", "feed_forward/up")),
        *projection(f"{dense}.wo", "feed_forward/down"),
    )
    prefixes, norms = (f"{side}.block.{{}}.", f"{side}/{{}}/"), f"layer.0.layer_norm {feed_forward}.layer_norm"
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        *layers(prefixes, attention, norms, maps),
        *one(f"{side}.{bias}", f"{side}/position_bias/table"),
        *norm(f"{side}.final_layer_norm", f"{side}/final_norm"),
    )


def _family(model_type: str, class_prefix: str, config: table.Record, *, scales: bool) -> Family:
    output = _output(scales)
    return Family(
        model_type=model_type,
        class_prefix=class_prefix,
        config=config,
        classes=(
            ModelClass(
                suffix="ForConditionalGeneration",
                parts=output,
                rules=one("lm_head.weight", "output/kernel", TRANSPOSED),
            ),
            ModelClass(suffix="Model", parts={**output, "tied": True}),
        ),
        rules=(*one("shared.weight", "embeddings/token"), *_side("encoder", "layer.1"), *_side("decoder", "layer.2")),
        copies=(
            ("encoder.embed_tokens.weight", "shared.weight"),
            ("decoder.embed_tokens.weight", "shared.weight"),
            ("lm_head.weight", "shared.weight"),
        ),
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        constants={"is_encoder_decoder": True},
        head_groups=(("encoder", "decoder", "cross"),),
        head_shape=any_size,
        standard=functools.partial(multi_head, **_UNBIASED),
    )


T5 = _family("t5", "T5", _t5(num_layers=6, num_heads=8, feed_forward="relu"), scales=True)
MT5 = _family("mt5", "MT5", _t5(num_layers=8, num_heads=6, feed_forward="gated-gelu"), scales=False)
