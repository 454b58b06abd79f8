"""Prompts as batches, and generated tokens as text."""

import numpy as np
import pytest

import headjax
from headjax.models.generation import NEW_TOKENS, new_tokens, prompt_batch, texts_of
from tests import tiny
from tests.models.test_encoder_decoder import translation

END = 256


@pytest.fixture(scope="module")
def decoder():
    config = tiny.decoder_config(vocab_size=257, max_length=24)
    return tiny.model(config).replace(tokenizer=headjax.byte_tokenizer())


@pytest.fixture(scope="module")
def translator():
    return tiny.model(translation(vocab_size=257, num_layers=1)).replace(tokenizer=headjax.byte_tokenizer())


def test_prompts_are_padded_on_the_left_and_an_empty_one_begins_a_document(decoder):
    batch = prompt_batch(decoder, ["abc", "d", ""])
    np.testing.assert_array_equal(batch["input_ids"], [[97, 98, 99], [0, 0, 100], [0, 0, END]])
    np.testing.assert_array_equal(batch["attention_mask"], [[1, 1, 1], [0, 0, 1], [0, 0, 1]])


def test_special_tokens_are_text_unless_they_are_asked_for(decoder):
    assert prompt_batch(decoder, ["<|endoftext|>a"])["input_ids"].shape == (1, 14)
    np.testing.assert_array_equal(prompt_batch(decoder, ["<|endoftext|>a"], special=True)["input_ids"], [[END, 97]])
    with pytest.raises(
        headjax.DataError, match=r"prompts\[1\]: <\|user\|> is no special token of the model; it has <\|end"
    ):
        prompt_batch(decoder, ["a", "<|user|> b"], special=True)


def test_sources_end_with_the_end_of_text_also_where_they_are_cut(translator):
    np.testing.assert_array_equal(prompt_batch(translator, ["ab"])["input_ids"], [[97, 98, END]])
    batch = prompt_batch(translator, ["abcdef", "g"], max_length=3)
    np.testing.assert_array_equal(batch["input_ids"], [[97, 98, END], [103, END, 0]])


def test_texts_stop_before_the_end_token(decoder, translator):
    tokens, lengths = np.array([[33, 34, END, 0], [32, 35, 36, 37]]), np.array([3, 4])
    batch = prompt_batch(decoder, ["ab", "c"])
    assert texts_of(decoder, batch, tokens, lengths, END) == ['!"', " #$%"]
    batch = prompt_batch(translator, ["ab", "c"])
    assert texts_of(translator, batch, tokens, lengths, END, count=1) == ['!"']
    assert texts_of(translator, batch, tokens, lengths, END)[1] == "#$%"


def test_the_default_number_of_new_tokens_fits_the_positions(decoder, translator):
    assert new_tokens(decoder.config, prompt_batch(decoder, ["a" * 20])) == 4
    assert new_tokens(translator.config, prompt_batch(translator, ["a"])) <= NEW_TOKENS
    with pytest.raises(headjax.DataError, match=r"prompt: "):
        new_tokens(decoder.config, prompt_batch(decoder, ["a" * 30]))
