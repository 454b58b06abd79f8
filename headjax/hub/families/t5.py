"""T5 (Raffel et al. 2020), version 1.0 (tied, scaled logits) and 1.1 (untied, gated feed-forward), and mT5."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from headjax.core.tensors import FanIn
from headjax.hub.family import Family, ModelClass, any_size, multi_head
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.rules import TRANSPOSED, Rules, given, one, projection, projections, under, unless
from headjax.hub.table import Custom, Layers, Record, computed, flag, integer, number, record, size
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import RMSNorm
from headjax.nn.projections import ActivationName

_HIDDEN = size("d_ff")


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


def _output(scales: bool) -> dict[str, Custom]:
    """Return the entries of the logits, which are scaled where they are tied if the family scales at all."""
    # transformers 5 writes `tie_word_embeddings: true` for T5 1.1 too: the tensors show whether the output has weights.
    scaled = flag("scale_decoder_outputs", flag("tie_word_embeddings", True))

    def by_width(fields: Fields) -> bool:
        return scales and bool(scaled.read(fields))

    def write(by_width: bool) -> Mapping[str, Any]:
        return {"tie_word_embeddings": by_width} | ({"scale_decoder_outputs": by_width} if scales else {})

    tied = computed(lambda fields: by_width(fields) or "lm_head.weight" not in fields.tensors)
    return {"tied": tied, "scale_logits": Custom(by_width, write)}


class _TiedOnly(Custom):
    """The output of the base model, which has no weights."""

    def accepts(self, value: Any) -> bool:
        return bool(value)


_PADDING = integer("pad_token_id", 0)
_UNBIASED: dict[str, Any] = {"scale": 1.0, "projection_bias": False, "output_bias": False}


def _config(*, layers: int, heads: int, feed_forward: str) -> Record:
    """Return the table of a family, with these values where a config has none."""
    count, num_heads = size("num_layers", layers), size("num_heads", size("num_attention_heads", heads))
    dropout, head_dim = number("dropout_rate", 0.1), size("d_kv", size("head_dim", 64))
    attention = record(MultiHeadAttention, num_heads=num_heads, head_dim=head_dim, **_UNBIASED)
    bias = record(
        RelativeBuckets,
        num_heads=num_heads,
        buckets=size("relative_attention_num_buckets", 32),
        max_distance=size("relative_attention_max_distance", 128),
    )
    return record(
        EncoderDecoderConfig,
        Layers(count, {"attention": attention, "hidden": _HIDDEN}),
        Layers(
            size("num_decoder_layers", count),
            {"decoder_attention": attention, "cross_attention": attention, "decoder_hidden": _HIDDEN},
            count_name="decoder_layers",
        ),
        width=size("d_model"),
        vocab_size=size("vocab_size"),
        gated=computed(lambda fields: _read_activation(fields, feed_forward)[0], "feed_forward_proj"),
        activation=computed(lambda fields: _read_activation(fields, feed_forward)[1], "feed_forward_proj"),
        feed_forward_bias=False,
        residual="pre_norm",
        norm=record(RMSNorm, epsilon=number("layer_norm_epsilon", 1e-6)),
        position_bias=bias,
        decoder_position_bias=bias,
        dropout=dropout,
        attention_dropout=dropout,
        feed_forward_dropout=dropout,
        start_token=integer("decoder_start_token_id", _PADDING),
        padding_token=_PADDING,
        initializer=FanIn(),
    ).writing(_write_activation)


def _attention(theirs: str, name: str, ours: str) -> Rules:
    return (
        *projections(f"{theirs}.{name}.", "q k v o", ours),
        *one(f"{theirs}.layer_norm.weight", f"{ours}_residual/norm/scale"),
    )


def _side(side: str, feed_forward: str) -> Rules:
    """Return the rules of the encoder or the decoder; `feed_forward` is its place in a block."""
    dense, gate = f"{feed_forward}.DenseReluDense", "feed_forward/gate"
    layer = (
        *_attention("layer.0", "SelfAttention", "attention"),
        *_attention("layer.1", "EncDecAttention", "cross_attention"),
        *unless(gate, projection(f"{dense}.wi", "feed_forward/up")),
        *projection(f"{dense}.wi_0", gate),
        *given(gate, projection(f"{dense}.wi_1", "feed_forward/up")),
        *projection(f"{dense}.wo", "feed_forward/down"),
        *one(f"{feed_forward}.layer_norm.weight", "feed_forward_residual/norm/scale"),
    )
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        *under(f"{side}.block.{{}}.", f"{side}/{{}}/", layer),
        *one(f"{side}.{bias}", f"{side}/position_bias/table"),
        *one(f"{side}.final_layer_norm.weight", f"{side}/final_norm/scale"),
    )


def _family(model_type: str, class_prefix: str, config: Record, *, scales: bool) -> Family:
    output = _output(scales)
    tied_only = _TiedOnly(output["tied"].reader, output["tied"].writer)
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
            ModelClass(suffix="Model", parts=output | {"tied": tied_only}),
        ),
        rules=(
            *one("shared.weight", "embeddings/token"),
            *_side("encoder", "layer.1"),
            *_side("decoder", "layer.2"),
        ),
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


T5 = _family("t5", "T5", _config(layers=6, heads=8, feed_forward="relu"), scales=True)
MT5 = _family("mt5", "MT5", _config(layers=8, heads=6, feed_forward="gated-gelu"), scales=False)
