"""ViT (Dosovitskiy et al. 2021), DeiT (Touvron et al. 2021), DINOv2 (Oquab et al. 2023), CLIP (Radford et al. 2021)."""

from __future__ import annotations

import functools
from typing import Any

from headjax.hub import rules, table
from headjax.hub.families.entries import BASE, INITIALIZER, classifier, heads, labelled
from headjax.hub.family import Family, ModelClass
from headjax.hub.fields import Fields
from headjax.models.encoder import EncoderConfig
from headjax.models.tasks import DistilledClassification
from headjax.models.vision import VisionConfig
from headjax.nn.norms import LayerNorm


def _read_side(fields: Fields, name: str, default: Any) -> int:
    """Read a size that may be written as equal height and width."""
    value = fields.data.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Fields({name: value[0]}, fields.file).size(name)
    return fields.size(name, default)


def _side(name: str, default: int) -> table.Field:
    return table.Field(name, default, _read_side)


_WIDTH, _HEADS = table.size("hidden_size", 768), table.size("num_attention_heads", 12)
_DROPOUT = table.number("hidden_dropout_prob", 0.0)
_HAS_POOLER = table.has_tensor("pooler.")


def _pooled(fields: Fields) -> bool:
    """Return whether the file has a pooler, which must be as wide as the model."""
    if _HAS_POOLER(fields):
        width = _WIDTH.read(fields)
        fields.only("pooler_output_size", [width], width)
    return _HAS_POOLER(fields)


def _config(hidden: table.Entry = table.size("intermediate_size", 3072), **parts: Any) -> table.Record:
    fields = {
        "width": _WIDTH,
        "image_size": _side("image_size", 224),
        "patch_size": _side("patch_size", 16),
        "channels": table.size("num_channels", 3),
        "activation": table.activation("hidden_act", "gelu"),
        "norm": table.record(LayerNorm, epsilon=table.number("layer_norm_eps", 1e-12)),
        "dropout": _DROPOUT,
        "attention_dropout": table.number("attention_probs_dropout_prob", 0.0),
        "pooler": table.Optional(table.activation("pooler_act", "tanh"), when=_pooled),
        "initializer": INITIALIZER,
    }
    layer = {"attention": heads(_WIDTH, _HEADS, projection_bias=table.flag("qkv_bias", True)), "hidden": hidden}
    layers = table.Layers(table.size("num_hidden_layers", 12), layer)
    return table.record(VisionConfig, layers, **fields | parts)


_EMBEDDINGS: rules.Rules = (
    *rules.one("embeddings.cls_token", "patches/class_token", rules.leading(2)),
    *rules.one("embeddings.distillation_token", "patches/distillation_token", rules.leading(2)),
    *rules.one("embeddings.position_embeddings", "patches/position", rules.leading()),
    *rules.one("embeddings.patch_embeddings.projection.weight", "patches/kernel", rules.LAST_FIRST),
    *rules.one("embeddings.patch_embeddings.projection.bias", "patches/bias"),
)
_NAMES = "attention.query attention.key attention.value output.dense"
_ATTENTION = rules.projections("attention.", _NAMES, "attention")
_RULES: rules.Rules = (
    *_EMBEDDINGS,
    *rules.layers(
        ("encoder.layer.{}.", "encoder/{}/"),
        _ATTENTION,
        "layernorm_before layernorm_after",
        "intermediate.dense output.dense",
    ),
    *rules.norm("layernorm", "encoder/final_norm"),
    *rules.affine("pooler.dense", "pooler"),
)
_CLASSES = (
    BASE,
    ModelClass(
        suffix="ForImageClassification", parts={"task": classifier(0.0)}, rules=rules.affine("classifier", "output")
    ),
)
_DISTILLED = ModelClass(
    suffix="ForImageClassificationWithTeacher",
    parts={"task": labelled(DistilledClassification)},
    rules=(
        *rules.affine("cls_classifier", "output/class"),
        *rules.affine("distillation_classifier", "output/distillation"),
    ),
)

VIT = Family(model_type="vit", class_prefix="ViT", prefix="vit.", config=_config(), classes=_CLASSES, rules=_RULES)
DEIT = Family(
    model_type="deit",
    class_prefix="DeiT",
    prefix="deit.",
    config=_config(distillation_token=True),
    classes=(*_CLASSES, _DISTILLED),
    rules=_RULES,
)


_GATED, _RATIO, _HIDDEN_ACT = (
    table.flag("use_swiglu_ffn", False),
    table.number("mlp_ratio", 4),
    table.activation("hidden_act", "gelu"),
)


def _units(width: int, ratio: float, gated: bool) -> int:
    """Return the units of a feed-forward; gated ones have two thirds, rounded up to a multiple of 8."""
    units = int(width * ratio)
    return (units * 2 // 3 + 7) // 8 * 8 if gated else units


def _ratio(config: VisionConfig) -> float:
    """Return the `mlp_ratio` from which the units of the first layer follow, a whole number if one does."""
    width, hidden = config.width, config.hidden[0]
    whole = (ratio for ratio in range(1, 2 * hidden // width + 2) if _units(width, ratio, config.gated) == hidden)
    return next(whole, hidden / width)


DINOV2 = Family(
    model_type="dinov2",
    class_prefix="Dinov2",
    prefix="dinov2.",
    config=_config(
        table.computed(
            lambda fields: _units(_WIDTH.read(fields), _RATIO.read(fields), _GATED.read(fields)), _RATIO.name
        ),
        patch_size=_side("patch_size", 14),
        resized=True,
        gated=_GATED,
        activation=table.Custom(
            lambda fields: "silu" if _GATED.read(fields) else _HIDDEN_ACT.read(fields),
            lambda name: _HIDDEN_ACT.write(name, "activation"),
            name=_HIDDEN_ACT.name,
        ),
        residual="scaled_pre_norm",
        norm=table.record(LayerNorm, epsilon=table.number("layer_norm_eps", 1e-6)),
        dropout=0.0,
        embedding_dropout=table.Optional(_DROPOUT, when=lambda fields: True),
        pooler=None,
    ).writing(lambda config: {_RATIO.name: _ratio(config)}),
    classes=(
        _CLASSES[0],
        ModelClass(
            suffix="ForImageClassification",
            parts={"task": classifier(0.0), "patch_mean": True},
            rules=rules.affine("classifier", "output"),
        ),
    ),
    rules=(
        *_EMBEDDINGS,
        *rules.layers(
            ("encoder.layer.{}.", "encoder/{}/"),
            _ATTENTION,
            "norm1 norm2",
            (
                *rules.unless("feed_forward/gate", rules.projection("mlp.fc1", "feed_forward/up")),
                *rules.unless("feed_forward/gate", rules.projection("mlp.fc2", "feed_forward/down")),
                *rules.given("feed_forward/gate", rules.projection("mlp.weights_in", rules.GATE_UP)),
                *rules.given("feed_forward/gate", rules.projection("mlp.weights_out", "feed_forward/down")),
                *rules.one("layer_scale1.lambda1", "attention_residual/branch"),
                *rules.one("layer_scale2.lambda1", "feed_forward_residual/branch"),
            ),
        ),
        *rules.norm("layernorm", "encoder/final_norm"),
    ),
    ignored=(r"(dinov2\.)?embeddings\.mask_token",),
    constants={"use_mask_token": False},  # it stands for hidden patches in pretraining
)


def _tower(kind: type, width: int, num_heads: int, hidden: int, **parts: Any) -> table.Record:
    """Return the table of an encoder of CLIP, a model of its own, with these sizes by default."""
    stream = table.size("hidden_size", width)
    attention = heads(stream, table.size("num_attention_heads", num_heads))
    layer = {"attention": attention, "hidden": table.size("intermediate_size", hidden)}
    return table.record(
        kind,
        table.Layers(table.size("num_hidden_layers", 12), layer),
        width=stream,
        activation=table.activation("hidden_act", "quick_gelu"),
        residual="pre_norm",
        norm=table.record(LayerNorm, epsilon=table.number("layer_norm_eps", 1e-5)),
        dropout=0.0,
        attention_dropout=table.number("attention_dropout", 0.0),
        pooler=None,
        initializer=INITIALIZER,
        **parts,
    )


_TOWER_LAYERS = rules.layers(
    ("encoder.layers.{}.", "encoder/{}/"),
    rules.projections("self_attn.", "q_proj k_proj v_proj out_proj", "attention"),
    "layer_norm1 layer_norm2",
    "mlp.fc1 mlp.fc2",
)
_FAMILY = functools.partial(Family, classes=(BASE,))
_OF_PAIR = r"logit_scale|(text|visual)_projection\.weight|((text|vision)_model\.)?embeddings\.position_ids"
"""Tensors of a pair that belong to neither encoder, and numbers of positions in old files."""

CLIP_TEXT = _FAMILY(
    model_type="clip_text_model",
    class_prefix="CLIPText",
    config=_tower(
        EncoderConfig,
        width=512,
        num_heads=8,
        hidden=2048,
        vocab_size=table.size("vocab_size", 49408),
        max_length=table.size("max_position_embeddings", 77),
        segments=0,
        embedding_norm=False,
        causal=True,
        end_token=table.integer("eos_token_id", 49407),
    ),
    prefix="text_model.",  # in a pair
    rules=(
        *rules.one("embeddings.token_embedding.weight", "embeddings/token"),
        *rules.one("embeddings.position_embedding.weight", "embeddings/position"),
        *rules.norm("final_layer_norm", "encoder/final_norm"),
        *_TOWER_LAYERS,
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
        num_heads=12,
        hidden=3072,
        image_size=_side("image_size", 224),
        patch_size=_side("patch_size", 32),
        channels=table.size("num_channels", 3),
        patch_bias=False,
        embedding_norm=True,
        pooled_norm=True,
    ),
    prefix="vision_model.",
    rules=(
        *rules.one("embeddings.class_embedding", "patches/class_token"),
        *rules.one("embeddings.position_embedding.weight", "patches/position"),
        *rules.one("embeddings.patch_embedding.weight", "patches/kernel", rules.LAST_FIRST),
        *rules.norm("pre_layrnorm", "patches/norm"),
        *rules.norm("post_layernorm", "pooled_norm"),
        *_TOWER_LAYERS,
    ),
    ignored=(_OF_PAIR, r"text_model\..*"),
    inside=("clip", "vision_config"),
)
