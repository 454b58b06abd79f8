"""What is measured on which data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headjax.core.class_names import find_class
from headjax.data.glue import GLUE, Glue
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.task import DataConfig, TaskData
from headjax.evaluation.measures import Classes, LanguageModelling, Measure, Numbers, Similarities
from headjax.evaluation.pretraining import MaskedAndNext
from headjax.evaluation.spans import Spans

MEASURES: Mapping[str, Callable[..., Measure]] = {
    "classes": Classes,
    "language_modelling": LanguageModelling,
    "masked_and_next": MaskedAndNext,
    "numbers": Numbers,
    "similarities": Similarities,
    "spans": Spans,
}
"""Measures by the names that `headjax.data.task.Measured` has for them."""


def measure_of(config: DataConfig, data: TaskData) -> Measure | None:
    """Return what is measured on a config's data besides the loss and the perplexity; None is nothing."""
    if data.measured is not None:
        return MEASURES[data.measured.measure](**data.measured.arguments)
    if isinstance(config, Glue):
        return Similarities() if config.similarity else glue_measure(config.name, data)
    if isinstance(config, TextSimilarity):
        return Similarities()
    if isinstance(config, TextRegression):
        return Numbers()
    if isinstance(config, TextClassification):
        return Classes("accuracy", tuple(data.info["labels"]), ("accuracy", "macro_f1", "matthews"))
    return None


def glue_measure(name: str, data: TaskData) -> Measure:
    """The metrics of a task of GLUE, whose classes may be numbered as a model numbers them."""
    task = GLUE[name]
    if task.classes:
        names = tuple(data.info["labels"])
        positive = find_class(task.class_names[1], names)
        return Classes(task.metrics[0], names, task.metrics, 1 if positive is None else positive)
    return Numbers(task.metrics[0], task.metrics)
