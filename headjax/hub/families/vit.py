"""ViT (Dosovitskiy et al. 2021), and DeiT (Touvron et al. 2021), which has a distillation token."""

from __future__ import annotations

from typing import Any

from headjax.core.tensors import Normal
from headjax.hub.families.entries import classifier, labelled
from headjax.hub.family import Family, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import LAST_FIRST, Rules, affine, leading, norm, one, projection, projections, under
from headjax.hub.table import (
    Field,
    Layers,
    Optional,
    Record,
    TrainingOnly,
    activation,
    flag,
    has_tensor,
    number,
    record,
    share,
    size,
)
from headjax.models.tasks import DistilledClassification, NoTask
from headjax.models.vision import VisionConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm


def _read_side(fields: Fields, name: str, default: Any) -> int:
    """Read a size that may be written as equal height and width."""
    value = fields.data.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Fields({name: value[0]}, fields.file).size(name)
    return fields.size(name, default)


_WIDTH, _HEADS = size("hidden_size", 768), size("num_attention_heads", 12)
_NORM = record(LayerNorm, epsilon=number("layer_norm_eps", 1e-12))
_DROPOUT = number("hidden_dropout_prob", 0.0)
_HAS_POOLER = has_tensor("pooler.")


def _pooled(fields: Fields) -> bool:
    """Return whether the file has a pooler, which must be as wide as the model."""
    if _HAS_POOLER(fields):
        width = _WIDTH.read(fields)
        fields.only("pooler_output_size", [width], width)
    return _HAS_POOLER(fields)


def _config(distilled: bool) -> Record:
    attention = record(
        MultiHeadAttention, num_heads=_HEADS, head_dim=share(_WIDTH, _HEADS), projection_bias=flag("qkv_bias", True)
    )
    layer = {"attention": attention, "hidden": size("intermediate_size", 3072)}
    return record(
        VisionConfig,
        Layers(size("num_hidden_layers", 12), layer),
        width=_WIDTH,
        image_size=Field("image_size", 224, _read_side),
        patch_size=Field("patch_size", 16, _read_side),
        channels=size("num_channels", 3),
        distillation_token=distilled,
        activation=activation("hidden_act", "gelu"),
        norm=_NORM,
        dropout=_DROPOUT,
        attention_dropout=number("attention_probs_dropout_prob", 0.0),
        pooler=Optional(activation("pooler_act", "tanh"), when=_pooled),
        initializer=TrainingOnly(record(Normal, stddev=number("initializer_range", 0.02))),
    )


_RULES: Rules = (
    *one("embeddings.cls_token", "patches/class_token", leading(2)),
    *one("embeddings.distillation_token", "patches/distillation_token", leading(2)),
    *one("embeddings.position_embeddings", "patches/position", leading()),
    *one("embeddings.patch_embeddings.projection.weight", "patches/kernel", LAST_FIRST),
    *one("embeddings.patch_embeddings.projection.bias", "patches/bias"),
    *under(
        "encoder.layer.{}.",
        "encoder/{}/",
        (
            *projections("attention.", "attention.query attention.key attention.value output.dense", "attention"),
            *norm("layernorm_before", "attention_residual/norm"),
            *projection("intermediate.dense", "feed_forward/up"),
            *projection("output.dense", "feed_forward/down"),
            *norm("layernorm_after", "feed_forward_residual/norm"),
        ),
    ),
    *norm("layernorm", "encoder/final_norm"),
    *affine("pooler.dense", "pooler"),
)
_CLASSES = (
    ModelClass(suffix="Model", parts={"task": record(NoTask)}),
    ModelClass(suffix="ForImageClassification", parts={"task": classifier(0.0)}, rules=affine("classifier", "output")),
)
_DISTILLED = ModelClass(
    suffix="ForImageClassificationWithTeacher",
    parts={"task": labelled(DistilledClassification)},
    rules=(*affine("cls_classifier", "output/class"), *affine("distillation_classifier", "output/distillation")),
)

VIT = Family(
    model_type="vit",
    class_prefix="ViT",
    prefix="vit.",
    config=_config(distilled=False),
    classes=_CLASSES,
    rules=_RULES,
    head_groups=(("encoder",),),
)
DEIT = Family(
    model_type="deit",
    class_prefix="DeiT",
    prefix="deit.",
    config=_config(distilled=True),
    classes=(*_CLASSES, _DISTILLED),
    rules=_RULES,
    head_groups=(("encoder",),),
)
