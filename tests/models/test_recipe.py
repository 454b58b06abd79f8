import jax
import numpy as np
import pytest

from headjax.core.errors import CheckpointError, ConfigError
from headjax.models import model as directory
from headjax.models.recipe import Directory, with_task
from headjax.models.tasks import Classification, MaskedLanguageModel, NoTask
from tests.models.test_encoder import config
from tests.tiny import VOCABULARY, decoder_config, model, tokens


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


def test_a_directory_starts_with_another_task(encoder, tmp_path):
    directory.save(encoder, tmp_path / "model")
    recipe = Directory(path=str(tmp_path / "model"), task=Classification(classes=2))
    start = recipe.start()
    assert start.config == recipe.build()
    assert start.params["output"]["kernel"].shape == (16, 2)
    plain = Directory(path=str(tmp_path / "model")).start()
    assert plain.config == encoder.config
    np.testing.assert_array_equal(plain.params["embeddings"]["token"], start.params["embeddings"]["token"])


def test_a_language_model_keeps_its_output():
    with pytest.raises(ConfigError, match=r"^task: "):
        with_task(model(decoder_config()), NoTask())


def test_an_error_in_a_directory_begins_with_its_file(tmp_path):
    """And is no error of a field of the run's config."""
    (tmp_path / "config.json").write_text('{"model": {"kind": "decoder", "widht": 3}}')
    for read in (Directory(path=str(tmp_path)).build, Directory(path=str(tmp_path)).start):
        with pytest.raises(CheckpointError, match=rf"^{tmp_path}/config\.json\.widht: unknown field"):
            read()
