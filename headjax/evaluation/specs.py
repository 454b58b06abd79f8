"""Tasks by name or by file: the values of `--task`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headjax.core.class_names import is_missing
from headjax.core.configuration import parse_arguments
from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import unknown_name
from headjax.data.files import search, source_of
from headjax.data.forms.questions import usual_stride
from headjax.data.known_data import Glue, ImageFiles, Mnist
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.prepared import PreparedData, is_prepared
from headjax.data.tables import header, is_table, table_rows
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import GLUE, find_task
from headjax.data.text_data import CONTEXT, LanguageConfig, ParallelText, QuestionAnswering, WikiText2, whole_text_data
from headjax.evaluation.selection import SPLITS, selection_of
from headjax.evaluation.task import Task, measure_of
from headjax.models.encoder import EncoderConfig
from headjax.models.model import Model
from headjax.models.tasks import NoTask, Regression, SentenceSimilarity
from headjax.models.tasks.classification import names_or_numbers
from headjax.tokenizers.tokenizer import Tokenizer

LENGTH = 512
"""Default greatest number of tokens of an example; models with fewer positions take as many as they have."""

SQUAD_LENGTH = 384
"""Default number of tokens of a window of SQuAD."""

SIMILARITY = "sentence_similarity"


class Request(NamedTuple):
    """A task that was asked for."""

    path: str
    model: Model
    asked_length: int
    trains: bool = True

    def length(self, usual: int = LENGTH, name: str = "length") -> int:
        """Return the number of tokens of an example: as asked for, or the usual one within the model's positions."""
        reach: int | None = getattr(self.model.config, "max_length", None)
        fits = reach is None or self.asked_length <= reach
        require(fits, name, f"{self.asked_length} tokens, but the model has {reach} positions")
        return self.asked_length or (usual if reach is None else min(usual, reach))

    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        if self.model.tokenizer is None:
            raise HeadjaxError("task: the model has no tokenizer, so it cannot read text")
        tokenizer: Tokenizer = self.model.tokenizer
        return tokenizer


def load_task(spec: str, model: Model, length: int = 0, *, split: str = "validation") -> Task:
    """Return a task for a model, read with the model's own tokenizer.

        >>> model = headjax.demo_model()
        >>> task = headjax.load_task("LICENSE", model, length=64)
        >>> next(iter(task.batches(4)))["input_ids"].shape
        (4, 64)

    Args:
        spec: a name of `NAMED`, maybe with the place of its files, such as `sst2` and `sst2:FOLDER`; without one they
            are found under the folder that the environment variable HEADJAX_DATA names; docs/tasks.md says
            which. Anything else is a file: a table (`.tsv`, `.csv`, `.json`, `.jsonl`, `.parquet`) with
            the columns `sentence`, maybe `sentence2`, and `label` or `score`, all of whose rows are evaluated on; a
            folder that `headjax prepare` wrote; or text, divided as training on it (`LanguageConfig.path`) divides it.
            `all:FILE` is a whole text as a single split, `heldout:FILE` always the held-out part.
        model: the model to evaluate; only its config and tokenizer are read.
        length: number of tokens of an example, of similarities of each sentence; 0 is `LENGTH` (`SQUAD_LENGTH`), or
            the model's positions if they are fewer.
        split: examples that `batches` gives: `validation`; `train`, the training examples in a seeded random order (a
            task with a single split has none, and `headjax.split_task` divides it); `all`, for evaluation without a
            choice of heads, which is the same as `validation` except that texts are whole.

    Raises:
        HeadjaxError: an unknown name or split, the model has no tokenizer, or its output does not fit the task.
        DataError: a file that cannot be used, or a task without training examples where those are asked for.
    """
    if split not in (*SPLITS, "all"):
        raise HeadjaxError(f"split: expected {', '.join(SPLITS)} or all, got {split!r}")
    name, _, path = spec.partition(":")
    if name in NAMED:
        task = NAMED[name](Request(path, model, length, trains=split != "all"))
    elif is_prepared(spec):
        task = _prepared(Request(spec, model, length))
    elif path and name in ("all", "heldout"):
        task = (_whole_text if name == "all" else _text)(Request(path, model, length))
    elif is_table(spec):
        task = _table(Request(spec, model, length))
    elif source_of(spec).exists() or set(spec) & set("/*.?"):
        task = (_whole_text if split == "all" else _text)(Request(spec, model, length))
    else:
        raise HeadjaxError(f"task: {unknown_name('task or file', spec, NAMED)}")
    task.fit(model)
    if split == "train":
        if not len(task.data.train):
            raise DataError(f"{task.name}: it has one split only; headjax.split_task divides it")
        return selection_of(task)
    return task


def _text(asked: Request) -> Task:
    """Read text that ships with Python, or the held-out part of the user's own."""
    return _measured(asked.path or "python", LanguageConfig(path=asked.path, length=asked.length()), asked.tokenizer())


def _code(asked: Request) -> Task:
    """Read the standard library's source code, of which whole files are held out."""
    return _measured("python_code", LanguageConfig(embedded="code", length=asked.length()), asked.tokenizer())


def _whole_text(asked: Request) -> Task:
    data = whole_text_data(asked.path, asked.length(), asked.tokenizer())
    return _task(asked.path, data)


def _glue(name: str, asked: Request) -> Task:
    config = Glue(name=name, path=asked.path, max_length=asked.length())
    return _measured(name, config.for_classes(names_or_numbers(asked.model.config)), asked.tokenizer())


def _similarity(asked: Request) -> Task:
    """Read STS-B's folder, or a table with the columns sentence1, sentence2 and score."""
    if asked.path and is_table(asked.path):
        columns = table_columns(asked.path)
        return _similarity_table(asked, columns, read_labels(asked.path, columns["label"]))
    config = Glue(name="stsb", path=asked.path, max_length=asked.length(), similarity=True)
    return _measured(SIMILARITY, config, asked.tokenizer())


def _similarity_table(asked: Request, columns: Mapping[str, str], labels: Labels) -> Task:
    if "second" not in columns:
        raise DataError(f"{asked.path}: similarities need the columns sentence1, sentence2 and score")
    fields: dict[str, Any] = {"validation": asked.path, "scale": max(labels.largest, 1.0), **columns}
    return _measured(asked.path, TextSimilarity(**fields, max_length=asked.length()), asked.tokenizer())


COLUMNS = {
    "text": ("sentence", "sentence1", "text", "text1", "premise", "question1"),
    "second": ("sentence2", "text2", "hypothesis", "question2"),
    "label": ("label", "score", "labels", "class"),
}
"""Names of a table's columns by field, those that are looked for first before others."""


def table_columns(path: str) -> dict[str, str]:
    """Return the columns of a table by field: `text`, `second` of pairs, `label`."""
    names = header(path)
    found = known_columns(names, COLUMNS)
    if "text" not in found or "label" not in found:
        listed = ", ".join(names[:8])
        raise DataError(f"{path}: expected columns sentence, maybe sentence2, and label; it has {listed}")
    return found


def known_columns(names: Sequence[str], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return for every field the first of its known columns that a table has; nothing for a field without any."""
    found = {field: next((one for one in columns if one in names), "") for field, columns in known.items()}
    return {field: column for field, column in found.items() if column}


def _table(asked: Request) -> Task:
    """Read a table of labelled texts or pairs as the task that its labels and the model's output say.

    * Pairs with a `score`, or with labels with a decimal point, are similarities for models that embed sentences. They
      are divided by the largest where that is above 1.
    * For other models without class names, labels with a decimal point are a regression.
    * Else labels are the model's class names, or class numbers if it has no names.
    """
    path, columns = asked.path, table_columns(asked.path)
    labels = read_labels(path, columns["label"])
    output = getattr(asked.model.config, "task", None)
    embeds = isinstance(asked.model.config, EncoderConfig) and isinstance(output, NoTask | SentenceSimilarity)
    if embeds and "second" in columns and (columns["label"] == "score" or labels.real):
        return _similarity_table(asked, columns, labels)
    fields: dict[str, Any] = {"validation": path, "max_length": asked.length(), **columns}
    if _is_regression(labels, asked.model):
        return _measured(path, TextRegression(**fields), asked.tokenizer())
    config = TextClassification(**fields).for_classes(names_or_numbers(asked.model.config))
    return _measured(path, config, asked.tokenizer())


def _wikitext2(asked: Request) -> Task:
    """Read WikiText-2's raw files: wiki.valid.raw to evaluate on, wiki.train.raw to choose heads and calibrate on.

    The protocol, see `headjax.data.text_data`, may follow a folder: `wikitext2:FOLDER,context=1024,stride=512`.
    """
    parts = asked.path.split(",")
    folder = "" if "=" in parts[0] else parts[0]
    words = parse_arguments(",".join(parts[bool(folder) :]), "wikitext2", context=0, stride=0, split="validation")
    context = asked._replace(asked_length=words.context or asked.asked_length).length(CONTEXT, "context")
    config = WikiText2(path=folder, context=context, stride=words.stride, split=words.split)
    return dataclasses.replace(_task("wikitext2", config.load(asked.tokenizer(), asked.trains)), part=config.split)


class SquadFiles(NamedTuple):
    """Files of questions: a task's name for them, the file to evaluate on, and the one to train on, if there is one."""

    name: str
    validation: str
    train: str


def squad_files(path: str) -> SquadFiles:
    """Return a file of the user's, or SQuAD's own files in a folder; an empty path looks for them."""
    if path and source_of(path).is_file():
        return SquadFiles(f"squad:{path}", path, "")
    folders = find_task("squad").folders
    held = search("squad", path, folders, lambda folder: min(folder.glob("dev-v1.1*.json"), default=None))
    other = held.with_name("train-v1.1.json")
    return SquadFiles("squad", str(held), str(other) if other.is_file() else "")


def _squad(asked: Request) -> Task:
    found, length = squad_files(asked.path), asked.length(SQUAD_LENGTH)
    stride = usual_stride(length)
    config = QuestionAnswering(train=found.train, validation=found.validation, max_length=length, stride=stride)
    return _measured(found.name, config, asked.tokenizer())


def _multi30k(asked: Request) -> Task:
    names = find_task("multi30k").folders
    found = search("multi30k", asked.path, names, lambda folder: next(iter(folder.glob("val.en*")), None))
    train, validation = f"{found.parent}/train", f"{found.parent}/val"
    config = ParallelText(train=train, validation=validation, source="en", target="de", max_length=asked.length())
    return _measured("multi30k", config, asked.tokenizer())


def _translation(asked: Request) -> Task:
    """Read PATH.SOURCE with PATH.TARGET, or a table with columns of both names.

    Such as `translation:newstest2014:en-de`, or by number of the columns `translation:mtnt/test.tsv:1-2`.
    """
    path, source, target = translation_parts(asked.path)
    config = ParallelText(validation=path, source=source, target=target, max_length=asked.length())
    return _measured(path, config, asked.tokenizer())


def translation_parts(text: str) -> tuple[str, str, str]:
    """Return path, source and target of `PATH:SOURCE-TARGET`."""
    path, _, languages = text.rpartition(":")
    source, _, target = languages.partition("-")
    if not path or not source or not target:
        expected = "translation:PATH:SOURCE-TARGET (data/newstest:de-en)"
        raise HeadjaxError(f"task: expected {expected}, got {text!r}")
    return path, source, target


def _prepared(asked: Request) -> Task:
    config = PreparedData(path=asked.path, length=asked.asked_length).for_files(asked.model.files)
    data = config.load(asked.model.tokenizer)
    return _task(str(data.info["task"]), data)


def _mnist(asked: Request) -> Task:
    return _measured("mnist", Mnist(path=asked.path), None)


def _images(asked: Request) -> Task:
    """Read a folder of images, `validation/CLASS/*.jpg`, or CIFAR's binary files, as the model's files say."""
    size = getattr(asked.model.config, "image_size", 0)
    config = ImageFiles(path=asked.path, size=size).for_files(asked.model.files)
    return _measured(asked.path, config, None)


def _measured(name: str, config: DataConfig, tokenizer: Tokenizer | None) -> Task:
    return _task(name, config.load(tokenizer))


def _task(name: str, data: TaskData) -> Task:
    measure = measure_of(data)
    if measure is None:
        raise HeadjaxError(f"{name}: nothing is measured on this data")
    return Task(name, data, measure)


def _is_regression(labels: Labels, model: Model) -> bool:
    """Return whether a table's labels are numbers to predict: by the model's output, else by decimal points."""
    output = getattr(model.config, "task", None)
    if names_or_numbers(model.config) or isinstance(output, Regression):
        return isinstance(output, Regression)
    return labels.real


class Labels(NamedTuple):
    """The labels of a table."""

    real: bool
    largest: float
    whole: bool


def read_labels(path: str, column: str) -> Labels:
    """Return the labels in a column of a table, without missing ones."""
    found = {row.values["label"] for row in table_rows(path, {"label": column})}
    labels = {label for label in found if not is_missing(label, numbers=True)}
    numbers = [number for label in labels if (number := _number(label)) is not None]
    real = len(numbers) == len(labels) and any("." in label for label in labels)
    whole = len(numbers) == len(labels) and all(number >= 0.0 and number.is_integer() for number in numbers)
    return Labels(real, max(filter(math.isfinite, numbers), default=0.0), whole)


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


NAMED: Mapping[str, Callable[[Request], Task]] = {
    "python": _text,
    "python_code": _code,
    **{name: functools.partial(_glue, name) for name in GLUE},
    SIMILARITY: _similarity,
    "wikitext2": _wikitext2,
    "squad": _squad,
    "multi30k": _multi30k,
    "translation": _translation,
    "mnist": _mnist,
    "images": _images,
}
"""Tasks by name."""
