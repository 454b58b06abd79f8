"""T5 and mT5."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.attention.base import Attention
from headjax.attention.multi_head import MultiHead
from headjax.core.tensors import FanIn
from headjax.hub.family import Family, HeadShape, InexpressibleError, expect
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.forms import Transposed
from headjax.hub.rules import Rules, one, projection, under
from headjax.models.base import ModelConfig
from headjax.models.embeddings import Embeddings, NoPositions
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.feed_forward import Dense, FeedForward, GatedDense
from headjax.models.layer import Layer
from headjax.models.norms import RMSNorm
from headjax.models.outputs import Tied, TokenLogits, Untied
from headjax.models.position_bias import RelativeBuckets
from headjax.models.residual import PreNorm
from headjax.models.stack import Stack


def _attention(theirs: str, name: str, ours: str) -> Rules:
    return (
        *projection(f"{theirs}.{name}.q", f"{ours}/query"),
        *projection(f"{theirs}.{name}.k", f"{ours}/key"),
        *projection(f"{theirs}.{name}.v", f"{ours}/value"),
        *projection(f"{theirs}.{name}.o", f"{ours}/output"),
        *one(f"{theirs}.layer_norm.weight", f"{ours}_residual/norm/scale"),
    )


def _side(side: str, feed_forward: str) -> Rules:
    layer = (
        *_attention("layer.0", "SelfAttention", "attention"),
        *_attention("layer.1", "EncDecAttention", "cross_attention"),
        *projection(f"{feed_forward}.DenseReluDense.wi", "feed_forward/up"),
        *projection(f"{feed_forward}.DenseReluDense.wi_0", "feed_forward/gate"),
        *projection(f"{feed_forward}.DenseReluDense.wi_1", "feed_forward/up"),
        *projection(f"{feed_forward}.DenseReluDense.wo", "feed_forward/down"),
        *one(f"{feed_forward}.layer_norm.weight", "feed_forward_residual/norm/scale"),
    )
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        *under(f"{side}.block.{{}}.", f"{side}/{{}}/", layer),
        *one(f"{side}.{bias}", f"{side}/position_bias/table"),
        *one(f"{side}.final_layer_norm.weight", f"{side}/final_norm/scale"),
    )


_RULES: Rules = (
    *one("shared.weight", "embeddings/token"),
    *_side("encoder", "layer.1"),
    *_side("decoder", "layer.2"),
    *one("lm_head.weight", "output/kernel", Transposed()),
)


@dataclasses.dataclass(frozen=True)
class T5Family(Family):
    """T5 (Raffel et al. 2020), versions 1.0 (tied, scaled logits) and 1.1 (untied, gated feed-forward).

    Attributes:
        scales: whether tied logits are scaled.
    """

    config_type: ClassVar[type[ModelConfig]] = EncoderDecoderModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder", "decoder", "cross"),)
    ignored: ClassVar[tuple[str, ...]] = (
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )
    scales: bool = True

    def read(self, fields: Fields, names: Collection[str]) -> EncoderDecoderModel:
        fields.only("architectures", [[name] for name in self._classes()], [self._classes()[0]])
        attention = MultiHead(
            num_heads=fields.size("num_heads", 8),
            head_dim=fields.size("d_kv", 64),
            scale=1.0,
            projection_bias=False,
            output_bias=False,
        )
        dropout, norm = fields.number("dropout_rate", 0.1), RMSNorm(fields.number("layer_norm_epsilon", 1e-6))
        layer = Layer(
            attention=attention,
            feed_forward=_read_feed_forward(fields),
            residual=PreNorm(norm),
            dropout=dropout,
            attention_dropout=dropout,
            feed_forward_dropout=dropout,
        )

        def stack(layer: Layer, count: int, bidirectional: bool) -> Stack:
            bias = RelativeBuckets(
                num_heads=attention.num_heads,
                buckets=fields.size("relative_attention_num_buckets", 32),
                max_distance=fields.size("relative_attention_max_distance", 128),
                bidirectional=bidirectional,
            )
            return Stack(layers=(layer,) * count, final_norm=norm, position_bias=bias)

        layers, padding = fields.size("num_layers", 6), fields.integer("pad_token_id", 0)
        crossed = dataclasses.replace(layer, cross_attention=attention)
        return EncoderDecoderModel(
            width=fields.size("d_model"),
            embeddings=Embeddings(vocab_size=fields.size("vocab_size"), positions=NoPositions(), dropout=dropout),
            encoder=stack(layer, layers, True),
            decoder=stack(crossed, fields.size("num_decoder_layers", layers), False),
            output=self._read_output(fields, names),
            start_token=fields.integer("decoder_start_token_id", padding),
            padding_token=padding,
            initializer=FanIn(),
        )

    def _read_output(self, fields: Fields, names: Collection[str]) -> TokenLogits:
        """Logits are scaled where they are tied, except where transformers 5 says otherwise.

        It writes `tie_word_embeddings: true` for both versions; an output of its own then shows in the file.
        """
        scaled = self.scales and fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
        return Untied() if "lm_head.weight" in names and not scaled else Tied(scale_by_width=scaled)

    def write(self, config: EncoderDecoderModel) -> dict[str, Any]:
        layer = config.encoder.layers[0]
        attention = expect(layer.attention, MultiHead, "encoder.layers[0].attention", self)
        bias = expect(config.encoder.position_bias, RelativeBuckets, "encoder.position_bias", self)
        residual = expect(layer.residual, PreNorm, "encoder.layers[0].residual", self)
        scaled = isinstance(config.output, Tied) and config.output.scale_by_width
        return {
            "model_type": self.model_type,
            "architectures": [self.classes(config)[0]],
            "is_encoder_decoder": True,
            "vocab_size": config.embeddings.vocab_size,
            "d_model": config.width,
            "d_kv": attention.head_dim,
            "num_heads": attention.num_heads,
            "num_layers": len(config.encoder.layers),
            "num_decoder_layers": len(config.decoder.layers),
            "relative_attention_num_buckets": bias.buckets,
            "relative_attention_max_distance": bias.max_distance,
            "layer_norm_epsilon": residual.norm.epsilon,
            "dropout_rate": layer.dropout,
            "tie_word_embeddings": scaled,
            **({"scale_decoder_outputs": scaled} if self.scales else {}),
            "pad_token_id": config.padding_token,
            "decoder_start_token_id": config.start_token,
            **_write_feed_forward(layer.feed_forward),
        }

    def rules(self, config: EncoderDecoderModel) -> Rules:
        gated = isinstance(config.encoder.layers[0].feed_forward, GatedDense)
        other = ".wi." if gated else ".wi_1."
        return tuple(rule for rule in _RULES if other not in rule.theirs)

    def classes(self, config: EncoderDecoderModel) -> tuple[str, ...]:
        return self._classes() if isinstance(config.output, Tied) else self._classes()[:1]

    def _classes(self) -> tuple[str, str]:
        return f"{self.class_prefix}ForConditionalGeneration", f"{self.class_prefix}Model"

    def copies(self, config: EncoderDecoderModel) -> Mapping[str, str]:
        repeated = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        if isinstance(config.output, Tied):
            repeated.append("lm_head.weight")
        return dict.fromkeys(repeated, "shared.weight")

    def standard(self, shape: HeadShape, like: Attention) -> Attention:
        return MultiHead(
            num_heads=shape.num_heads, head_dim=shape.head_dim, scale=1.0, projection_bias=False, output_bias=False
        )

    def head_shape(self, num_heads: int, head_dim: int, width: int) -> HeadShape | None:
        return HeadShape(num_heads, head_dim, num_heads)


def _read_feed_forward(fields: Fields) -> FeedForward:
    """`feed_forward_proj` is an activation, or `gated-` and one; `gated-gelu` means the tanh approximation."""
    *gated, name = fields.text("feed_forward_proj", "relu").split("-")
    name = "gelu_new" if gated and name == "gelu" else name
    activation = Fields({"feed_forward_proj": name}, fields.file).activation("feed_forward_proj", name)
    if gated not in ([], ["gated"]):
        raise fields.error("feed_forward_proj", "expected an activation, or gated- and an activation")
    return (GatedDense if gated else Dense)(fields.size("d_ff"), activation, bias=False)


def _write_feed_forward(feed_forward: FeedForward) -> dict[str, Any]:
    if not isinstance(feed_forward, Dense | GatedDense):
        raise InexpressibleError(f"feed_forward is {type(feed_forward).__name__}, t5 has Dense and GatedDense")
    name = ACTIVATION_NAMES[feed_forward.activation]
    if isinstance(feed_forward, GatedDense):
        name = "gated-gelu" if feed_forward.activation == "gelu_tanh" else f"gated-{name}"
    return {"d_ff": feed_forward.hidden, "feed_forward_proj": name}
