"""Tasks of a model: the values of `--task`, read with the model's tokenizer and by its output and class names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from headjax.core.errors import ConfigError, DataError, HeadjaxError, require
from headjax.data.config import DataConfig
from headjax.data.examples import TaskData, encode_packed, sequences
from headjax.data.files import find_files, reference_topics
from headjax.data.forms import ImageForm, QuestionForm, RetrievalForm, SimilarityForm, TranslationForm, WikitextForm
from headjax.data.forms.images import FILE
from headjax.data.registry import TASKS, TEXTS
from headjax.data.rows import single_texts
from headjax.data.source import LABELLED, Source, classes_of, embeds, first_file, resolve, table_columns
from headjax.data.tables import is_table, table_rows
from headjax.evaluation.measures import Similarities
from headjax.evaluation.selection import SPLITS, selection_of
from headjax.evaluation.task import Task, measure_of
from headjax.models.config import ModelConfig
from headjax.models.generation import tokenizer_of
from headjax.models.model import Model
from headjax.models.tasks import SentenceSimilarity
from headjax.models.vision import VisionConfig
from headjax.storage.files import read_text
from headjax.storage.hub import source_of

LENGTH, SQUAD_LENGTH, WINDOW = 512, 384, 1024
"""Tokens of an example, of a window of SQuAD, and of a window of WikiText-2, where none are asked for."""


def example_length(model: Model, asked: int = 0, usual: int = LENGTH, name: str = "length") -> int:
    """Return the number of tokens of an example: as asked for, or (0) the usual one within the model's limits.

    These are its positions, and where its task has no `max_seq_length` the tokenizer's greatest length.
    """
    reach: int | None = getattr(model.config, "max_length", None)
    fits = reach is None or asked <= reach
    require(fits, name, f"{asked} tokens, but the model has {reach} positions")
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
    source = resolve(spec, model, columns=columns, whole=split == "all")
    reads_text = not source.prepared and source.form.reads_text
    data = fitted(source, model, length).load(tokenizer_of(model) if reads_text else model.tokenizer)
    measure = measure_of(data)
    if measure is None:
        raise HeadjaxError(f"{spec}: nothing is measured on this data")
    if source.note:
        data = data._replace(info={**data.info, "form": source.note})
    task = Task(source.name, data, measure, part=data.info.get("protocol", {}).get("split", ""))
    task.fit(model)
    if split == "train":
        if not len(task.data.train):
            raise DataError(f"{task.name}: it has one split only; headjax.split_task divides it")
        return selection_of(task)
    return task


TEXT = ("text", "python")  # tasks of plain text that a model which embeds sentences is calibrated on


def load_calibration(spec: str, model: Model, length: int = 0, *, columns: Mapping[str, str] | None = None) -> Task:
    """Return examples to calibrate a model on: a task, and for a model that embeds sentences also single texts.

    Those are plain text, a paragraph or a line each (`headjax.data.rows.single_texts`), and the texts of a table
    without similarities. Two stand in one example, as in those of pairs; they have no labels.
    """
    source = _source_of_texts(spec, model, columns)
    if source is None:
        return load_task(spec, model, length, columns=columns)
    texts = _single_texts(source)
    if not texts:
        raise DataError(f"{spec}: no text")
    pairs = texts[::2], [*texts[1::2], *texts[: len(texts) % 2]]  # of an odd number the first one stands twice
    output, tokenizer = getattr(model.config, "task", None), tokenizer_of(model)
    reading: dict[str, Any] = {"max_length": example_length(model, length)}
    if isinstance(output, SentenceSimilarity):
        reading |= {"prompts": output.pair_prompts(retrieval=False), "pooled": output.include_prompt}
    none = np.full(len(pairs[0]), np.nan, np.float32)
    rows = sequences(encode_packed(tokenizer, *pairs, **reading), {"labels": none}, tokenizer.padding_id)
    info = {"form": "texts, two an example", "labelled": False}
    return Task(source.name, TaskData(tokenizer, (), rows, info), Similarities())


def _source_of_texts(spec: str, model: Model, columns: Mapping[str, str] | None) -> Source | None:
    """Return data whose texts a model that embeds sentences is calibrated on, without labels; None for other data."""
    name, _, place = spec.partition(":")
    if not embeds(model.config) or (name in (*TASKS, "heldout") and name not in TEXT):
        return None
    plain = not place and source_of(spec).exists() and not is_table(first_file(spec))
    source = resolve(spec, model, columns=None if plain else columns)
    known = source.spec.name in (*TEXT, *LABELLED) and source.spec.name != "similarity"
    return source if known and not source.prepared else None


def _single_texts(source: Source) -> list[str]:
    """Return the texts of files, or the sentences and paragraphs of the language reference that comes with Python."""
    if not source.path:
        found = [text for row in reference_topics() for text in single_texts(row.values["text"])]
        return [*dict.fromkeys(text for text in found if text[0].isalpha() and text[-1] in ".:")]
    files = find_files(source.path, ("",))
    tables = [file for file in files if is_table(file)]
    if not tables:
        return [text for file in find_files(source.path, TEXTS) for text in single_texts(read_text(file))]
    found = []
    for file in tables:
        columns = source.columns or table_columns(file)
        columns = {field: column for field, column in columns.items() if field != "label"}
        found += (text for row in table_rows(file, columns) for text in row.values.values() if text.strip())
    return found


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
