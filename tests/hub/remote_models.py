"""Models of many formulations, their exports with PyTorch code, and how `transformers` reads them."""

import importlib.util

import numpy as np
import pytest

from headjax.models import EncoderConfig, VisionConfig
from headjax.models.tasks import Classification, NoTask
from headjax.nn import (
    CompressedAttention,
    GroupedAttention,
    Kind,
    LatentAttention,
    MultiHeadAttention,
    NoHeadsAttention,
    RotaryHalves,
    RotaryInterleaved,
)
from headjax.nn.norms import OffsetRMSNorm, RMSNorm
from headjax.nn.rotary import LinearScaling, Llama3Scaling, YarnScaling
from tests import tiny

parity = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

TURNS = RotaryHalves(base=100.0)
NORM, OFFSET = RMSNorm(), OffsetRMSNorm()
PAIR = Kind(MultiHeadAttention, num_heads=2, head_dim=4)
SHARED = tiny.collaborative(3, shared_dim=6)
LLAMA = RotaryHalves(scaling=Llama3Scaling(original_length=8))
YARN = RotaryHalves(scaling=YarnScaling(4.0, original_length=8))
ATTENTION = {
    "ragged": (Kind(MultiHeadAttention, num_heads=3, head_dim=4, head_ids=(0, 1, 3)), PAIR),
    "a layer without heads": (
        Kind(NoHeadsAttention),
        Kind(MultiHeadAttention, num_heads=3, head_dim=2, value_dim=5, scale=0.3),
    ),
    "grouped": (
        Kind(GroupedAttention, num_heads=3, kv_heads=2, kv_index=(1, 0, 1), head_dim=4, projection_bias=True),
        Kind(GroupedAttention, num_heads=4, kv_heads=2, head_dim=4, output_bias=True, query_norm=OFFSET, key_norm=NORM),
    ),
    "collaborative": (SHARED, SHARED.replace(content_bias=False, projection_bias=False)),
    "latent": (
        Kind(LatentAttention, num_heads=3, rank=5, head_dim=4, value_dim=3, projection_bias=True, latent_norm=NORM),
        Kind(
            LatentAttention, num_heads=2, rank=4, head_dim=4, query_rank=6, rotary_dim=2, rotary=TURNS, query_norm=NORM
        ),
    ),
    "around others": (
        Kind(
            CompressedAttention, inner=Kind(GroupedAttention, num_heads=4, kv_heads=2, head_dim=4, rotary=TURNS), rank=6
        ),
        Kind(CompressedAttention, inner=SHARED, rank=5),
    ),
    "turning": (
        Kind(MultiHeadAttention, num_heads=2, head_dim=4, rotary=RotaryInterleaved(dim=2, scaling=LinearScaling(2.0))),
        Kind(MultiHeadAttention, num_heads=2, head_dim=4, rotary=RotaryHalves(dim=8), frequencies=((0, 2), (1, 3))),
    ),
    "scaled": (
        Kind(GroupedAttention, num_heads=3, kv_heads=1, head_dim=8, rotary=LLAMA),
        Kind(MultiHeadAttention, num_heads=1, head_dim=8, rotary=YARN),
    ),
}
DECODERS = {
    "GPT-2": {"activation": "gelu_tanh"},
    "GPT-NeoX": {"positions": "none", "residual": "parallel_norm"},
    "Llama": {"positions": "none", "gated": True, "feed_forward_bias": False, "norm": NORM, "tied": False},
    "Gemma": {
        "positions": "none",
        "gated": True,
        "norm": OFFSET,
        "residual": "sandwich_norm",
        "scale_embeddings": True,
        "softcap": 3.0,
        "attention_softcap": 0.5,
        "window": (3, None),
    },
}


def encoder(attention, task=NoTask(), **fields):
    sizes = {"width": tiny.WIDTH, "vocab_size": tiny.VOCABULARY, "max_length": tiny.MAX_LENGTH, "hidden": (24, 5)}
    sizes |= {"num_layers": 2, "attention": attention, "task": task, "dropout": 0.0, "attention_dropout": 0.0}
    return tiny.model(EncoderConfig(**sizes | fields))


def decoder(attention, **fields):
    layers = [{"attention": one, "hidden": hidden} for one, hidden in zip(attention, (24, 5), strict=True)]
    return tiny.model(tiny.decoder_config(*layers, **fields))


def vision(attention, task=Classification(classes=3), **fields):
    sizes = {"width": tiny.WIDTH, "image_size": 8, "patch_size": 4, "hidden": 12, "num_layers": 2, "task": task}
    return tiny.model(VisionConfig(**sizes | {"attention": attention} | fields))


def read_there(folder, auto):
    import transformers

    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()


def computed_there(folder, batch, auto):
    import torch

    model = read_there(folder, auto)
    with torch.no_grad():
        return model(**{name: torch.from_numpy(np.asarray(array)) for name, array in batch.items()})


def assert_same(ours, theirs, batch):
    """Equal numbers at every token that is there."""
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    if "attention_mask" in batch and ours.shape[:2] == batch["attention_mask"].shape:
        ours, theirs = (array[batch["attention_mask"].astype(bool)] for array in (ours, theirs))
    assert np.abs(ours - theirs).max() < 1e-5 * max(1.0, np.abs(ours).max())
