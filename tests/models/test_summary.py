"""Summaries, operations against XLA's own count of the unscanned program, and kernels that a model cannot use."""

import jax
import pytest

import headjax
from tests import tiny
from tests.models.test_encoder import config

MIXED = tiny.decoder_config(
    tiny.layer(), tiny.layer(tiny.collaborative()), tiny.layer(headjax.Kind(headjax.nn.NoHeadsAttention))
)


def test_a_mixed_decoder():
    summary = headjax.summarize(MIXED, 8)
    assert [layer.kind for layer in summary.layers] == ["multi_head", "collaborative", "no_heads"]
    assert [layer.heads for layer in summary.layers] == [(0, 1, 2, 3), (0, 1, 2, 3), ()]
    assert summary.heads == 8
    assert summary.parameters == tiny.model(MIXED).num_parameters
    assert summary.flops == MIXED.flops(8)
    assert summary.layers[0].sizes == {"head_dim": 4}
    assert summary.layers[0].parameters == 4 * (16 * 16 + 16)
    # Keys and values of 4 heads of 4 in float32; one shared key of 8, 4 values of 4 and 4 content logits; nothing.
    assert [layer.cache_bytes_per_token for layer in summary.layers] == [4 * 32, 4 * (8 + 16 + 4), 0]
    assert summary.cache_bytes_per_token == 4 * 60
    assert headjax.summarize(MIXED, 8, headjax.Compute(dtype="bfloat16")).cache_bytes_per_token == 2 * 60
    pruned = headjax.summarize(headjax.prune(tiny.model(MIXED), ["decoder/0/1"]).config, 8).layers[0]
    assert (pruned.heads, pruned.parameters) == ((0, 2, 3), 3 * 3 * (16 * 4 + 4) + 3 * 4 * 16 + 16)


def test_encoders_have_no_cache_and_shared_layers_say_so():
    summary = headjax.summarize(config("albert"), 8)
    assert summary.cache_bytes_per_token == 0
    assert [layer.tied_layers for layer in summary.layers] == [(0, 1, 2)] * 3
    assert summary.heads == 12


LENGTH, BATCH = 128, 2
TOKENS = {"input_ids": (BATCH, LENGTH)}
STACKS = {
    "pretraining": (headjax.EncoderConfig.bert_base(task=headjax.tasks.Pretraining(), num_layers=2), TOKENS),
    "albert": (headjax.EncoderConfig.albert_base(task=headjax.tasks.MaskedLanguageModel(), num_layers=2), TOKENS),
    "decoder": (headjax.DecoderConfig.gpt2(vocab_size=1000, max_length=LENGTH, num_layers=2), TOKENS),
    "translation": (
        headjax.EncoderDecoderConfig.transformer_base(vocab_size=1000, num_layers=2),
        TOKENS | {"decoder_input_ids": (BATCH, LENGTH)},
    ),
    "vision": (
        headjax.VisionConfig.vit_base(task=headjax.tasks.Classification(classes=1000), num_layers=2),
        {"pixel_values": (BATCH, 3, 224, 224)},
    ),
}


@pytest.mark.parametrize("name", list(STACKS))
def test_operations_are_those_that_xla_counts(name):
    """For one example, from the program before it is compiled: no array is made."""
    config, shapes = STACKS[name]
    call = headjax.models.ForwardOptions(compute=headjax.Compute(scan=False))
    batch = {
        name: jax.ShapeDtypeStruct(shape, "float32" if name == "pixel_values" else "int32")
        for name, shape in shapes.items()
    }
    params = jax.eval_shape(config.initialize, jax.random.key(0))
    lowered = jax.jit(lambda params, batch: headjax.Model(config, params).forward(batch, call)).lower(params, batch)
    assert config.flops(LENGTH) == pytest.approx(lowered.cost_analysis()["flops"] / BATCH, rel=0.02)
