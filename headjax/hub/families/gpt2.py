"""GPT-2."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from headjax.attention.multi_head import MultiHead
from headjax.core.tensors import Normal
from headjax.hub.family import Family, expect, head_dim
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.forms import Flat, Fused, Matrix, Transposed
from headjax.hub.rules import Rule, Rules, norm, one, projection, under
from headjax.models.base import ModelConfig
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, Learned
from headjax.models.feed_forward import Dense
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.outputs import Tied, Untied
from headjax.models.residual import PreNorm
from headjax.models.stack import Stack

_FUSED = tuple(f"attention/{name}" for name in ("query", "key", "value"))
_LAYER: Rules = (
    Rule("attn.c_attn.weight", _FUSED, Fused(Matrix())),
    Rule("attn.c_attn.bias", tuple(f"{name}_bias" for name in _FUSED), Fused(Flat())),
    *projection("attn.c_proj", "attention/output", Matrix()),
    *norm("ln_1", "attention_residual/norm"),
    *projection("mlp.c_fc", "feed_forward/up", Matrix()),
    *projection("mlp.c_proj", "feed_forward/down", Matrix()),
    *norm("ln_2", "feed_forward_residual/norm"),
)
_MODEL: Rules = (
    *one("wte.weight", "embeddings/token"),
    *one("wpe.weight", "embeddings/position"),
    *under("h.{}.", "decoder/{}/", _LAYER),
    *norm("ln_f", "decoder/final_norm"),
)


@dataclasses.dataclass(frozen=True)
class Gpt2Family(Family):
    """GPT-2 (Radford et al. 2019): weights `[inputs, outputs]`, query, key and value in one."""

    prefix: ClassVar[str] = "transformer."
    ignored: ClassVar[tuple[str, ...]] = (r"(transformer\.)?h\.[0-9]+\.attn\.(bias|masked_bias)",)
    config_type: ClassVar[type[ModelConfig]] = DecoderModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("decoder",),)
    prunable: ClassVar[str | None] = "decoder"

    def read(self, fields: Fields, names: Collection[str]) -> DecoderModel:
        fields.only("architectures", [[name] for name in self._classes()], [self._classes()[0]])
        fields.only("scale_attn_weights", [True], True)
        fields.only("scale_attn_by_inverse_layer_idx", [False], False)
        fields.only("add_cross_attention", [False], False)
        width, heads = fields.size("n_embd", 768), fields.size("n_head", 12)
        layer_norm, dropout = LayerNorm(fields.number("layer_norm_epsilon", 1e-5)), fields.number("resid_pdrop", 0.1)
        layer = Layer(
            attention=MultiHead(num_heads=heads, head_dim=head_dim(fields, width, heads, "n_head")),
            feed_forward=Dense(fields.size("n_inner", 4 * width), fields.activation("activation_function", "gelu_new")),
            residual=PreNorm(layer_norm),
            dropout=dropout,
            attention_dropout=fields.number("attn_pdrop", 0.1),
        )
        return DecoderModel(
            width=width,
            embeddings=Embeddings(
                vocab_size=fields.size("vocab_size"),
                positions=Learned(fields.size("n_positions", 1024)),
                dropout=fields.number("embd_pdrop", 0.1),
            ),
            decoder=Stack(layers=(layer,) * fields.size("n_layer", 12), final_norm=layer_norm),
            output=Tied() if fields.flag("tie_word_embeddings", True) else Untied(),
            initializer=Normal(fields.number("initializer_range", 0.02)),
        )

    def write(self, config: DecoderModel) -> dict[str, Any]:
        layer = config.decoder.layers[0]
        attention = expect(layer.attention, MultiHead, "decoder.layers[0].attention", self)
        feed_forward = expect(layer.feed_forward, Dense, "decoder.layers[0].feed_forward", self)
        positions = expect(config.embeddings.positions, Learned, "embeddings.positions", self)
        layer_norm = expect(layer.residual.norm, LayerNorm, "decoder.layers[0].residual.norm", self)
        return {
            "model_type": self.model_type,
            "architectures": [self._classes()[0]],
            "vocab_size": config.embeddings.vocab_size,
            "n_positions": positions.max_length,
            "n_embd": config.width,
            "n_layer": len(config.decoder.layers),
            "n_head": attention.num_heads,
            "n_inner": feed_forward.hidden,
            "activation_function": ACTIVATION_NAMES[feed_forward.activation],
            "layer_norm_epsilon": layer_norm.epsilon,
            "resid_pdrop": layer.dropout,
            "attn_pdrop": layer.attention_dropout,
            "embd_pdrop": config.embeddings.dropout,
            "tie_word_embeddings": isinstance(config.output, Tied),
        }

    def rules(self, config: DecoderModel) -> Rules:
        return (*under(self.prefix, "", _MODEL), *_UNTIED)

    def classes(self, config: DecoderModel) -> tuple[str, ...]:
        return self._classes() if isinstance(config.output, Tied) else self._classes()[:1]

    def _classes(self) -> tuple[str, ...]:
        return f"{self.class_prefix}LMHeadModel", f"{self.class_prefix}Model"

    def copies(self, config: DecoderModel) -> Mapping[str, str]:
        return {"lm_head.weight": "transformer.wte.weight"} if isinstance(config.output, Tied) else {}


_UNTIED: Rules = one("lm_head.weight", "output/kernel", Transposed())
