"""Encoder-decoders: what the decoder may see, how labels become inputs, relative positions, head stacks."""

import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close

GENERATOR = np.random.default_rng(1)
LABELS = GENERATOR.integers(1, tiny.VOCABULARY, (2, 8))
BATCH = tiny.tokens() | {"attention_mask": np.array([[1] * 10, [1] * 7 + [0] * 3]), "labels": LABELS}
GROUPED = headjax.Kind(headjax.GroupedAttention, num_heads=4, kv_heads=2, head_dim=4)
SIZES = {"vocab_size": tiny.VOCABULARY, "width": tiny.WIDTH, "num_layers": 2, "initializer": headjax.nn.Normal(0.3)}


def translation(**fields) -> headjax.EncoderDecoderConfig:
    fields = SIZES | {
        "attention": tiny.multi_head(),
        "decoder_attention": tiny.collaborative(),
        "cross_attention": GROUPED,
        "hidden": 32,
        "residual": "pre_norm",
        "start_token": 3,
    } | fields  # fmt: skip
    return headjax.EncoderDecoderConfig.transformer_base(**fields)


def t5(**fields) -> headjax.EncoderDecoderConfig:
    own = tiny.multi_head(scale=1.0, projection_bias=False, output_bias=False)
    fields = {"attention": own, "hidden": 24, "activation": "gelu_tanh", "gated": True} | fields
    buckets = headjax.nn.RelativeBuckets(num_heads=fields["attention"].num_heads, buckets=8, max_distance=12)
    bias = dict.fromkeys(("position_bias", "decoder_position_bias"), buckets)
    return headjax.EncoderDecoderConfig.t5_small(**SIZES | bias | fields)


CONFIGS = {"translation": translation(), "t5": t5()}


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request):
    return tiny.model(CONFIGS[request.param])


def test_decoder_inputs_are_the_labels_after_the_start_token():
    model = headjax.EncoderDecoder(translation(padding_token=1), {})
    labels = np.array([[5, 6, 7, -100], [8, 9, 10, 11]])
    inputs = model.decoder_inputs({"labels": labels})
    np.testing.assert_array_equal(inputs, [[3, 5, 6, 7], [3, 8, 9, 10]])
    shorter = model.decoder_inputs({"labels": np.array([[5, -100, -100, 4]])})
    np.testing.assert_array_equal(shorter, [[3, 5, 1, 1]])
    packed = {"labels": np.array([[5, 6, 7, 8, 9, -100]]), "decoder_segment_ids": np.array([[1, 1, 2, 2, 2, 0]])}
    np.testing.assert_array_equal(model.decoder_inputs(packed), [[3, 5, 3, 7, 8, 3]])


def test_loss_is_the_smoothed_cross_entropy_of_the_labels():
    """(1 - s) (-log p_y) + s mean_v(-log p_v), and without s for evaluation."""
    config = translation(label_smoothing=0.1)
    labels = LABELS.copy()
    labels[0, 5:] = -100
    batch = BATCH | {"labels": labels}
    model = tiny.model(config)
    output = model(batch)
    log = np.asarray(jax.nn.log_softmax(output.logits, axis=-1))
    nll = -np.take_along_axis(log, np.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    counted = labels != -100
    smoothed = 0.9 * nll - 0.1 * log.mean(axis=-1)
    assert_close(model.losses(output, batch).mean(), smoothed[counted].mean(), sums=tiny.SUMS)
    assert_close(model.losses(output, batch, smoothed=False).mean(), nll[counted].mean(), sums=tiny.SUMS)
    assert_close(headjax.evaluate(model, [batch])["loss"], nll[counted].mean(), sums=tiny.SUMS)


def test_packed_pairs_do_not_see_each_other(model):
    """Two pairs in one row are the two pairs alone."""
    sources, targets = [[5, 6, 7], [8, 9, 10, 11]], [[3, 20, 21, 22], [3, 24, 25]]
    packed = model(
        {
            "input_ids": np.concatenate(sources)[None],
            "segment_ids": np.array([[1, 1, 1, 2, 2, 2, 2]]),
            "position_ids": np.array([[0, 1, 2, 0, 1, 2, 3]]),
            "decoder_input_ids": np.concatenate(targets)[None],
            "decoder_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 2]]),
            "decoder_position_ids": np.array([[0, 1, 2, 3, 0, 1, 2]]),
        }
    ).logits[0]
    alone = [
        model({"input_ids": np.array([source]), "decoder_input_ids": np.array([target])}).logits[0]
        for source, target in zip(sources, targets, strict=True)
    ]
    assert_close(packed, np.concatenate(alone), sums=tiny.SUMS)


def test_target_positions_do_not_count_padding(model):
    """Targets padded before their tokens, as prompts are; and packed ones without positions of their own."""
    source, target = {"input_ids": BATCH["input_ids"]}, LABELS[:, :5]
    alone = model(source | {"decoder_input_ids": target}).logits
    mask = np.pad(np.ones_like(target), ((0, 0), (3, 0)))
    padded = {"decoder_input_ids": np.pad(target, ((0, 0), (3, 0))), "decoder_attention_mask": mask}
    assert_close(model(source | padded).logits[:, 3:], alone, sums=tiny.SUMS)
    pairs = {"segment_ids": np.ones((2, 10), int), "decoder_segment_ids": np.array([[0] * 3 + [1] * 5] * 2)}
    packed = pairs | {"decoder_input_ids": padded["decoder_input_ids"]}
    assert_close(model(source | packed).logits[:, 3:], alone, sums=tiny.SUMS)


def test_tables_of_their_own():
    shared, own = translation(), translation(share_tokens=False)
    sizes = [headjax.summarize(each, 8).parameters for each in (own, shared)]
    assert sizes[0] - sizes[1] == tiny.VOCABULARY * tiny.WIDTH
    assert "token" not in shared.tensors()["decoder_embeddings"]
    output = tiny.model(own)(BATCH)
    assert np.isfinite(output.logits).all()
