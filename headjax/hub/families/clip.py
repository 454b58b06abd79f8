"""CLIP (Radford et al. 2021): its encoder of images and its encoder of texts, each a model of its own."""

from __future__ import annotations

import functools
from typing import Any

from headjax.hub.families.entries import BASE, INITIALIZER
from headjax.hub.families.vit import side
from headjax.hub.family import Family
from headjax.hub.rules import LAST_FIRST, Rules, norm, one, projection, projections, under
from headjax.hub.table import Layers, Record, activation, integer, number, record, share, size
from headjax.models.encoder import EncoderConfig
from headjax.models.vision import VisionConfig
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm


def _config(kind: type, width: int, heads: int, hidden: int, **parts: Any) -> Record:
    """Return the table of an encoder with these sizes by default."""
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


def _rules(own: Rules) -> Rules:
    """Return the names of the tensors; `own` are those before and after the layers."""
    layer = (
        *norm("layer_norm1", "attention_residual/norm"),
        *projections("self_attn.", "q_proj k_proj v_proj out_proj", "attention"),
        *norm("layer_norm2", "feed_forward_residual/norm"),
        *projection("mlp.fc1", "feed_forward/up"),
        *projection("mlp.fc2", "feed_forward/down"),
    )
    return (*own, *under("encoder.layers.{}.", "encoder/{}/", layer))


_FAMILY = functools.partial(Family, classes=(BASE,))
_SHARED = r"logit_scale|(text|visual)_projection\.weight|((text|vision)_model\.)?embeddings\.position_ids"
"""Tensors of a pair that belong to neither encoder, and numbers of positions in old files."""

CLIP_TEXT = _FAMILY(
    model_type="clip_text_model",
    class_prefix="CLIPText",
    config=_config(
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
    rules=_rules(
        (
            *one("embeddings.token_embedding.weight", "embeddings/token"),
            *one("embeddings.position_embedding.weight", "embeddings/position"),
            *norm("final_layer_norm", "encoder/final_norm"),
        )
    ),
    ignored=(_SHARED, r"vision_model\..*"),
    inside=("clip", "text_config"),
)
CLIP_VISION = _FAMILY(
    model_type="clip_vision_model",
    class_prefix="CLIPVision",
    config=_config(
        VisionConfig,
        width=768,
        heads=12,
        hidden=3072,
        image_size=side("image_size", 224),
        patch_size=side("patch_size", 32),
        channels=size("num_channels", 3),
        patch_bias=False,
        embedding_norm=True,
        pooled_norm=True,
    ),
    prefix="vision_model.",
    rules=_rules(
        (
            *one("embeddings.class_embedding", "patches/class_token"),
            *one("embeddings.position_embedding.weight", "patches/position"),
            *one("embeddings.patch_embedding.weight", "patches/kernel", LAST_FIRST),
            *norm("pre_layrnorm", "patches/norm"),
            *norm("post_layernorm", "pooled_norm"),
        )
    ),
    ignored=(_SHARED, r"text_model\..*"),
    inside=("clip", "vision_config"),
)
