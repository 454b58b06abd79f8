"""Analytic operations against XLA's own count of the unscanned program, at the size of BERT-base."""

from __future__ import annotations

import jax
import pytest

from headjax.attention import (
    Collaborative,
    Gated,
    Grouped,
    Latent,
    MultiHead,
    NoHeads,
    RotaryHalves,
    Talking,
    Tucker,
)
from headjax.core.tensors import abstract
from headjax.models import Compute, Options
from headjax.models.feed_forward import Dense, GatedDense
from headjax.models.recipes import Albert, Bert, LanguageModel, Translation, Vit
from headjax.models.tasks import Classification, MaskedLanguageModel, Pretraining

LENGTH, BATCH = 128, 2
MULTI = MultiHead(num_heads=12, head_dim=64)
FORMULATIONS = {
    "multi_head": MULTI,
    "fixed_head_size": MultiHead(num_heads=8, head_dim=128, value_dim=96),
    "rotary": MultiHead(num_heads=12, head_dim=64, rotary=RotaryHalves()),
    "grouped": Grouped(num_heads=12, kv_heads=4, head_dim=64),
    "collaborative": Collaborative(num_heads=12, shared_dim=384, value_dim=64, head_dim=64, content_bias=True),
    "tucker": Tucker(num_heads=12, query_rank=256, key_rank=192, value_dim=64, head_dim=64),
    "latent": Latent(num_heads=12, rank=256, head_dim=64),
    "talking": Talking(num_heads=12, logit_heads=12, softmax_heads=12, head_dim=64),
    "gated": Gated(inner=MULTI),
    "no_heads": NoHeads(),
}
LAYERS = {"attention": MULTI, "feed_forward": Dense(3072), "num_layers": 2}
TOKENS = {"input_ids": (BATCH, LENGTH)}
STACKS = {
    "pretraining": (Bert(task=Pretraining(), **LAYERS), TOKENS),
    "albert": (Albert(task=MaskedLanguageModel(), **LAYERS), TOKENS),
    "language_model": (LanguageModel(vocab_size=1000, max_length=LENGTH, width=768, **LAYERS), TOKENS),
    "translation": (
        Translation(vocab_size=1000, width=768, **LAYERS),
        TOKENS | {"decoder_input_ids": (BATCH, LENGTH)},
    ),
    "vision": (Vit(task=Classification(classes=1000), **LAYERS), {"pixel_values": (BATCH, 3, 224, 224)}),
}


def counted_by_xla(config, shapes):
    """Operations for one example, from the program before it is compiled: no array is made."""
    batch = {
        name: jax.ShapeDtypeStruct(shape, "float32" if name == "pixel_values" else "int32")
        for name, shape in shapes.items()
    }
    options = Options(compute=Compute(scan=False))
    lowered = jax.jit(lambda params, batch: config.apply(params, batch, options)).lower(
        abstract(config.tensors()), batch
    )
    return lowered.cost_analysis()["flops"] / BATCH


@pytest.mark.parametrize("name", list(FORMULATIONS))
def test_formulations(name):
    attention, feed_forward = FORMULATIONS[name], GatedDense(2048, "silu")
    recipe = LanguageModel(
        vocab_size=1000, max_length=LENGTH, width=768, num_layers=2, attention=attention, feed_forward=feed_forward
    )
    config = recipe.build()
    assert config.flops(LENGTH) == pytest.approx(counted_by_xla(config, TOKENS), rel=0.02)


@pytest.mark.parametrize("name", list(STACKS))
def test_stacks(name):
    recipe, shapes = STACKS[name]
    config = recipe.build()
    assert config.flops(LENGTH) == pytest.approx(counted_by_xla(config, shapes), rel=0.02)
