"""The measures that data asks for by name: a form knows what is measured on its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headjax.data.task import TaskData
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


def measure_of(data: TaskData) -> Measure | None:
    """Return what is measured on data besides the loss and the perplexity; None is nothing."""
    return None if data.measured is None else MEASURES[data.measured.measure](**data.measured.arguments)
