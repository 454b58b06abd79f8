"""What `--task` takes: names of tasks, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headjax.data.glue import GLUE, Glue
from headjax.data.images import Mnist
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.language import LanguageConfig, language_model_data, whole_text_data
from headjax.data.parallel_text import ParallelText
from headjax.data.roots import data_folder
from headjax.data.tables import header, read_table
from headjax.data.task import DataConfig, TaskData
from headjax.data.tokenizers import Tokenizer
from headjax.errors import DataError, HeadjaxError
from headjax.evaluation.measures import Classes, LanguageModelling, Measure, Numbers, Similarities
from headjax.evaluation.task import Task
from headjax.models.base import Model
from headjax.serialize import unknown_name

Builder = Callable[[str, int, Model], Task]
"""A task from (path or "", tokens of an example, model)."""

LENGTH = 128
"""Tokens of an example where the model reaches as far."""

SIMILARITY = "sentence_similarity"
TABLES = (".csv", ".tsv", ".json", ".jsonl")


def load_task(spec: str, model: Model, length: int = 0) -> Task:
    """A task for a model, read with the model's own tokenizer.

    Args:
        spec: one of
            * `python`: held-out text that ships with Python, language modelling;
            * a GLUE task (`sst2`, `cola`, `mrpc`, `stsb`, `rte`, `mnli`, `qnli`, `qqp`), found under the folder that
              the environment variable HEADJAX_DATA names, or `NAME:FOLDER`;
            * `sentence_similarity`: STS-B for models that embed sentences, likewise;
            * `mnist` and `multi30k` (English to German), likewise;
            * `translation:PATH:SOURCE-TARGET`: the lines of `PATH.SOURCE` and `PATH.TARGET`;
            * a table (`.tsv`, `.csv`, `.json`, `.jsonl`) with the columns `sentence`, maybe `sentence2`, and `label`:
              all of it is evaluated on. Labels with a decimal point in them make it a regression;
            * any other file, a folder or a pattern: language modelling on the part that training on it
              (`LanguageConfig.path`) holds out; `all:PATH` on the whole text.
        model: the model that is asked; only its config and tokenizer are read.
        length: tokens of an example; 0 is `LENGTH`, or what the model's positions allow.

    Raises:
        HeadjaxError: an unknown name, the model has no tokenizer, or its output does not fit the task.
        DataError: a file that cannot be used.
    """
    name, _, path = spec.partition(":")
    length = length or _length(model)
    if name in NAMED:
        task = NAMED[name](path, length, model)
    elif path and name == "all":
        task = _language(path, length, model, whole=True)
    elif Path(spec).name.removesuffix(".gz").endswith(TABLES):
        task = _table(spec, length, model)
    elif Path(spec).expanduser().exists() or set(spec) & set("/*.?"):
        task = _language(spec, length, model)
    else:
        raise HeadjaxError(f"task: {unknown_name('task or file', spec, NAMED)}")
    task.fit(model)
    return task


def measure_of(config: DataConfig, data: TaskData) -> Measure | None:
    """What is measured on a config's data besides the loss, or None."""
    if isinstance(config, Glue):
        task = GLUE[config.name]
        if task.classes:
            return Classes(task.metrics[0], task.class_names, task.metrics)
        return Similarities() if config.similarity else Numbers(task.metrics[0], task.metrics)
    if isinstance(config, ParallelText):
        return _language_measure(data)
    if isinstance(config, TextSimilarity):
        return Similarities()
    if isinstance(config, TextRegression):
        return Numbers()
    if isinstance(config, TextClassification | Mnist):
        return Classes("accuracy", tuple(data.info["labels"]), ("accuracy", "macro_f1", "matthews"))
    return None


def _language(path: str, length: int, model: Model, *, whole: bool = False) -> Task:
    if whole:
        data = whole_text_data(path, length, _tokenizer(model))
    else:
        data = language_model_data(LanguageConfig(path=path, length=length), _tokenizer(model))
    return Task(path or "python", data, _language_measure(data))


def _language_measure(data: TaskData) -> LanguageModelling:
    counts = data.info["validation"]
    return LanguageModelling(**{name: counts[name] for name in ("words_per_token", "bytes_per_token")})


def _glue(name: str, similarity: bool = False) -> Builder:
    def load(path: str, length: int, model: Model) -> Task:
        # Packed pairs hold two texts of this length.
        longest = length // 2 if similarity else length
        config = Glue(name=name, path=path, max_length=longest, similarity=similarity)
        return _labelled(SIMILARITY if similarity else name, config, _tokenizer(model))

    return load


def _table(path: str, length: int, model: Model) -> Task:
    names = header(path)
    fields: dict[str, Any] = {"validation": path, "max_length": length}
    if "sentence2" in names:
        fields |= {"text": "sentence" if "sentence" in names else "sentence1", "second": "sentence2"}
    for column in (fields.get("text", "sentence"), "label"):
        if column not in names:
            raise DataError(f"{path}: expected columns sentence, maybe sentence2, and label; it has {_listed(names)}")
    labels = {row.values[0] for row in read_table(path, ["label"])}
    regression = all(_is_real(label) for label in labels) and any("." in label for label in labels)
    return _labelled(path, TextRegression(**fields) if regression else TextClassification(**fields), _tokenizer(model))


def _multi30k(path: str, length: int, model: Model) -> Task:
    folder = data_folder("multi30k", path, ("mt/multi30k", "multi30k"), lambda folder: any(folder.glob("val.en*")))
    config = ParallelText(
        train=f"{folder}/train", validation=f"{folder}/val", source="en", target="de", max_length=length
    )
    return _labelled("multi30k", config, _tokenizer(model))


def _translation(path: str, length: int, model: Model) -> Task:
    prefix, _, languages = path.rpartition(":")
    source, _, target = languages.partition("-")
    if not prefix or not target:
        raise HeadjaxError(f"task: expected translation:PATH:SOURCE-TARGET (data/newstest:de-en), got {path!r}")
    config = ParallelText(validation=prefix, source=source, target=target, max_length=length)
    return _labelled(prefix, config, _tokenizer(model))


def _labelled(name: str, config: DataConfig, tokenizer: Tokenizer | None) -> Task:
    data = config.load(tokenizer)
    measure = measure_of(config, data)
    if measure is None:
        raise HeadjaxError(f"{name}: nothing is measured on this data")
    return Task(name, data, measure)


NAMED: Mapping[str, Builder] = {
    "python": lambda path, length, model: _language("", length, model),
    **{name: _glue(name) for name in GLUE},
    SIMILARITY: _glue("stsb", similarity=True),
    "multi30k": _multi30k,
    "translation": _translation,
    "mnist": lambda path, length, model: _labelled("mnist", Mnist(path=path), None),
}
"""Tasks by name."""


def _length(model: Model) -> int:
    embeddings: Any = getattr(model.config, "embeddings", None)
    reach = getattr(getattr(embeddings, "positions", None), "max_length", LENGTH)
    return min(LENGTH, int(reach))


def _tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise HeadjaxError("task: the model has no tokenizer, so it cannot read text")
    tokenizer: Tokenizer = model.tokenizer
    return tokenizer


def _is_real(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8])
