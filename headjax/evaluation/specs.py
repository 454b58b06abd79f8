"""Tasks of a model: the values of `--task`, read with the model's tokenizer and by its output and class names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from headjax.core.errors import ConfigError, DataError, HeadjaxError, require
from headjax.data.config import DataConfig
from headjax.data.forms import ImageForm, QuestionForm, RetrievalForm, SimilarityForm, TranslationForm
from headjax.data.forms.images import FILE
from headjax.data.recognise import first_file, labelled_form, named_task, table_columns
from headjax.data.registry import PAIR_COLUMNS, TASKS
from headjax.data.store import is_prepared
from headjax.data.tables import is_table
from headjax.data.wikitext import CONTEXT, protocol
from headjax.evaluation.measures import embeds
from headjax.evaluation.selection import SPLITS, selection_of
from headjax.evaluation.task import Task, measure_of
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.models.tasks import MultiLabel, Regression, SentenceSimilarity
from headjax.models.tasks.classification import names_or_numbers
from headjax.models.vision import VisionConfig
from headjax.storage.hub import source_of
from headjax.tokenizers.tokenizer import Tokenizer

LENGTH, SQUAD_LENGTH = 512, 384  # tokens of an example, and of a window of SQuAD, where none are asked for


class Request(NamedTuple):
    """A model that reads, the number of tokens that was asked for (0 for the usual one), and columns of tables."""

    model: Model
    asked_length: int
    columns: Mapping[str, str] = {}

    def length(self, usual: int = LENGTH, name: str = "length") -> int:
        """Return the number of tokens of an example: as asked for, or the usual one within the model's limits.

        These are its positions, and where its task has no `max_seq_length` the tokenizer's greatest length.
        """
        reach: int | None = getattr(self.model.config, "max_length", None)
        fits = reach is None or self.asked_length <= reach
        require(fits, name, f"{self.asked_length} tokens, but the model has {reach} positions")
        limit = None if self.model.tokenizer is None else self.model.tokenizer.max_length
        usual = getattr(getattr(self.model.config, "task", None), "max_seq_length", None) or min(usual, limit or usual)
        return self.asked_length or (usual if reach is None else min(usual, reach))

    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        if self.model.tokenizer is None:
            raise HeadjaxError("task: the model has no tokenizer, so it cannot read text")
        tokenizer: Tokenizer = self.model.tokenizer
        return tokenizer


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
        split: examples that `batches` gives: `validation`; `train`, the training examples in a seeded random order (a
            task with a single split has none, and `headjax.split_task` divides it); `all`, for evaluation without a
            choice of heads, which is the same as `validation` except that texts are whole.
        columns: columns of a table with labels by field (`text`, `second`, `label`); None goes by their usual names.

    Raises:
        HeadjaxError: an unknown name or split, the model has no tokenizer, or its output does not fit the task.
        DataError: a file that cannot be used, or a task without training examples where those are asked for.
    """
    if split not in (*SPLITS, "all"):
        raise HeadjaxError(f"split: expected {', '.join(SPLITS)} or all, got {split!r}")
    request = Request(model, length, columns or {})
    config = task_config(spec, request, whole=split == "all")
    folder = config.folder
    reads_text = folder is None and config.named.spec.form.reads_text
    data = config.load(request.tokenizer() if reads_text else model.tokenizer)
    measure = measure_of(data)
    if measure is None:
        raise HeadjaxError(f"{spec}: nothing is measured on this data")
    name = str(data.info["task"]) if folder is not None else _name(spec, config)
    if folder is None and config.named.path == spec:  # a path alone, whose form is said
        data = data._replace(info={**data.info, "form": config.named.spec.name})
    task = Task(name, data, measure)
    if folder is None and config.named.spec.name == "wikitext2":
        task = dataclasses.replace(task, part=data.info["protocol"]["split"])
    task.fit(model)
    if split == "train":
        if not len(task.data.train):
            raise DataError(f"{task.name}: it has one split only; headjax.split_task divides it")
        return selection_of(task)
    return task


def _name(spec: str, config: DataConfig) -> str:
    """Return the name of a task in tables: its own, or the user's files."""
    (named, path), prefix = config.named, spec.partition(":")[0]
    if prefix in ("all", "heldout", "translation", "images") and path:
        return path
    return spec if named.own or (path and source_of(path).is_file()) else named.name


def task_config(spec: str, request: Request, *, whole: bool = False) -> DataConfig:
    """Return the data of a task for a model; a text is `whole`, or divided. All of a file of rows is evaluated on."""
    part, _, path = spec.partition(":")
    if part in ("all", "heldout") and path:
        spec, whole = f"text:{path}", part == "all"
    if not (path and part in TASKS) and is_prepared(spec):
        return DataConfig(task=spec, length=request.asked_length).for_files(request.model.files)
    if request.columns:
        path = path if part in TASKS and path else spec
        spec = f"{table_form(str(first_file(path)), request.columns, request.model)}:{path}"
    named, path = named_task(spec)
    labelled = ("classification", "pairs", "regression", "similarity", "multi_label")
    file = str(first_file(path)) if spec == path and named.name in ("text", *labelled) else ""
    # A table without labels is text, which a classifier does not read: `table_form` says so.
    if file and (named.name in labelled or (is_table(file) and names_or_numbers(request.model.config))):
        named = TASKS[table_form(file, table_columns(file), request.model)]
        spec = f"{named.name}:{path}"
    alone = bool(path) and not source_of(path).is_dir() and named.name not in ("wikitext2", "images")
    rows = (path and alone and not named.documents) or (whole and (named.name in ("text", "wikitext2")))
    return fitted(DataConfig(task=spec, whole=bool(rows), columns=request.columns), request)


def fitted(config: DataConfig, request: Request, usual: int = LENGTH) -> DataConfig:
    """Return data with the length of an example, the classes and the size of images of a model."""
    model, spec = request.model, config.named.spec
    if isinstance(spec.form, ImageForm):
        return _sized(dataclasses.replace(config, form={}).for_files(model.files), model.config)
    if spec.name == "wikitext2":
        context = protocol(config.named.path)[1].context or request.asked_length
        length = request._replace(asked_length=context).length(CONTEXT, "context")
    else:
        length = request.length(SQUAD_LENGTH if isinstance(spec.form, QuestionForm) else usual)
    form = {"packed": False} if isinstance(spec.form, TranslationForm) else {}
    config = dataclasses.replace(config, length=length, form=form).for_classes(names_or_numbers(model.config))
    return prompted(config, model.config)


def _sized(config: DataConfig, model: ModelConfig) -> DataConfig:
    """Return data whose images have the size that the model's files make, or without those the model's own."""
    if not isinstance(model, VisionConfig):
        return config
    side = config.preprocessing.get("size")
    if side is None:
        return dataclasses.replace(config, form={"size": model.image_size} if config.named.spec.own else {})
    if side != model.image_size and not model.resized:
        raise ConfigError(f"{FILE}: images of {side} pixels a side, but the model reads {model.image_size} alone")
    return config


def prompted(config: DataConfig, model: ModelConfig) -> DataConfig:
    """Return data whose sentences stand behind the prompts of a model that embeds them."""
    task = getattr(model, "task", None)
    if config.folder is not None or not isinstance(task, SentenceSimilarity):
        return config
    form = config.named.spec.form
    if not isinstance(form, SimilarityForm) or not task.prompts:
        return config
    prompts = task.pair_prompts(retrieval=isinstance(form, RetrievalForm))
    own = {"prompts": prompts, "include_prompt": task.include_prompt}
    return dataclasses.replace(config, form=own | dict(config.form))


def table_form(path: str, columns: Mapping[str, str], model: Model, *, trains: bool = False) -> str:
    """Return the form of a table of labelled texts by its labels and the model's output, see `labelled_form`."""
    if "label" not in columns:
        raise DataError(
            f"{path}: no column of labels ({', '.join(PAIR_COLUMNS['label'])}); rename it, or say --columns TEXT,LABEL"
        )
    output = getattr(model.config, "task", None)
    known: bool | None = None if trains or not names_or_numbers(model.config) else False
    numbers = isinstance(output, Regression) or known
    several = isinstance(output, MultiLabel)
    return labelled_form(path, columns, several=several, embeds=embeds(model.config), numbers=numbers)
