"""ViT (Dosovitskiy et al. 2021), DeiT (Touvron et al. 2021), DINOv2 (Oquab et al. 2023), CLIP (Radford et al. 2021)."""

from __future__ import annotations

import functools
from typing import Any

from headjax.hub.families.entries import BASE, INITIALIZER, classifier, labelled
from headjax.hub.family import Family, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import (
    LAST_FIRST,
    Rules,
    affine,
    given,
    leading,
    norm,
    one,
    projection,
    projections,
    under,
    unless,
)
from headjax.hub.table import (
    Custom,
    Entry,
    Field,
    Layers,
    Optional,
    Record,
    activation,
    computed,
    flag,
    has_tensor,
    integer,
    number,
    record,
    share,
    size,
)
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import DistilledClassification
from headjax.models.vision import VisionConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm


def _read_side(fields: Fields, name: str, default: Any) -> int:
    """Read a size that may be written as equal height and width."""
    value = fields.data.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Fields({name: value[0]}, fields.file).size(name)
    return fields.size(name, default)


def _side(name: str, default: int) -> Field:
    """Return the entry of a size of squares."""
    return Field(name, default, _read_side)


_WIDTH, _HEADS = size("hidden_size", 768), size("num_attention_heads", 12)
_DROPOUT = number("hidden_dropout_prob", 0.0)
_HAS_POOLER = has_tensor("pooler.")


def _pooled(fields: Fields) -> bool:
    """Return whether the file has a pooler, which must be as wide as the model."""
    if _HAS_POOLER(fields):
        width = _WIDTH.read(fields)
        fields.only("pooler_output_size", [width], width)
    return _HAS_POOLER(fields)


_ATTENTION = record(
    MultiHeadAttention, num_heads=_HEADS, head_dim=share(_WIDTH, _HEADS), projection_bias=flag("qkv_bias", True)
)


def _config(hidden: Entry = size("intermediate_size", 3072), **parts: Any) -> Record:
    fields = {
        "width": _WIDTH,
        "image_size": _side("image_size", 224),
        "patch_size": _side("patch_size", 16),
        "channels": size("num_channels", 3),
        "activation": activation("hidden_act", "gelu"),
        "norm": record(LayerNorm, epsilon=number("layer_norm_eps", 1e-12)),
        "dropout": _DROPOUT,
        "attention_dropout": number("attention_probs_dropout_prob", 0.0),
        "pooler": Optional(activation("pooler_act", "tanh"), when=_pooled),
        "initializer": INITIALIZER,
    }
    layers = Layers(size("num_hidden_layers", 12), {"attention": _ATTENTION, "hidden": hidden})
    return record(VisionConfig, layers, **fields | parts)


_EMBEDDINGS: Rules = (
    *one("embeddings.cls_token", "patches/class_token", leading(2)),
    *one("embeddings.distillation_token", "patches/distillation_token", leading(2)),
    *one("embeddings.position_embeddings", "patches/position", leading()),
    *one("embeddings.patch_embeddings.projection.weight", "patches/kernel", LAST_FIRST),
    *one("embeddings.patch_embeddings.projection.bias", "patches/bias"),
)
_HEADS_RULES = projections("attention.", "attention.query attention.key attention.value output.dense", "attention")
_RULES: Rules = (
    *_EMBEDDINGS,
    *under(
        "encoder.layer.{}.",
        "encoder/{}/",
        (
            *_HEADS_RULES,
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
    BASE,
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
    config=_config(),
    classes=_CLASSES,
    rules=_RULES,
)
DEIT = Family(
    model_type="deit",
    class_prefix="DeiT",
    prefix="deit.",
    config=_config(distillation_token=True),
    classes=(*_CLASSES, _DISTILLED),
    rules=_RULES,
)


_GATED, _RATIO, _HIDDEN_ACT = flag("use_swiglu_ffn", False), number("mlp_ratio", 4), activation("hidden_act", "gelu")


def _units(width: int, ratio: float, gated: bool) -> int:
    """Return the units of a feed-forward; gated ones have two thirds, rounded up to a multiple of 8."""
    units = int(width * ratio)
    return (units * 2 // 3 + 7) // 8 * 8 if gated else units


def _ratio(config: VisionConfig) -> float:
    """Return the `mlp_ratio` that gives the units of the first layer: a whole one if there is any."""
    width, hidden = config.width, config.hidden[0]
    whole = (ratio for ratio in range(1, 2 * hidden // width + 2) if _units(width, ratio, config.gated) == hidden)
    return next(whole, hidden / width)


DINOV2 = Family(
    model_type="dinov2",
    class_prefix="Dinov2",
    prefix="dinov2.",
    config=_config(
        computed(lambda fields: _units(_WIDTH.read(fields), _RATIO.read(fields), _GATED.read(fields)), _RATIO.name),
        patch_size=_side("patch_size", 14),
        resized=True,
        gated=_GATED,
        activation=Custom(
            lambda fields: "silu" if _GATED.read(fields) else _HIDDEN_ACT.read(fields),
            lambda name: _HIDDEN_ACT.write(name, "activation"),
            name=_HIDDEN_ACT.name,
        ),
        residual="scaled_pre_norm",
        norm=record(LayerNorm, epsilon=number("layer_norm_eps", 1e-6)),
        dropout=0.0,
        embedding_dropout=Optional(_DROPOUT, when=lambda fields: True),
        pooler=None,
    ).writing(lambda config: {_RATIO.name: _ratio(config)}),
    classes=(
        _CLASSES[0],
        ModelClass(
            suffix="ForImageClassification",
            parts={"task": classifier(0.0), "patch_mean": True},
            rules=affine("classifier", "output"),
        ),
    ),
    rules=(
        *_EMBEDDINGS,
        *under(
            "encoder.layer.{}.",
            "encoder/{}/",
            (
                *norm("norm1", "attention_residual/norm"),
                *_HEADS_RULES,
                *one("layer_scale1.lambda1", "attention_residual/branch"),
                *norm("norm2", "feed_forward_residual/norm"),
                *unless("feed_forward/gate", projection("mlp.fc1", "feed_forward/up")),
                *unless("feed_forward/gate", projection("mlp.fc2", "feed_forward/down")),
                *given("feed_forward/gate", projection("mlp.weights_in", ("feed_forward/gate", "feed_forward/up"))),
                *given("feed_forward/gate", projection("mlp.weights_out", "feed_forward/down")),
                *one("layer_scale2.lambda1", "feed_forward_residual/branch"),
            ),
        ),
        *norm("layernorm", "encoder/final_norm"),
    ),
    ignored=(r"(dinov2\.)?embeddings\.mask_token",),
    constants={"use_mask_token": False},  # it stands for hidden patches in pretraining
)


def _tower(kind: type, width: int, heads: int, hidden: int, **parts: Any) -> Record:
    """Return the table of an encoder of CLIP, a model of its own, with these sizes by default."""
    stream, count = size("hidden_size", width), size("num_attention_heads", heads)
    attention = record(MultiHeadAttention, num_heads=count, head_dim=share(stream, count))
    return record(
        kind,
        Layers(size("num_hidden_layers", 12), {"attention": attention, "hidden": size("intermediate_size", hidden)}),
        width=stream,
        activation=activation("hidden_act", "quick_gelu"),
        residual="pre_norm",
        norm=record(LayerNorm, epsilon=number("layer_norm_eps", 1e-5)),
        dropout=0.0,
        attention_dropout=number("attention_dropout", 0.0),
        pooler=None,
        initializer=INITIALIZER,
        **parts,
    )


def _tower_rules(ends: Rules) -> Rules:
    """Return the names of the tensors; `ends` are those before and after the layers."""
    layer = (
        *norm("layer_norm1", "attention_residual/norm"),
        *projections("self_attn.", "q_proj k_proj v_proj out_proj", "attention"),
        *norm("layer_norm2", "feed_forward_residual/norm"),
        *projection("mlp.fc1", "feed_forward/up"),
        *projection("mlp.fc2", "feed_forward/down"),
    )
    return (*ends, *under("encoder.layers.{}.", "encoder/{}/", layer))


_FAMILY = functools.partial(Family, classes=(BASE,))
_OF_PAIR = r"logit_scale|(text|visual)_projection\.weight|((text|vision)_model\.)?embeddings\.position_ids"
"""Tensors of a pair that belong to neither encoder, and numbers of positions in old files."""

CLIP_TEXT = _FAMILY(
    model_type="clip_text_model",
    class_prefix="CLIPText",
    config=_tower(
        EncoderConfig,
        width=512,
        heads=8,
        hidden=2048,
        vocab_size=size("vocab_size", 49408),
        max_length=size("max_position_embeddings", 77),
        segments=0,
        embedding_norm=False,
        causal=True,
        end_token=integer("eos_token_id", 49407),
    ),
    prefix="text_model.",  # in a pair
    rules=_tower_rules(
        (
            *one("embeddings.token_embedding.weight", "embeddings/token"),
            *one("embeddings.position_embedding.weight", "embeddings/position"),
            *norm("final_layer_norm", "encoder/final_norm"),
        )
    ),
    ignored=(_OF_PAIR, r"vision_model\..*"),
    inside=("clip", "text_config"),
)
CLIP_VISION = _FAMILY(
    model_type="clip_vision_model",
    class_prefix="CLIPVision",
    config=_tower(
        VisionConfig,
        width=768,
        heads=12,
        hidden=3072,
        image_size=_side("image_size", 224),
        patch_size=_side("patch_size", 32),
        channels=size("num_channels", 3),
        patch_bias=False,
        embedding_norm=True,
        pooled_norm=True,
    ),
    prefix="vision_model.",
    rules=_tower_rules(
        (
            *one("embeddings.class_embedding", "patches/class_token"),
            *one("embeddings.position_embedding.weight", "patches/position"),
            *one("embeddings.patch_embedding.weight", "patches/kernel", LAST_FIRST),
            *norm("pre_layrnorm", "patches/norm"),
            *norm("post_layernorm", "pooled_norm"),
        )
    ),
    ignored=(_OF_PAIR, r"text_model\..*"),
    inside=("clip", "vision_config"),
)
