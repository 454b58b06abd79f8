"""ViT and DeiT."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, ClassVar

from headjax.attention.multi_head import MultiHead
from headjax.core.tensors import Normal
from headjax.hub.families.labels import classifier, label_fields, label_names, num_labels
from headjax.hub.family import Family, expect, head_dim
from headjax.hub.fields import ACTIVATION_NAMES, Fields
from headjax.hub.forms import LastFirst, Leading
from headjax.hub.rules import Rules, affine, norm, one, projection, under
from headjax.models.base import ModelConfig
from headjax.models.feed_forward import Dense
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.patches import Patches
from headjax.models.pooler import Pooler
from headjax.models.residual import PreNorm
from headjax.models.stack import Stack
from headjax.models.tasks import DistilledClassification, NoTask, TaskOutput
from headjax.models.vision import VisionModel

_LAYER: Rules = (
    *projection("attention.attention.query", "attention/query"),
    *projection("attention.attention.key", "attention/key"),
    *projection("attention.attention.value", "attention/value"),
    *projection("attention.output.dense", "attention/output"),
    *norm("layernorm_before", "attention_residual/norm"),
    *projection("intermediate.dense", "feed_forward/up"),
    *projection("output.dense", "feed_forward/down"),
    *norm("layernorm_after", "feed_forward_residual/norm"),
)
_BASE: Rules = (
    *one("embeddings.cls_token", "patches/class_token", Leading(2)),
    *one("embeddings.distillation_token", "patches/distillation_token", Leading(2)),
    *one("embeddings.position_embeddings", "patches/position", Leading()),
    *one("embeddings.patch_embeddings.projection.weight", "patches/kernel", LastFirst()),
    *one("embeddings.patch_embeddings.projection.bias", "patches/bias"),
    *under("encoder.layer.{}.", "encoder/{}/", _LAYER),
    *norm("layernorm", "encoder/final_norm"),
    *affine("pooler.dense", "pooler"),
)
_OUTPUTS: Rules = (
    *affine("classifier", "output"),
    *affine("cls_classifier", "output/class"),
    *affine("distillation_classifier", "output/distillation"),
)


@dataclasses.dataclass(frozen=True)
class VitFamily(Family):
    """ViT (Dosovitskiy et al. 2021)."""

    config_type: ClassVar[type[ModelConfig]] = VisionModel
    head_groups: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",),)
    prunable: ClassVar[str | None] = "encoder"
    prefix: ClassVar[str] = "vit."
    distilled: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ("Model", "ForImageClassification")

    def read(self, fields: Fields, names: Collection[str]) -> VisionModel:
        width, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
        layer_norm = LayerNorm(fields.number("layer_norm_eps", 1e-12))
        dropout = fields.number("hidden_dropout_prob", 0.0)
        layer = Layer(
            attention=MultiHead(
                num_heads=heads,
                head_dim=head_dim(fields, width, heads, "num_attention_heads"),
                projection_bias=fields.flag("qkv_bias", True),
            ),
            feed_forward=Dense(fields.size("intermediate_size", 3072), fields.activation("hidden_act", "gelu")),
            residual=PreNorm(layer_norm),
            dropout=dropout,
            attention_dropout=fields.number("attention_probs_dropout_prob", 0.0),
        )
        return VisionModel(
            width=width,
            patches=Patches(
                image_size=_side(fields, "image_size", 224),
                patch_size=_side(fields, "patch_size", 16),
                channels=fields.size("num_channels", 3),
                distillation_token=self.distilled,
                dropout=dropout,
            ),
            encoder=Stack(layers=(layer,) * fields.size("num_hidden_layers", 12), final_norm=layer_norm),
            pooler=self._pooler(fields, names, width),
            output=self._output(fields),
            initializer=Normal(fields.number("initializer_range", 0.02)),
        )

    def _pooler(self, fields: Fields, names: Collection[str], width: int) -> Pooler | None:
        if not any("pooler." in name for name in names):
            return None
        fields.only("pooler_output_size", [width], width)
        return Pooler(activation=fields.activation("pooler_act", "tanh"))

    def _output(self, fields: Fields) -> TaskOutput:
        classes = [self.class_prefix + suffix for suffix in self.suffixes]
        name = (fields.data.get("architectures") or classes)[0]
        if name not in classes:
            raise fields.error("architectures", f"{name} is not supported; supported: {', '.join(classes)}")
        if name.endswith("Model"):
            return NoTask()
        if name.endswith("WithTeacher"):
            return DistilledClassification(classes=num_labels(fields), names=label_names(fields))
        return classifier(fields, dropout=0.0)

    def write(self, config: VisionModel) -> dict[str, Any]:
        layer, patches = config.encoder.layers[0], config.patches
        attention = expect(layer.attention, MultiHead, "encoder.layers[0].attention", self)
        feed_forward = expect(layer.feed_forward, Dense, "encoder.layers[0].feed_forward", self)
        residual = expect(layer.residual, PreNorm, "encoder.layers[0].residual", self)
        fields: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": list(self.classes(config)),
            "hidden_size": config.width,
            "num_hidden_layers": len(config.encoder.layers),
            "num_attention_heads": attention.num_heads,
            "qkv_bias": attention.projection_bias,
            "intermediate_size": feed_forward.hidden,
            "hidden_act": ACTIVATION_NAMES[feed_forward.activation],
            "layer_norm_eps": residual.norm.epsilon,
            "hidden_dropout_prob": layer.dropout,
            "attention_probs_dropout_prob": layer.attention_dropout,
            "image_size": patches.image_size,
            "patch_size": patches.patch_size,
            "num_channels": patches.channels,
        }
        if config.pooler is not None:
            fields |= {
                "pooler_output_size": config.width,
                "pooler_act": ACTIVATION_NAMES[config.pooler.activation],
            }
        return fields | label_fields(config.output)

    def rules(self, config: VisionModel) -> Rules:
        return (*under(self.prefix, "", _BASE), *_OUTPUTS)

    def classes(self, config: VisionModel) -> tuple[str, ...]:
        if isinstance(config.output, NoTask):
            return (f"{self.class_prefix}Model",)
        taught = isinstance(config.output, DistilledClassification)
        return (f"{self.class_prefix}ForImageClassification{'WithTeacher' if taught else ''}",)


@dataclasses.dataclass(frozen=True)
class DeitFamily(VitFamily):
    """DeiT (Touvron et al. 2021): ViT with a distillation token."""

    prefix: ClassVar[str] = "deit."
    distilled: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = (
        "Model",
        "ForImageClassification",
        "ForImageClassificationWithTeacher",
    )


def _side(fields: Fields, name: str, default: int) -> int:
    """A size that may be written as equal height and width."""
    value = fields.data.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Fields({name: value[0]}, fields.file).size(name)
    return fields.size(name, default)
