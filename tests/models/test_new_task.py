"""Another task for a trained model."""

import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.models.test_encoder import config
from tests.tiny import VOCABULARY, decoder_config, model, tokens


@pytest.fixture(scope="module")
def encoder():
    return model(config(num_layers=1, pooler=None))


def test_only_the_output_is_new(encoder, tmp_path):
    changed = headjax.with_task(encoder, headjax.tasks.Classification(classes=3), seed=1)
    output = changed(tokens())
    np.testing.assert_array_equal(output.hidden, encoder(tokens()).hidden)
    assert output.logits.shape == (2, 3)
    assert changed.config.pooler is not None
    assert changed.history[-1]["action"] == "task"
    again = headjax.with_task(encoder, headjax.tasks.Classification(classes=3), seed=1)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.params, changed.params))
    changed.save(tmp_path / "model")
    # A pooler that is there stays, whatever the output.
    masked = headjax.with_task(changed, headjax.tasks.MaskedLanguageModel())
    np.testing.assert_array_equal(masked.params["pooler"]["kernel"], changed.params["pooler"]["kernel"])
    assert masked(tokens()).logits.shape == (2, 10, VOCABULARY)


def test_a_language_model_becomes_a_classifier():
    """It reads the last token that is no padding, on either side, and generates no more."""
    language = model(decoder_config(tied=False, output_bias=True, softcap=2.0))
    changed = headjax.with_task(language, headjax.tasks.Classification(classes=3))
    assert changed.params["output"].keys() == {"kernel"}
    batch = {"input_ids": tokens()["input_ids"], "attention_mask": np.ones((2, 10), int)}
    batch["attention_mask"][0, :3], batch["attention_mask"][1, 6:] = 0, 0
    hidden = np.asarray(language(batch).hidden)
    expected = np.stack([hidden[0, 9], hidden[1, 5]]) @ np.asarray(changed.params["output"]["kernel"])
    np.testing.assert_allclose(changed(batch).logits, expected, atol=1e-5)
    with pytest.raises(headjax.DataError, match=r"^model: its task is classification"):
        headjax.generate(changed, {"input_ids": batch["input_ids"]}, max_new_tokens=2)


def test_a_translation_keeps_its_output():
    sizes = {"vocab_size": 20, "width": 8, "num_layers": 1, "decoder_layers": 1, "hidden": 8, "max_length": 8}
    translation = headjax.EncoderDecoderConfig.transformer_base(attention=tiny.multi_head(2), **sizes)
    with pytest.raises(headjax.ConfigError, match=r"^task: the output of an? encoder_decoder"):
        headjax.with_task(headjax.Model(translation, {}), headjax.tasks.NoTask())
