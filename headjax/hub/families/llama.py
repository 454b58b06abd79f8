"""Llama, Mistral, Qwen2 and Qwen3: grouped heads, rotary positions, gated feed-forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from headjax.attention.base import Attention
from headjax.attention.grouped import Grouped
from headjax.attention.multi_head import MultiHead
from headjax.attention.rotary import Rotary
from headjax.core.tensors import Normal
from headjax.hub.families.rope import read_rotary, write_rotary
from headjax.hub.family import Family, HeadShape, InexpressibleError, expect
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.forms import Transposed
from headjax.hub.rules import Rules, one, projection, under
from headjax.models.base import ModelConfig
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, NoPositions
from headjax.models.feed_forward import GatedDense
from headjax.models.layer import Layer
from headjax.models.norms import RMSNorm
from headjax.models.outputs import Tied, Untied
from headjax.models.residual import PreNorm
from headjax.models.stack import Stack

_LAYER: Rules = (
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
)
_MODEL: Rules = (
    *one("embed_tokens.weight", "embeddings/token"),
    *under("layers.{}.", "decoder/{}/", _LAYER),
    *one("norm.weight", "decoder/final_norm/scale"),
)
_OUTPUT: Rules = one("lm_head.weight", "output/kernel", Transposed())


class Biases(NamedTuple):
    """Which maps have biases."""

    projections: bool = False
    output: bool = False
    feed_forward: bool = False


@dataclasses.dataclass(frozen=True)
class LlamaFamily(Family):
    """Llama (Touvron et al. 2023). Other decoders differ in their biases, windows and normalised heads."""

    prefix: ClassVar[str] = "model."
    ignored: ClassVar[tuple[str, ...]] = (r"(model\.)?layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq",)
    config_type: ClassVar[type[ModelConfig]] = DecoderModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("decoder",),)
    normalised_heads: ClassVar[bool] = False

    def biases(self, fields: Fields) -> Biases:
        """Which maps have biases."""
        attention = fields.flag("attention_bias", False)
        return Biases(attention, attention, fields.flag("mlp_bias", False))

    def write_biases(self, biases: Biases) -> dict[str, Any]:
        """The fields that say which maps have biases."""
        return {"attention_bias": biases.projections, "mlp_bias": biases.feed_forward}

    def longest(self, fields: Fields) -> int | None:
        """Tokens up to which attention sees everything before it; None is any number."""
        return None

    def write_longest(self, longest: int | None) -> dict[str, Any]:
        """The fields of `longest`."""
        return {}

    def read(self, fields: Fields, names: Collection[str]) -> DecoderModel:
        fields.only("architectures", [[name] for name in self._classes()], [self._classes()[0]])
        width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        size, biases = fields.size("head_dim", width // heads), self.biases(fields)
        norm = RMSNorm(fields.number("rms_norm_eps", 1e-6))
        layer = Layer(
            attention=Grouped(
                num_heads=heads,
                kv_heads=fields.size("num_key_value_heads", heads),
                head_dim=size,
                projection_bias=biases.projections,
                output_bias=biases.output,
                rotary=read_rotary(fields),
                query_norm=norm if self.normalised_heads else None,
                key_norm=norm if self.normalised_heads else None,
            ),
            feed_forward=GatedDense(
                fields.size("intermediate_size"), fields.activation("hidden_act", "silu"), biases.feed_forward
            ),
            residual=PreNorm(norm),
            attention_dropout=fields.number("attention_dropout", 0.0),
        )
        return DecoderModel(
            width=width,
            embeddings=Embeddings(
                vocab_size=fields.size("vocab_size"), positions=NoPositions(max_length=self.longest(fields))
            ),
            decoder=Stack(layers=(layer,) * fields.size("num_hidden_layers"), final_norm=norm),
            output=Tied() if fields.flag("tie_word_embeddings", False) else Untied(),
            initializer=Normal(fields.number("initializer_range", 0.02)),
        )

    def write(self, config: DecoderModel) -> dict[str, Any]:
        layer = config.decoder.layers[0]
        attention = expect(layer.attention, Grouped, "decoder.layers[0].attention", self)
        feed_forward = expect(layer.feed_forward, GatedDense, "decoder.layers[0].feed_forward", self)
        residual = expect(layer.residual, PreNorm, "decoder.layers[0].residual", self)
        positions = expect(config.embeddings.positions, NoPositions, "embeddings.positions", self)
        if attention.rotary is None:
            raise InexpressibleError(f"decoder.layers[0].attention.rotary is None, {self.model_type} has rotary heads")
        return {
            "model_type": self.model_type,
            "architectures": [self._classes()[0]],
            "vocab_size": config.embeddings.vocab_size,
            "hidden_size": config.width,
            "intermediate_size": feed_forward.hidden,
            "num_hidden_layers": len(config.decoder.layers),
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "hidden_act": ACTIVATION_NAMES[feed_forward.activation],
            "rms_norm_eps": residual.norm.epsilon,
            "attention_dropout": layer.attention_dropout,
            "tie_word_embeddings": isinstance(config.output, Tied),
            **write_rotary(attention.rotary),
            **self.write_biases(Biases(attention.projection_bias, attention.output_bias, feed_forward.bias)),
            **self.write_longest(positions.max_length),
        }

    def rules(self, config: DecoderModel) -> Rules:
        return (*under(self.prefix, "", _MODEL), *_OUTPUT)

    def classes(self, config: DecoderModel) -> tuple[str, ...]:
        return self._classes() if isinstance(config.output, Tied) else self._classes()[:1]

    def _classes(self) -> tuple[str, ...]:
        return f"{self.class_prefix}ForCausalLM", f"{self.class_prefix}Model"

    def copies(self, config: DecoderModel) -> Mapping[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if isinstance(config.output, Tied) else {}

    def standard(self, shape: HeadShape, like: Attention) -> Attention:
        rotary: Rotary | None = like.rotary if isinstance(like, Grouped | MultiHead) else None
        norms = like if isinstance(like, Grouped) else None
        biased = isinstance(like, Grouped | MultiHead)
        return Grouped(
            num_heads=shape.num_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            projection_bias=biased and like.projection_bias,  # type: ignore[attr-defined]
            output_bias=biased and like.output_bias,  # type: ignore[attr-defined]
            rotary=rotary,
            query_norm=None if norms is None else norms.query_norm,
            key_norm=None if norms is None else norms.key_norm,
        )

    def head_shape(self, num_heads: int, head_dim: int, width: int) -> HeadShape | None:
        return HeadShape(num_heads, head_dim, num_heads)


@dataclasses.dataclass(frozen=True)
class MistralFamily(LlamaFamily):
    """Mistral (Jiang et al. 2023). Its sliding window limits the length here: up to it, attention is complete."""

    def biases(self, fields: Fields) -> Biases:
        return Biases()

    def write_biases(self, biases: Biases) -> dict[str, Any]:
        return {}

    def longest(self, fields: Fields) -> int | None:
        window = fields.integer("sliding_window", 0)
        return window or None

    def write_longest(self, longest: int | None) -> dict[str, Any]:
        return {"sliding_window": longest}


@dataclasses.dataclass(frozen=True)
class Qwen2Family(LlamaFamily):
    """Qwen2 (2024): biases on queries, keys and values alone. A window limits the length, as with Mistral."""

    def biases(self, fields: Fields) -> Biases:
        return Biases(projections=True)

    def write_biases(self, biases: Biases) -> dict[str, Any]:
        return {}

    def longest(self, fields: Fields) -> int | None:
        windowed = fields.flag("use_sliding_window", False)
        return fields.size("sliding_window", 4096) if windowed else None

    def write_longest(self, longest: int | None) -> dict[str, Any]:
        return {"use_sliding_window": longest is not None, "sliding_window": longest}


@dataclasses.dataclass(frozen=True)
class Qwen3Family(Qwen2Family):
    """Qwen3 (2025): no biases unless asked for, queries and keys normalised head by head."""

    normalised_heads: ClassVar[bool] = True

    def biases(self, fields: Fields) -> Biases:
        attention = fields.flag("attention_bias", False)
        return Biases(attention, attention)

    def write_biases(self, biases: Biases) -> dict[str, Any]:
        return {"attention_bias": biases.projections}
