"""Tasks of a model: the values of `--task`, read with its tokenizer, and which of their examples heads are chosen on.

Heads are chosen, scored and calibrated on *selection* examples: the training examples of a task. Metrics are
taken on *evaluation* examples: its validation examples. A task with a single split is divided in halves.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import ConfigError, DataError, HeadjaxError, require
from headjax.data.config import DataConfig
from headjax.data.examples import concatenated, subset
from headjax.data.files import find_files, reference_topics
from headjax.data.forms import (
    ImageForm,
    QuestionForm,
    RetrievalForm,
    SimilarityForm,
    TextsForm,
    TranslationForm,
    WikitextForm,
)
from headjax.data.forms.form import load_rows
from headjax.data.forms.images import FILE
from headjax.data.registry import TASKS, TEXTS
from headjax.data.rows import SPLITS, Row, document, single_texts
from headjax.data.source import LABELLED, Source, classes_of, embeds, first_file, resolve, table_columns
from headjax.data.stream import LABELS
from headjax.data.tables import is_table, table_rows
from headjax.evaluation.measures import Similarities
from headjax.evaluation.task import Task, measure_of
from headjax.models.config import ModelConfig
from headjax.models.generation import tokenizer_of
from headjax.models.model import Model
from headjax.models.tasks import SentenceSimilarity
from headjax.models.vision import VisionConfig
from headjax.storage.files import read_text
from headjax.storage.paths import source_of

LENGTH, SQUAD_LENGTH, WINDOW = 512, 384, 1024
"""Tokens of an example, of a window of SQuAD, and of a window of WikiText-2, where none are asked for."""


def example_length(model: Model, asked: int = 0, usual: int = LENGTH, name: str = "length") -> int:
    """Return the number of tokens of an example: as asked for, or (0) the usual one within the model's limits.

    These are its positions, and where its task has no `max_seq_length` the tokenizer's greatest length.
    """
    reach: int | None = getattr(model.config, "max_length", None)
    require(reach is None or asked <= reach, name, f"{asked} tokens, but the model has {reach} positions")
    limit = None if model.tokenizer is None else model.tokenizer.max_length
    usual = getattr(getattr(model.config, "task", None), "max_seq_length", None) or min(usual, limit or usual)
    return asked or (usual if reach is None else min(usual, reach))


def load_task(
    spec: str, model: Model, length: int = 0, *, split: str = "validation", columns: Mapping[str, str] | None = None
) -> Task:
    """Return a task for a model, read with the model's own tokenizer.

        >>> model = headjax.demo_model()
        >>> task = headjax.load_task("LICENSE", model, length=64)
        >>> next(iter(task.batches(4)))["input_ids"].shape
        (4, 64)

    Args:
        spec: a task's name, such as `sst2`, whose files are found under the folder that the environment variable
            HEADJAX_DATA names; `NAME:PATH`; or a path, whose form is recognised: a table, SQuAD's JSON, a file in
            CoNLL's format, a folder of images, a folder that `headjax prepare` wrote, or text. All of a table is
            evaluated on; text is divided as training on it divides it. `all:FILE` is a whole text as a single split,
            `heldout:FILE` always the held-out part. docs/tasks.md has the forms.
        model: the model to evaluate; only its config and tokenizer are read.
        length: number of tokens of an example, of similarities of each sentence; 0 is `LENGTH` (`SQUAD_LENGTH`), or
            the model's positions if they are fewer.
        split: examples that `batches` gives: `validation`; `train`, in a seeded random order (a task with a single
            split has none, and `headjax.split_task` divides it); `all`, those of `validation`, but texts whole.
        columns: columns of a table with labels by field (`text`, `second`, `label`); None goes by their usual names.

    Raises:
        HeadjaxError: an unknown name or split, the model has no tokenizer, or its output does not fit the task.
        DataError: a file that cannot be used, or a task without training examples where those are asked for.
    """
    if split not in (*SPLITS, "all"):
        raise HeadjaxError(f"split: expected {', '.join(SPLITS)} or all, got {split!r}")
    source = resolve(spec, model, columns=columns or {}, whole=split == "all")
    reads_text = not source.prepared and source.form.reads_text
    data = fitted(source, model, length).load(tokenizer_of(model) if reads_text else model.tokenizer)
    measure = measure_of(data)
    if measure is None:
        raise HeadjaxError(f"{spec}: nothing is measured on this data")
    if source.text == source.path and not source.prepared:  # a path alone, of which no name says how it was read
        data = data._replace(info={**data.info, "form": source.spec.name})
    task = Task(source.name, data, measure, part=data.info.get("protocol", {}).get("split", ""))
    task.fit(model)
    if split == "train":
        if not len(task.data.train):
            raise DataError(f"{task.name}: it has one split only; headjax.split_task divides it")
        return selection_of(task)
    return task


TEXT = ("text", "python")  # tasks of plain text that a model which embeds sentences is calibrated on

UNLABELLED = {"form": "texts, two an example", "labelled": False}
"""Description of texts without labels, in `TaskData.info`."""


def load_calibration(spec: str, model: Model, length: int = 0, *, columns: Mapping[str, str] = {}) -> Task:
    """Return examples to calibrate a model on: a task, and for a model that embeds sentences also single texts.

    Those are plain text, a paragraph or a line each (`headjax.data.rows.single_texts`), and the texts of a table
    without similarities. Two stand in one example, as in those of pairs; they have no labels.
    """
    source = source_of_texts(spec, model, columns)
    if source is None:
        return load_task(spec, model, length, columns=columns)
    rows = rows_of_texts(source)
    if not rows:
        raise DataError(f"{spec}: no text")
    data = load_rows(form_of_texts(model, length), {"validation": rows}, tokenizer_of(model), UNLABELLED)
    return Task(source.name, data, Similarities())


def form_of_texts(model: Model, length: int = 0) -> TextsForm:
    """Return how a model that embeds sentences reads single texts."""
    form, output = TextsForm(length=example_length(model, length)), getattr(model.config, "task", None)
    if not isinstance(output, SentenceSimilarity):
        return form
    prompts = output.pair_prompts(retrieval=False)
    return dataclasses.replace(form, prompts=prompts, include_prompt=output.include_prompt)


def source_of_texts(spec: str, model: Model, columns: Mapping[str, str]) -> Source | None:
    """Return data whose texts a model that embeds sentences is calibrated on, without labels; None for other data."""
    name, _, place = spec.partition(":")
    if not embeds(model.config) or (name in (*TASKS, "heldout") and name not in TEXT):
        return None
    plain = not place and source_of(spec).exists() and not is_table(first_file(spec))
    source = resolve(spec, model, columns={} if plain else columns)
    known = source.spec.name in (*TEXT, *LABELLED) and source.spec.name != "similarity"
    return source if known and not source.prepared else None


def rows_of_texts(source: Source) -> list[Row]:
    """Return the texts of files, or the sentences and paragraphs of the language reference that comes with Python."""
    return [document(source.name, text) for text in _texts(source)]


def _texts(source: Source) -> Iterator[str]:
    if not source.path:
        texts = (text for row in reference_topics() for text in single_texts(row.values["text"]))
        yield from dict.fromkeys(text for text in texts if text[0].isalpha() and text[-1] in ".:")
        return
    tables = [file for file in find_files(source.path, ("",)) if is_table(file)]
    for file in tables:
        columns = source.columns or table_columns(file)
        columns = {field: column for field, column in columns.items() if field != "label"}
        yield from (text for row in table_rows(file, columns) for text in row.values.values() if text.strip())
    for file in () if tables else find_files(source.path, TEXTS):
        yield from single_texts(read_text(file))


def fitted(source: Source, model: Model, asked_length: int = 0, usual: int = LENGTH) -> DataConfig:
    """Return how a source is read for a model: the length of an example, its classes, the size of its images."""
    form = source.form
    config = DataConfig(task=source.task, whole=source.whole, columns=source.columns)
    if source.prepared:
        return dataclasses.replace(config, length=asked_length).for_files(model.files)
    if isinstance(form, ImageForm):
        return _sized(config.for_files(model.files), model.config)
    if isinstance(form, WikitextForm):
        length = example_length(model, form.context or asked_length, WINDOW, "context")
    else:
        length = example_length(model, asked_length, SQUAD_LENGTH if isinstance(form, QuestionForm) else usual)
    fields = {"packed": False} if isinstance(form, TranslationForm) else {}
    config = dataclasses.replace(config, length=length, form=fields).for_classes(classes_of(model))
    return prompted(config, model.config)


def _sized(config: DataConfig, model: ModelConfig) -> DataConfig:
    """Return data whose images have the size that the model's files make, or without those the model's own."""
    if not isinstance(model, VisionConfig):
        return config
    side = config.preprocessing.get("size")
    if side is None:
        return dataclasses.replace(config, form={"size": model.image_size} if config.source.spec.own else {})
    if side != model.image_size and not model.resized:
        raise ConfigError(f"{FILE}: images of {side} pixels a side, but the model reads {model.image_size} alone")
    return config


def prompted(config: DataConfig, model: ModelConfig) -> DataConfig:
    """Return data whose sentences stand behind the prompts of a model that embeds them."""
    task, form = getattr(model, "task", None), config.source.form
    if config.source.prepared or not (isinstance(task, SentenceSimilarity) and task.prompts):
        return config
    if not isinstance(form, SimilarityForm):
        return config
    prompts = task.pair_prompts(retrieval=isinstance(form, RetrievalForm))
    defaults = {"prompts": prompts, "include_prompt": task.include_prompt}
    return dataclasses.replace(config, form=defaults | dict(config.form))


# Selection: one policy for every command.

SEED = 0  # seed of the order in which training examples are drawn, and of the hash that divides a single split

HALVES = ("selection half", "evaluation half")

RULE = (
    "one split: its examples are sorted by a hash of their inputs (seed 0), equal ones together; heads are chosen on "
    "the first half, metrics are taken on the other"
)


class Parts(NamedTuple):
    """A task's two parts."""

    selection: Task
    evaluation: Task


def split_task(task: Task, select: str | Task = "train", *, train: Task | None = None) -> Parts:
    """Return the examples to choose heads on and those to take metrics on.

    A task without training examples is divided: examples are sorted by the SHA-256 of their inputs (labels do not
    count), and the first half is for selection. Equal examples, pairs with the same first text, and all questions about
    one paragraph stay together. The halves are disjoint and the same on every machine.

        >>> model = headjax.demo_model()
        >>> task = headjax.load_task("LICENSE", model, length=64)
        >>> parts = headjax.split_task(task)
        >>> len(parts.evaluation.data.validation)
        11

    Args:
        select: `train`; `validation`, the evaluation examples themselves; or another task, whose training examples are
            taken (all examples if it has a single split).
        train: a task whose training examples (all examples of a single split) take the place of the task's own, also
            to train on; `task` is then not divided.

    Raises:
        HeadjaxError: an unknown split.
        DataError: a single split that cannot be divided because its examples are all equal or about one paragraph.
    """
    chosen = selection_of(select) if isinstance(select, Task) else None
    if train is not None:
        training = selection_of(train)
        task = dataclasses.replace(task, data=task.data._replace(train=training.data.train), part=task.split)
        chosen = training if select == "train" else chosen
    if chosen is not None:
        return Parts(chosen, task)
    if select not in SPLITS:
        raise HeadjaxError(f"select: expected {' or '.join(SPLITS)}, or other examples, got {select!r}")
    if select == "validation":
        data = task.data._replace(train=task.data.validation)
        return Parts(dataclasses.replace(task, data=data, part=task.split), task)
    if len(task.data.train):
        return Parts(selection_of(task), task)
    return _halves(task)


def selection_of(task: Task) -> Task:
    """Return the task whose `batches` give its training examples, or all of a single split, in a random order."""
    rows, split, measure = task.data.train, "train", task.measure
    if len(rows):
        measure = measure.on(rows, task.data.info.get("train", {}))
    else:
        rows, split = task.data.validation, task.split
    order = np.random.default_rng(SEED).permutation(len(rows))
    data = task.data._replace(train=rows, validation=subset(rows, order))
    return dataclasses.replace(task, data=data, measure=measure, part=split)


def joined(tasks: Sequence[Task], count: int = 0, seed: int = SEED) -> Task:
    """Return the examples of several tasks as one: `count` (0 is all), of each an equal share as far as it has them."""
    if len(tasks) == 1:
        return tasks[0]
    sizes, rng = [task.count() for task in tasks], np.random.default_rng(seed)
    shares = equal_shares(sizes, count or sum(sizes))
    drawn = [
        subset(task.data.validation, rng.permutation(size)[:share])
        for task, size, share in zip(tasks, sizes, shares, strict=True)
        if share
    ]
    rows = concatenated(drawn)
    data = tasks[0].data._replace(train=rows, validation=rows, info={"labelled": all(task.labelled for task in tasks)})
    names = ", ".join(f"{task.name} ({share:,})" for task, share in zip(tasks, shares, strict=True))
    parts = ", ".join(dict.fromkeys(task.split for task in tasks))
    return dataclasses.replace(tasks[0], name=names, data=data, part=parts)


def equal_shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return shares of a count, equal as far as the sizes allow; the larger ones take what does not divide."""
    shares = [0] * len(sizes)
    for left, index in enumerate(sorted(range(len(sizes)), key=lambda index: (sizes[index], -index))):
        shares[index] = min(sizes[index], (count - sum(shares)) // (len(sizes) - left))
    return shares


def describe(task: Task, limit: int = 0) -> dict[str, Any]:
    """Return the description of examples in a command's JSON."""
    form = {"form": task.data.info["form"]} if "form" in task.data.info else {}
    rule = {"rule": RULE} if task.split in HALVES else {}
    return {"task": task.name, "split": task.split, "examples": task.count(limit), **form, **rule}


def in_words(selection: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the notes under a command's table about its examples."""
    parts = {title: part for title, part in (("Selection", selection), ("Evaluation", evaluation)) if part is not None}
    notes = []
    for title, part in parts.items():
        form = f" (read as {part['form']})" if "form" in part else ""
        notes.append(f"{title}: {part['examples']:,} examples of {part['task']}{form}, {part['split']}.")
    if any("rule" in part for part in parts.values()):
        notes.append(f"The task has {RULE}.")
    if len(parts) == 2 and len({(part["task"], part["split"]) for part in parts.values()}) == 1:
        notes.append("Selection and evaluation have the same examples, which flatters the metrics.")
    return tuple(notes)


def _halves(task: Task) -> Parts:
    source = task.data.validation
    groups: dict[bytes, list[int]] = {}
    for index in range(len(source)):
        groups.setdefault(_group(task, source[index]), []).append(index)
    if len(groups) < 2:
        why = "its examples are all equal, or about one paragraph, and cannot be divided"
        raise DataError(f"{task.name}: {why}; name others to choose heads on (--calibration)")
    chosen: list[int] = []
    for key in sorted(groups)[:-1]:
        if 2 * len(chosen) >= len(source):
            break
        chosen += groups[key]
    others = np.setdiff1d(np.arange(len(source)), chosen)
    first, second = subset(source, np.asarray(chosen)), subset(source, others)
    halves = (task.data._replace(train=first, validation=half) for half in (first, second))
    return Parts(*(dataclasses.replace(task, data=data, part=part) for data, part in zip(halves, HALVES, strict=True)))


def _group(task: Task, example: Mapping[str, np.ndarray]) -> bytes:
    """Return a hash that examples of one group share: of the inputs without padding, of a pair the first text alone."""
    together, arrays = task.measure.together(example), {name: np.asarray(array) for name, array in example.items()}
    if together is not None:
        parts = {"together": together.encode()}
    elif "input_ids" not in arrays:
        parts = {name: array.tobytes() for name, array in arrays.items() if name not in LABELS}
    else:
        ids = arrays["input_ids"]
        kept = arrays.get("attention_mask", np.ones_like(ids)) == 1
        if "segment_ids" in arrays:
            kept &= arrays["segment_ids"] <= 1
        elif "token_type_ids" in arrays:
            kept &= arrays["token_type_ids"] == 0
        parts = {"input_ids": ids[kept].astype("<i8").tobytes()}  # one type, so that the hash is the same everywhere
    digest = hashlib.sha256(str(SEED).encode())
    for name, content in sorted(parts.items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.digest()
