"""What is measured on which data."""

from __future__ import annotations

from headjax.core.class_names import find_class
from headjax.data.glue import GLUE, Glue
from headjax.data.image_files import ImageFiles
from headjax.data.images import Mnist
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.language import LanguageConfig
from headjax.data.parallel_text import ParallelText, Translations
from headjax.data.prepared.data import PreparedData
from headjax.data.prepared.language import LanguageRecords
from headjax.data.prepared.pretraining import PretrainingRecords
from headjax.data.question_answering import QuestionAnswering, QuestionRows
from headjax.data.rehearsal import Rehearsal
from headjax.data.task import DataConfig, TaskData
from headjax.evaluation.measures import Classes, LanguageModelling, Measure, Numbers, Similarities
from headjax.evaluation.pretraining import MaskedAndNext
from headjax.evaluation.spans import Spans


def measure_of(config: DataConfig, data: TaskData) -> Measure | None:
    """What is measured on a config's data besides the loss and the perplexity; None is nothing."""
    if isinstance(config, PreparedData | Rehearsal):
        return prepared_measure(data)
    if isinstance(config, Glue):
        return Similarities() if config.similarity else glue_measure(config.name, data)
    if isinstance(config, QuestionAnswering) and isinstance(data.validation, QuestionRows):
        return Spans(windows=data.validation.source)
    if isinstance(config, LanguageConfig | ParallelText) and "words_per_token" in data.info.get("validation", {}):
        return language_measure(data)
    if isinstance(config, TextSimilarity):
        return Similarities()
    if isinstance(config, TextRegression):
        return Numbers()
    if isinstance(config, TextClassification | Mnist):
        return Classes("accuracy", tuple(data.info["labels"]), ("accuracy", "macro_f1", "matthews"))
    if isinstance(config, ImageFiles):
        return Classes(names=tuple(data.info["labels"]))
    return None


def glue_measure(name: str, data: TaskData) -> Measure:
    """The metrics of a task of GLUE, whose classes may be numbered as a model numbers them."""
    task = GLUE[name]
    if task.classes:
        names = tuple(data.info["labels"])
        positive = find_class(task.class_names[1], names)
        return Classes(task.metrics[0], names, task.metrics, 1 if positive is None else positive)
    return Numbers(task.metrics[0], task.metrics)


def prepared_measure(data: TaskData) -> Measure | None:
    """What is measured on prepared data, by the task and by the examples that it holds."""
    name = str(data.info["task"]).removesuffix("_mismatched")
    if name in GLUE:
        return glue_measure(name, data)
    if isinstance(data.validation, QuestionRows):
        return Spans(windows=data.validation.source)
    if isinstance(data.validation, PretrainingRecords):
        return MaskedAndNext()
    if isinstance(data.validation, Translations | LanguageRecords):
        return language_measure(data)
    if "labels" in data.info:
        return Classes("accuracy", tuple(data.info["labels"]), ("accuracy", "macro_f1", "matthews"))
    return None


def language_measure(data: TaskData) -> LanguageModelling:
    """Perplexities of data whose `info` counts the validation text."""
    counts = data.info["validation"]
    return LanguageModelling(**{name: counts[name] for name in ("words_per_token", "bytes_per_token")})
