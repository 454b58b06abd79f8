"""The configs of small runs name data and models that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from headjax.configuration import load_config
from headjax.data.glue import GLUE, Glue
from headjax.errors import ConfigError
from headjax.models.recipes import Directory
from headjax.models.tasks import Classification, Regression
from headjax.training.config import train_config

SMALL = Path(__file__).parents[2] / "configs" / "small"


@pytest.mark.parametrize("name", GLUE)
def test_minilm_has_an_output_for_every_task(name):
    config = train_config(load_config(f"{SMALL / 'minilm.py'}:task={name},start=somewhere,steps=7"))
    assert isinstance(config.data, Glue)
    assert isinstance(config.model, Directory)
    assert config.model.path == "somewhere"
    output = config.model.task
    classes = len(GLUE[name].classes)
    assert output == Classification(classes=classes) if classes else isinstance(output, Regression)
    assert config.steps == 7


def test_an_unknown_task_is_named():
    with pytest.raises(ConfigError, match=r"task: unknown GLUE task 'sst'; did you mean 'sst2'\?"):
        load_config(f"{SMALL / 'minilm.py'}:task=sst")
