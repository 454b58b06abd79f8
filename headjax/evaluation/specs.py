"""What `--task` takes: names of tasks, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.serialize import unknown_name
from headjax.data.files import data_folder
from headjax.data.forms.questions import QUESTION_LENGTH
from headjax.data.glue import GLUE, Glue
from headjax.data.image_data import ImageFiles, Mnist
from headjax.data.labelled_text import TextClassification, TextRegression
from headjax.data.prepared import PreparedData, is_prepared
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_data import LanguageConfig, ParallelText, QuestionAnswering, whole_text_data
from headjax.data.text_rows import header, is_table, table_rows
from headjax.evaluation.selection import SPLITS, selection_of
from headjax.evaluation.task import Task, measure_of
from headjax.models.model import Model
from headjax.models.tasks import Regression
from headjax.models.tasks.classification import names_or_numbers
from headjax.tokenizers.tokenizer import Tokenizer

LENGTH = 512
"""Most tokens of an example where nothing else is asked for; models of fewer positions take as many as they have."""

SQUAD_LENGTH = 384
"""Tokens of a window of SQuAD, likewise."""

SIMILARITY = "sentence_similarity"


class Request(NamedTuple):
    """What a task is made of.

    Attributes:
        path: what follows the task's name, or a file; may be empty.
        model: the model that is asked.
        asked_length: tokens of an example, 0 for what is usual.
    """

    path: str
    model: Model
    asked_length: int

    def length(self, usual: int = LENGTH) -> int:
        """Tokens of an example: those asked for, or the usual number as far as the model's positions reach."""
        embeddings: Any = getattr(self.model.config, "embeddings", None)
        reach: int | None = getattr(getattr(embeddings, "positions", None), "max_length", None)
        fits = reach is None or self.asked_length <= reach
        require(fits, "length", f"{self.asked_length} tokens, but the model has {reach} positions")
        return self.asked_length or (usual if reach is None else min(usual, reach))

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            HeadjaxError: it has none.
        """
        if self.model.tokenizer is None:
            raise HeadjaxError("task: the model has no tokenizer, so it cannot read text")
        tokenizer: Tokenizer = self.model.tokenizer
        return tokenizer


def load_task(spec: str, model: Model, length: int = 0, *, split: str = "validation") -> Task:
    """Return a task for a model, read with the model's own tokenizer.

    Args:
        spec: one of
            * `python`: held-out text that ships with Python, language modelling;
            * a GLUE task (`sst2`, `cola`, `mrpc`, `stsb`, `rte`, `mnli`, `qnli`, `qqp`), found under the folder that
              the environment variable HEADJAX_DATA names, or `NAME:FOLDER`;
            * `sentence_similarity`: STS-B for models that embed sentences, likewise;
            * `squad`, `mnist` and `multi30k` (English to German), likewise; also `squad:FILE`;
            * `images:FOLDER`: the test images of CIFAR's own files, or `validation/CLASS/*.jpg`;
            * `translation:PATH:SOURCE-TARGET`: the lines of `PATH.SOURCE` and `PATH.TARGET` (`newstest2014:en-de`),
              or a table with columns of those names or numbers (`mtnt/test.tsv:1-2`);
            * a table (`.tsv`, `.csv`, `.json`, `.jsonl`) with the columns `sentence`, maybe `sentence2`, and `label`:
              all of it is evaluated on. Labels of a classifier are its class names, class numbers where it has no
              names. For models without an output, labels with a decimal point make it a regression;
            * a folder that `headjax prepare` wrote;
            * any other file, a folder or a pattern: language modelling on the part that training on it
              (`LanguageConfig.path`) holds out; `all:PATH` on the whole text.
        model: the model that is asked; only its config and tokenizer are read.
        length: tokens of an example; 0 is `LENGTH` (`SQUAD_LENGTH`), or what the model's positions allow.
        split: `train` to have `batches` give the training examples, in a seeded random order; a task with one split
            only has none and is divided by `headjax.split_task`.

    Raises:
        HeadjaxError: an unknown name or split, the model has no tokenizer, or its output does not fit the task.
        DataError: a file that cannot be used, or a task without training examples where those are asked for.
    """
    if split not in SPLITS:
        raise HeadjaxError(f"split: expected {' or '.join(SPLITS)}, got {split!r}")
    name, _, path = spec.partition(":")
    if name in NAMED:
        task = NAMED[name](Request(path, model, length))
    elif is_prepared(spec):
        task = _prepared(Request(spec, model, length))
    elif path and name == "all":
        task = _whole_text(Request(path, model, length))
    elif is_table(spec):
        task = _table(Request(spec, model, length))
    elif Path(spec).expanduser().exists() or set(spec) & set("/*.?"):
        task = _text(Request(spec, model, length))
    else:
        raise HeadjaxError(f"task: {unknown_name('task or file', spec, NAMED)}")
    task.fit(model)
    if split == "train":
        if not len(task.data.train):
            raise DataError(f"{task.name}: it has one split only; headjax.split_task divides it")
        return selection_of(task)
    return task


def _text(asked: Request) -> Task:
    return _measured(asked.path or "python", LanguageConfig(path=asked.path, length=asked.length()), asked.tokenizer())


def _whole_text(asked: Request) -> Task:
    data = whole_text_data(asked.path, asked.length(), asked.tokenizer())
    return _task(asked.path, data)


def _glue(name: str) -> Callable[[Request], Task]:
    def load(asked: Request) -> Task:
        config = Glue(name=name, path=asked.path, max_length=asked.length())
        return _measured(name, config.for_classes(names_or_numbers(asked.model.config)), asked.tokenizer())

    return load


def _similarity(asked: Request) -> Task:
    # A row holds two sentences of this length.
    config = Glue(name="stsb", path=asked.path, max_length=asked.length() // 2, similarity=True)
    return _measured(SIMILARITY, config, asked.tokenizer())


def _table(asked: Request) -> Task:
    path, names = asked.path, header(asked.path)
    fields: dict[str, Any] = {"validation": path, "max_length": asked.length()}
    if "sentence2" in names:
        fields |= {"text": "sentence" if "sentence" in names else "sentence1", "second": "sentence2"}
    for column in (fields.get("text", "sentence"), "label"):
        if column not in names:
            listed = ", ".join(names[:8])
            raise DataError(f"{path}: expected columns sentence, maybe sentence2, and label; it has {listed}")
    if _is_regression(path, asked.model):
        return _measured(path, TextRegression(**fields), asked.tokenizer())
    config = TextClassification(**fields).for_classes(names_or_numbers(asked.model.config))
    return _measured(path, config, asked.tokenizer())


def _squad(asked: Request) -> Task:
    validation, train = asked.path, ""
    if not Path(asked.path).is_file():
        folder = data_folder("squad", asked.path, ("squad",), lambda folder: any(folder.glob("dev-v1.1*.json")))
        validation = str(min(folder.glob("dev-v1.1*.json")))
        train = str(folder / "train-v1.1.json") if (folder / "train-v1.1.json").is_file() else ""
    length = asked.length(SQUAD_LENGTH)
    stride = max(0, min(QuestionAnswering.stride, (length - QUESTION_LENGTH) // 2))
    config = QuestionAnswering(train=train, validation=validation, max_length=length, stride=stride)
    return _measured("squad", config, asked.tokenizer())


def _multi30k(asked: Request) -> Task:
    names = ("mt/multi30k", "multi30k")
    folder = data_folder("multi30k", asked.path, names, lambda folder: any(folder.glob("val.en*")))
    train, validation = f"{folder}/train", f"{folder}/val"
    config = ParallelText(train=train, validation=validation, source="en", target="de", max_length=asked.length())
    return _measured("multi30k", config, asked.tokenizer())


def _translation(asked: Request) -> Task:
    path, _, languages = asked.path.rpartition(":")
    source, _, target = languages.partition("-")
    if not path or not target:
        expected = "translation:PATH:SOURCE-TARGET (data/newstest:de-en)"
        raise HeadjaxError(f"task: expected {expected}, got {asked.path!r}")
    config = ParallelText(validation=path, source=source, target=target, max_length=asked.length())
    return _measured(path, config, asked.tokenizer())


def _prepared(asked: Request) -> Task:
    config = PreparedData(path=asked.path, length=asked.asked_length)
    data = config.load(asked.model.tokenizer)
    return _task(str(data.info["task"]), data)


def _mnist(asked: Request) -> Task:
    return _measured("mnist", Mnist(path=asked.path), None)


def _images(asked: Request) -> Task:
    patches: Any = getattr(asked.model.config, "patches", None)
    return _measured(asked.path, ImageFiles(path=asked.path, size=getattr(patches, "image_size", 0)), None)


def _measured(name: str, config: DataConfig, tokenizer: Tokenizer | None) -> Task:
    return _task(name, config.load(tokenizer))


def _task(name: str, data: TaskData) -> Task:
    measure = measure_of(data)
    if measure is None:
        raise HeadjaxError(f"{name}: nothing is measured on this data")
    return Task(name, data, measure)


def _is_regression(path: str, model: Model) -> bool:
    """Whether a table's labels are numbers to predict: as the model's output has it, else by their decimal points."""
    output = getattr(model.config, "output", None)
    if names_or_numbers(model.config) or isinstance(output, Regression):
        return isinstance(output, Regression)
    labels = {row.values["label"] for row in table_rows(path, {"label": "label"})}
    return all(_is_real(label) for label in labels) and any("." in label for label in labels)


def _is_real(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


NAMED: Mapping[str, Callable[[Request], Task]] = {
    "python": _text,
    **{name: _glue(name) for name in GLUE},
    SIMILARITY: _similarity,
    "squad": _squad,
    "multi30k": _multi30k,
    "translation": _translation,
    "mnist": _mnist,
    "images": _images,
}
"""Tasks by name."""
