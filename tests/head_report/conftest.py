"""A study of a tiny model's heads."""

import numpy as np
import pytest

from headjax.data.examples import TaskData, token_blocks
from headjax.evaluation.measures import LanguageModelling
from headjax.evaluation.task import Task
from headjax.head_report.study import StudyConfig, study_heads
from tests import tiny

LENGTH = 8


@pytest.fixture(scope="session")
def task():
    """Random tokens to evaluate on, of which a half is to choose heads on."""
    tokens = np.random.default_rng(0).integers(0, tiny.VOCABULARY, 16 * LENGTH, dtype=np.int32)
    return Task("numbers", TaskData(None, (), token_blocks(tokens, LENGTH), {}), LanguageModelling())


@pytest.fixture(scope="session")
def study(task):
    """Two layers of two heads, with one seed."""
    model = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(2)), tiny.layer(tiny.multi_head(2))))
    config = StudyConfig(batch_size=4, orders=("importance", "random"), seeds=1, percentages=(50, 100), resamples=20)
    return study_heads(model, task, config)
