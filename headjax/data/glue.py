"""GLUE's tasks (Wang et al. 2019): their files, columns, classes and metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.class_names import find_class, reorder, tell_nothing
from headjax.core.errors import DataError, require
from headjax.core.fields import Size
from headjax.core.serialize import kind, unknown_name
from headjax.data.files import candidate_folders, find_files, missing
from headjax.data.forms.labelled import LabelledForm
from headjax.data.labelled_text import LabelledText, TextClassification, TextRegression, TextSimilarity
from headjax.data.rows import Rows, RowSource, Split
from headjax.data.tables import header
from headjax.data.task import DataConfig, TaskData
from headjax.data.task_spec import TaskSpec, TfdsSource, local_rows
from headjax.tokenizers.tokenizer import Tokenizer


class FileLayout(NamedTuple):
    """Files of a task, as one of its distributions has them.

    Attributes:
        train, validation: file names or patterns in the task's folder; `train` alone is split.
        text, second, label: columns.
    """

    train: str
    validation: str
    text: str
    second: str
    label: str


class GlueTask(NamedTuple):
    """Description of a task.

    Attributes:
        folders: folders under the root in which it is looked for.
        layouts: layouts of its files, in order of preference.
        metrics: names of metrics of `headjax.evaluation.measures`; the first is the headline.
        classes: labels in the files in the order of the class numbers; empty for a regression.
        class_names: names of the classes, in the same order.
    """

    folders: tuple[str, ...]
    layouts: tuple[FileLayout, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    classes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


def _task(name: str, *layouts: FileLayout, folders: tuple[str, ...] = (), **fields: Any) -> GlueTask:
    """Return a task whose folder has GLUE's name for it, or one of the others."""
    return GlueTask((f"glue/{name}", name, *folders), layouts, **fields)


def _own(text: str, second: str, label: str) -> FileLayout:
    """Return the layout of GLUE's own two files."""
    return FileLayout("train.tsv", "dev.tsv", text, second, label)


_MRPC = ("#1 String", "#2 String", "Quality")

GLUE: Mapping[str, GlueTask] = {
    "cola": _task(
        "CoLA",
        _own("3", "", "1"),
        FileLayout("in_domain_train.tsv", "*_domain_dev.tsv", "3", "", "1"),
        metrics=("matthews", "accuracy"),
        classes=("0", "1"),
        class_names=("unacceptable", "acceptable"),
    ),
    "sst2": _task(
        "SST-2",
        FileLayout("train.tsv", "dev_glue.tsv", "sentence", "", "label"),
        _own("sentence", "", "label"),
        classes=("0", "1"),
        class_names=("negative", "positive"),
    ),
    "mrpc": _task(
        "MRPC",
        _own(*_MRPC),
        FileLayout("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", *_MRPC),
        FileLayout("msr_paraphrase_train.txt", "", *_MRPC),
        metrics=("f1", "accuracy"),
        classes=("0", "1"),
        class_names=("not_equivalent", "equivalent"),
    ),
    "stsb": _task(
        "STS-B",
        _own("sentence1", "sentence2", "score"),
        FileLayout("stsb-en-train.csv", "stsb-en-dev.csv", "0", "1", "2"),
        metrics=("spearman", "pearson"),
    ),
    "qqp": _task(
        "QQP",
        _own("question1", "question2", "is_duplicate"),
        metrics=("accuracy", "f1"),
        classes=("0", "1"),
        class_names=("not_duplicate", "duplicate"),
    ),
    "mnli": _task(
        "MNLI",
        FileLayout("train.tsv", "dev_matched.tsv", "sentence1", "sentence2", "gold_label"),
        FileLayout("mnli_dev_matched_gold.tsv", "", "premise", "hypothesis", "gold_label"),
        folders=("nli",),
        classes=_NLI,
        class_names=_NLI,
    ),
    "qnli": _task("QNLI", _own("question", "sentence", "label"), classes=_ENTAILMENT, class_names=_ENTAILMENT),
    "rte": _task("RTE", _own("sentence1", "sentence2", "label"), classes=_ENTAILMENT, class_names=_ENTAILMENT),
}
"""The tasks by name. Class numbers are those of Hugging Face's GLUE, so that published models fit."""


@kind("glue")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Glue(DataConfig):
    """A task of GLUE from local files.

    Attributes:
        name: a name of `GLUE`.
        path: the task's folder; empty looks for it under the folder that the environment variable HEADJAX_DATA names.
        similarity: for `stsb`, whether each sentence is read by itself and labels are divided by 5.
        max_length: number of tokens of an example.
        vocabulary, buckets: see `LabelledText`.
        classes: the task's class names in a model's order; empty for GLUE's.
    """

    name: str
    path: str = ""
    similarity: bool = False
    max_length: Size = 128
    vocabulary: str = ""
    buckets: tuple[Size, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.name in GLUE, "name", unknown_name("GLUE task", self.name, GLUE))
        require(not self.similarity or self.name == "stsb", "similarity", "only stsb has similarities as labels")
        known = ", ".join(GLUE[self.name].class_names)
        ordered = not self.classes or reorder(self.classes, GLUE[self.name].class_names) is not None
        require(ordered, "classes", f"the classes of {self.name} are {known}, got {', '.join(self.classes)}")

    def for_classes(self, names: Sequence[str]) -> Glue:
        own = GLUE[self.name].class_names
        if tell_nothing(names) or not own:
            return self
        if reorder(names, own) is None:
            raise DataError(f"{self.name}: its classes are {', '.join(own)}; the model's are {', '.join(names)}")
        return dataclasses.replace(self, classes=tuple(names))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        task = GLUE[self.name]
        table = self.table()
        metrics = () if self.similarity else task.metrics
        data = table.load_table(table.read(quotes=False), tokenizer, metrics)
        if not self.classes or data.measured is None:
            return data
        # GLUE's F1 is that of its class 1, whatever number the model has for it.
        positive = find_class(task.class_names[1], self.classes)
        arguments = {**data.measured.arguments, "positive": positive}
        return data._replace(measured=data.measured._replace(arguments=arguments))

    def table(self) -> LabelledText:
        """Return the task's files as a table.

        Raises:
            DataError: the files are not found.
        """
        task = GLUE[self.name]
        folder, layout = self._find(task)
        fields: dict[str, Any] = {
            "path": str(folder / layout.train),
            "validation": str(folder / layout.validation) if layout.validation else "",
            "validation_fraction": 0.2,
            "text": layout.text,
            "second": layout.second,
            "label": layout.label,
            "max_length": self.max_length,
            "vocabulary": self.vocabulary,
            "buckets": self.buckets,
        }
        if self.similarity:
            return TextSimilarity(**fields, scale=5.0)
        if not task.classes:
            return TextRegression(**fields)
        table = TextClassification(**fields, classes=task.classes, names=task.class_names)
        return table.for_classes(self.classes) if self.classes else table

    def _find(self, task: GlueTask) -> tuple[Path, FileLayout]:
        for folder in candidate_folders(self.path, task.folders):
            for layout in task.layouts:
                if all(_exists(folder, name) for name in (layout.train, layout.validation) if name):
                    return folder, layout
        wanted = " or ".join(" and ".join(filter(None, layout[:2])) for layout in task.layouts)
        raise missing(self.name, self.path, task.folders, wanted)


def _exists(folder: Path, pattern: str) -> bool:
    try:
        return bool(find_files(folder / pattern))
    except DataError:
        return False


FIELDS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
}
"""Features of the texts in TFDS."""


def local_glue(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of GLUE's own files in one of their layouts, or of tables and TFRecords of the task's fields."""
    name = spec.name.partition("_")[0]
    try:
        table = Glue(name=name, path=str(paths[0])).table()
    except DataError:
        return local_rows(spec, paths)
    if {*spec.form.wanted} <= {*header(find_files(table.path)[0])}:
        return local_rows(spec, paths)
    return {split: RowSource.of(rows) for split, rows in table.numbered(table.read(quotes=False)).items()}


def _spec(name: str, mismatched: bool = False) -> TaskSpec:
    features = FIELDS[name]
    fields = {**dict(zip(("text", "second"), features, strict=False)), "label": "label"}
    held = "validation_matched" if name == "mnli" else "validation"
    splits: Mapping[Split, str] = {"train": "train", "validation": held}
    if mismatched:
        splits = {"validation": "validation_mismatched"}
    return TaskSpec(
        name=f"{name}_mismatched" if mismatched else name,
        form=LabelledForm(pairs=len(features) == 2, classes=GLUE[name].class_names),
        local=local_rows if mismatched else local_glue,
        sources=(TfdsSource(f"glue/{name}:2.0.0", splits, fields),),
        metrics=GLUE[name].metrics,
        files="" if mismatched else "GLUE's own files",
        columns={field: _columns(name, field) for field in fields},
    )


def _columns(name: str, field: str) -> tuple[str, ...]:
    """Return the names of a field's column in GLUE's own files."""
    names = dict.fromkeys(getattr(layout, field) for layout in GLUE[name].layouts)
    return tuple(name for name in names if not name.isdecimal())


GLUE_TASKS = (*(_spec(name) for name in GLUE), _spec("mnli", mismatched=True))
