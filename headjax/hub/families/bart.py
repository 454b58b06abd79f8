"""BART and Marian: the Transformer of Vaswani et al. (2017) with a bias on its logits."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.attention.multi_head import MultiHead
from headjax.core.tensors import Normal
from headjax.hub.family import Family, expect, head_dim
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.forms import Leading
from headjax.hub.rules import Rules, norm, one, projection, under
from headjax.models.base import ModelConfig
from headjax.models.embeddings import Embeddings, Learned, Sinusoidal
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.feed_forward import Dense
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.outputs import Tied
from headjax.models.residual import PostNorm
from headjax.models.stack import Stack


def _attention(theirs: str, ours: str) -> Rules:
    return (
        *projection(f"{theirs}.q_proj", f"{ours}/query"),
        *projection(f"{theirs}.k_proj", f"{ours}/key"),
        *projection(f"{theirs}.v_proj", f"{ours}/value"),
        *projection(f"{theirs}.out_proj", f"{ours}/output"),
        *norm(f"{theirs}_layer_norm", f"{ours}_residual/norm"),
    )


_LAYER: Rules = (
    *_attention("self_attn", "attention"),
    *_attention("encoder_attn", "cross_attention"),
    *projection("fc1", "feed_forward/up"),
    *projection("fc2", "feed_forward/down"),
    *norm("final_layer_norm", "feed_forward_residual/norm"),
)
_STACKS: Rules = tuple(
    rule for side in ("encoder", "decoder") for rule in under(f"model.{side}.layers.{{}}.", f"{side}/{{}}/", _LAYER)
)
_LOGITS: Rules = one("final_logits_bias", "output/bias", Leading())


@dataclasses.dataclass(frozen=True)
class TranslationFamily(Family):
    """What BART and Marian share: post-norm layers on both sides, one table of tokens or two."""

    prefix: ClassVar[str] = "model."
    config_type: ClassVar[type[ModelConfig]] = EncoderDecoderModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder", "cross"))
    generator: ClassVar[str]
    """Ending of the class that has logits."""

    @abc.abstractmethod
    def embeddings(self, fields: Fields, vocab_size: int) -> Embeddings:
        """Those of one side."""

    def shares_tokens(self, fields: Fields) -> bool:
        """Whether both sides have one table of tokens."""
        return True

    def read(self, fields: Fields, names: Collection[str]) -> EncoderDecoderModel:
        class_name = (fields.data.get("architectures") or [self.class_prefix + self.generator])[0]
        if class_name not in self._classes():
            supported = ", ".join(self._classes())
            raise fields.error("architectures", f"{class_name} is not supported; supported: {supported}")
        fields.only("tie_word_embeddings", [True], True)
        for name in ("normalize_before", "add_final_layer_norm", "static_position_embeddings"):
            fields.only(name, [False, self.model_type == "marian"], False)
        width, vocab_size = fields.size("d_model"), fields.size("vocab_size")
        shared = self.shares_tokens(fields)
        decoder_vocab = vocab_size if shared else fields.size("decoder_vocab_size", vocab_size)
        padding = fields.integer("pad_token_id", 1)
        return EncoderDecoderModel(
            width=width,
            embeddings=self.embeddings(fields, vocab_size),
            encoder=self._stack(fields, width, "encoder"),
            decoder=self._stack(fields, width, "decoder"),
            decoder_embeddings=None if shared else self.embeddings(fields, decoder_vocab),
            share_tokens=shared,
            output=Tied(bias=class_name.endswith(self.generator)),
            start_token=fields.integer("decoder_start_token_id", padding),
            padding_token=padding,
            initializer=Normal(fields.number("init_std", 0.02)),
        )

    def _stack(self, fields: Fields, width: int, side: str) -> Stack:
        name = f"{side}_attention_heads"
        heads = fields.size(name)
        attention = MultiHead(num_heads=heads, head_dim=head_dim(fields, width, heads, name))
        layer = Layer(
            attention=attention,
            cross_attention=attention if side == "decoder" else None,
            feed_forward=Dense(fields.size(f"{side}_ffn_dim"), fields.activation("activation_function", "gelu")),
            residual=PostNorm(LayerNorm(1e-5)),
            dropout=fields.number("dropout", 0.1),
            attention_dropout=fields.number("attention_dropout", 0.0),
            feed_forward_dropout=fields.number("activation_dropout", 0.0),
        )
        return Stack(layers=(layer,) * fields.size(f"{side}_layers"))

    def write(self, config: EncoderDecoderModel) -> dict[str, Any]:
        layer = config.encoder.layers[0]
        feed_forward = expect(layer.feed_forward, Dense, "encoder.layers[0].feed_forward", self)
        fields: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [self.classes(config)[0]],
            "is_encoder_decoder": True,
            "vocab_size": config.embeddings.vocab_size,
            "d_model": config.width,
            "activation_function": ACTIVATION_NAMES[feed_forward.activation],
            "dropout": layer.dropout,
            "attention_dropout": layer.attention_dropout,
            "activation_dropout": layer.feed_forward_dropout,
            "scale_embedding": config.embeddings.scale_by_width,
            "pad_token_id": config.padding_token,
            "decoder_start_token_id": config.start_token,
            "tie_word_embeddings": True,
        }
        for side, stack in config.stacks().items():
            first = stack.layers[0]
            attention = expect(first.attention, MultiHead, f"{side}.layers[0].attention", self)
            fields |= {
                f"{side}_layers": len(stack.layers),
                f"{side}_attention_heads": attention.num_heads,
                f"{side}_ffn_dim": expect(first.feed_forward, Dense, f"{side}.layers[0].feed_forward", self).hidden,
            }
        return fields

    def classes(self, config: EncoderDecoderModel) -> tuple[str, ...]:
        biased = isinstance(config.output, Tied) and config.output.bias
        return self._classes()[:1] if biased else self._classes()[1:]

    def _classes(self) -> tuple[str, str]:
        return self.class_prefix + self.generator, f"{self.class_prefix}Model"


@dataclasses.dataclass(frozen=True)
class BartFamily(TranslationFamily):
    """BART (Lewis et al. 2020): learned positions and normalised embeddings on each side."""

    generator: ClassVar[str] = "ForConditionalGeneration"
    ignored: ClassVar[tuple[str, ...]] = (r"(model\.)?(encoder|decoder)\.version",)

    def embeddings(self, fields: Fields, vocab_size: int) -> Embeddings:
        return Embeddings(
            vocab_size=vocab_size,
            positions=Learned(fields.size("max_position_embeddings", 1024), offset=2),
            scale_by_width=fields.flag("scale_embedding", False),
            norm=LayerNorm(1e-5),
            dropout=fields.number("dropout", 0.1),
        )

    def write(self, config: EncoderDecoderModel) -> dict[str, Any]:
        positions = expect(config.embeddings.positions, Learned, "embeddings.positions", self)
        return super().write(config) | {"max_position_embeddings": positions.max_length}

    def rules(self, config: EncoderDecoderModel) -> Rules:
        sides = tuple(
            rule
            for side, ours in (("encoder", "embeddings"), ("decoder", "decoder_embeddings"))
            for rule in (
                *one(f"model.{side}.embed_positions.weight", f"{ours}/position"),
                *norm(f"model.{side}.layernorm_embedding", f"{ours}/norm"),
            )
        )
        return (*one("model.shared.weight", "embeddings/token"), *sides, *_STACKS, *_LOGITS)

    def copies(self, config: EncoderDecoderModel) -> Mapping[str, str]:
        repeated = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        return dict.fromkeys(repeated, "model.shared.weight")


@dataclasses.dataclass(frozen=True)
class MarianFamily(TranslationFamily):
    """Marian (Junczys-Dowmunt et al. 2018), OPUS-MT: sinusoidal positions; tokens may differ between the sides."""

    generator: ClassVar[str] = "MTModel"
    ignored: ClassVar[tuple[str, ...]] = (r"(model\.)?(encoder|decoder)\.embed_positions\.weight",)

    def embeddings(self, fields: Fields, vocab_size: int) -> Embeddings:
        return Embeddings(
            vocab_size=vocab_size,
            positions=Sinusoidal(),
            scale_by_width=fields.flag("scale_embedding", False),
            dropout=fields.number("dropout", 0.1),
        )

    def shares_tokens(self, fields: Fields) -> bool:
        return fields.flag("share_encoder_decoder_embeddings", True)

    def write(self, config: EncoderDecoderModel) -> dict[str, Any]:
        return super().write(config) | {
            "share_encoder_decoder_embeddings": config.share_tokens,
            "decoder_vocab_size": config.target_embeddings.vocab_size,
        }

    def rules(self, config: EncoderDecoderModel) -> Rules:
        source = "model.shared.weight" if config.share_tokens else "model.encoder.embed_tokens.weight"
        tokens = (
            *one(source, "embeddings/token"),
            *one("model.decoder.embed_tokens.weight", "decoder_embeddings/token"),
        )
        return (*tokens, *_STACKS, *_LOGITS)

    def copies(self, config: EncoderDecoderModel) -> Mapping[str, str]:
        if not config.share_tokens:
            return {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        repeated = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        return dict.fromkeys(repeated, "model.shared.weight")
