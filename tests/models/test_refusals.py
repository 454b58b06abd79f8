"""Configs that describe no model, and batches that a model cannot read: one line that begins with the field."""

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import BATCH, CONFIGS, translation
from tests.models.test_vision import IMAGES
from tests.models.test_vision import config as vision

PAIR = CONFIGS["translation"]

CONFIGURATIONS = {
    "attention": [
        lambda: headjax.Compute(attention="splas"),
        lambda: headjax.Compute(attention="cudnn"),
        lambda: tiny.decoder_config(attention=(tiny.multi_head(),)),
    ],
    "stochastic_depth": [lambda: tiny.decoder_config(stochastic_depth=1.0)],
    "num_layers": [lambda: tiny.decoder_config(num_layers=0)],
    "decoder_hidden": [lambda: translation(decoder_hidden=(8, 8, 8))],
    "max_length": [lambda: tiny.decoder_config(max_length=None)],
    "position_offset": [lambda: encoder("roberta", position_offset=0)],
    "shared_layers": [lambda: encoder("albert", hidden=(8, 8, 9))],
    "position_bias": [lambda: translation(position_bias=headjax.nn.RelativeBuckets(num_heads=2))],
    "decoder_position_bias": [lambda: translation(decoder_position_bias=headjax.nn.RelativeBuckets(num_heads=2))],
    "pooler": [lambda: encoder(pooler=None, task=headjax.tasks.Classification(classes=2))],
    "share_tokens": [lambda: translation(target_vocab_size=40)],
    "start_token": [lambda: translation(start_token=50)],
    "label_smoothing": [lambda: translation(label_smoothing=1.0)],
    "task": [lambda: vision(task=headjax.tasks.Span())],
    "patch_size": [lambda: vision(patch_size=4)],
    "distillation_token": [lambda: vision(distillation_token=False)],
    "temperature": [lambda: headjax.Sample(temperature=0.0)],
    "top_k": [lambda: headjax.Sample(top_k=-1)],
    "top_p": [lambda: headjax.Sample(top_p=0.0), lambda: headjax.Sample(top_p=1.5)],
}


@pytest.mark.parametrize("field", CONFIGURATIONS)
def test_what_describes_no_model_is_refused(field):
    for make in CONFIGURATIONS[field]:
        with pytest.raises(headjax.ConfigError, match=f"^{field}: "):
            make()


@pytest.fixture(scope="module")
def decoder():
    return tiny.model(tiny.decoder_config())


TOKENS = np.zeros((1, 3), np.int32)
LONG = np.zeros((1, 13), np.int32)
MASK = tiny.tokens() | {"attention_mask": np.ones((2, 3))}


@pytest.mark.parametrize(
    ("config", "batch", "message"),
    [
        (tiny.decoder_config(), {"tokens": TOKENS}, "input_ids: missing"),
        (tiny.decoder_config(), {"input_ids": TOKENS.astype(np.float32)}, "input_ids: expected integers"),
        (tiny.decoder_config(), {"input_ids": LONG}, "input_ids: 13 tokens, but the model has 12"),
        (tiny.decoder_config(), MASK, "attention_mask: "),
        (encoder(), {}, "input_ids: missing"),
        (PAIR, tiny.tokens(), "labels: "),
        (translation(positions="learned", max_length=9), BATCH, "input_ids: "),
        (vision(), {"pixel_values": IMAGES.transpose(0, 2, 3, 1)}, "pixel_values: "),
    ],
)
def test_a_batch_that_a_model_cannot_read_is_refused(config, batch, message):
    with pytest.raises(headjax.DataError, match=f"^{message}"):
        tiny.model(config)(batch)


PROMPTS = {"input_ids": np.array([[5, 6, 7]]), "position_ids": np.array([[0, 2, tiny.MAX_LENGTH - 3]])}
SEARCH = {"beams": 1, "max_new_tokens": 2, "end_token": 1}


@pytest.mark.parametrize(
    ("call", "batch", "choices", "message"),
    [
        (headjax.generate, PROMPTS, {"max_new_tokens": 0}, "max_new_tokens: "),
        (headjax.beam_search, PROMPTS, SEARCH | {"max_new_tokens": 0}, "max_new_tokens: "),
        (headjax.beam_search, PROMPTS, SEARCH | {"beams": 0}, "beams: "),
        (headjax.beam_search, PROMPTS, SEARCH | {"length_penalty": -1.0}, "length_penalty: "),
        (headjax.generate, PROMPTS, {"max_new_tokens": 3}, "prompt: "),
        (headjax.generate, {"input_ids": PROMPTS["input_ids"]}, {"max_new_tokens": 10}, "prompt: "),
        (headjax.generate, "ab", {"max_new_tokens": 2}, "model: "),
    ],
)
def test_a_continuation_that_cannot_be_is_refused(call, batch, choices, message, decoder):
    with pytest.raises(headjax.DataError, match=f"^{message}"):
        call(decoder, batch, **choices)


def test_an_encoder_generates_nothing():
    with pytest.raises(headjax.DataError, match=r"^model: "):
        headjax.generate(tiny.model(encoder(num_layers=1)), tiny.tokens(), max_new_tokens=1)
