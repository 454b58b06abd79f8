"""A study of a tiny model's heads."""

import numpy as np
import pytest

from headjax.data.examples import TokenBlocks
from headjax.data.task import TaskData
from headjax.evaluation.measures import LanguageModelling
from headjax.evaluation.task import Task
from headjax.head_report.measure import measure
from headjax.head_report.study import StudyConfig, begin
from tests import tiny

LENGTH = 8


def language_task(name, seed):
    """Random tokens to evaluate on, of which a half is to choose heads on."""
    tokens = np.random.default_rng(seed).integers(0, tiny.VOCABULARY, 16 * LENGTH, dtype=np.int32)
    return Task(name, TaskData(None, (), TokenBlocks(tokens, LENGTH), {}), LanguageModelling())


@pytest.fixture(scope="session")
def task():
    return language_task("numbers", 0)


@pytest.fixture(scope="session")
def study(task):
    """Two layers of two heads on two tasks, with one seed."""
    model = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(2)), tiny.layer(tiny.multi_head(2))))
    config = StudyConfig(batch_size=4, orders=("importance", "random"), seeds=1, percentages=(50, 100), resamples=20)
    second = language_task("letters", 1)
    study = begin(model, task, config, second=second)
    list(measure(study, second))
    return study
