"""Another task for a trained model."""

import jax
import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.models import VisionConfig
from headjax.models.new_task import with_task
from headjax.models.tasks import Classification, MaskedLanguageModel, NoTask
from tests.models.test_encoder import config
from tests.tiny import VOCABULARY, decoder_config, model, multi_head, tokens


@pytest.fixture(scope="module")
def encoder():
    return model(config(num_layers=1, pooler=None))


def test_only_the_output_is_new(encoder, tmp_path):
    changed = with_task(encoder, Classification(classes=3), seed=1)
    output = changed(tokens())
    np.testing.assert_array_equal(output.hidden, encoder(tokens()).hidden)
    assert output.logits.shape == (2, 3)
    assert changed.config.pooler is not None
    assert changed.history[-1]["action"] == "task"
    again = with_task(encoder, Classification(classes=3), seed=1)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.params, changed.params))
    changed.save(tmp_path / "model")
    # A pooler that is there stays, whatever the output.
    masked = with_task(changed, MaskedLanguageModel())
    np.testing.assert_array_equal(masked.params["pooler"]["kernel"], changed.params["pooler"]["kernel"])
    assert masked(tokens()).logits.shape == (2, 10, VOCABULARY)


def test_an_image_model_pools_its_class_token():
    """The map to classes reads it as it is: the only thing that is new."""
    attention = multi_head(num_heads=2)
    images = model(VisionConfig(width=8, num_layers=1, attention=attention, hidden=8, image_size=4, patch_size=2))
    changed = with_task(images, Classification(classes=3))
    assert set(changed.params) == {"patches", "encoder", "output"}


def test_a_language_model_keeps_its_output():
    with pytest.raises(ConfigError, match=r"^task: "):
        with_task(model(decoder_config()), NoTask())
