"""Where the model of a run comes from."""

import numpy as np
import pytest

import headjax
from headjax.conversion.deep import deepen
from headjax.core import tensors
from headjax.initialization import Admin, ModelSource
from tests import tiny
from tests.models.test_encoder import config


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    model = tiny.model(config(num_layers=1, pooler=None))
    path = tmp_path_factory.mktemp("models") / "model"
    model.save(path)
    return model, str(path)


def test_a_directory_starts_with_another_task(encoder):
    model, path = encoder
    source = ModelSource(start=path, task=headjax.tasks.Classification(classes=2))
    start = source.trained(seed=0)
    assert start.config == source.architecture()
    assert start.params["output"]["kernel"].shape == (16, 2)
    plain = ModelSource(start=path).trained(seed=0)
    assert plain.config == model.config
    np.testing.assert_array_equal(plain.params["embeddings"]["token"], start.params["embeddings"]["token"])
    assert ModelSource(model=model.config).trained(seed=0) is None


def test_layers_are_split_into_layers_of_few_heads(encoder):
    model, path = encoder
    source = ModelSource(start=path, deep=2)
    deep = source.trained(seed=0)
    assert deep.config == deepen(model, 2).config
    assert ModelSource(model=model.config, deep=2).architecture() == source.architecture()
    tensors.check(source.architecture().tensors(), deep.params)
    with pytest.raises(headjax.ConfigError, match=r"^config\.deep\S*: "):
        ModelSource(start=path, deep=3).architecture()


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("model", {}),
        ("start", {"start": "there", "model": config()}),
        ("task", {"model": config(), "task": headjax.tasks.Classification(classes=2)}),
        ("initialization", {"start": "there", "initialization": Admin()}),
    ],
)
def test_fields_that_exclude_each_other(field, fields):
    with pytest.raises(headjax.ConfigError, match=f"^{field}: "):
        ModelSource(**fields)


def test_an_error_in_a_directory_begins_with_its_file(tmp_path):
    """And is no error of a field of the run's config."""
    (tmp_path / "config.json").write_text('{"model": {"kind": "decoder", "widht": 3}}')
    source = ModelSource(start=str(tmp_path))
    for read in (source.architecture, lambda: source.trained(seed=0)):
        with pytest.raises(headjax.CheckpointError, match=rf"^{tmp_path}/config\.json\.widht: unknown field"):
            read()
