"""GLUE's tasks (Wang et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.forms.labelled import LabelledForm
from headjax.data.glue import GLUE, Glue
from headjax.data.rows import Rows, RowSource, Split
from headjax.data.tables import header
from headjax.data.tasks.local import local_rows
from headjax.data.tasks.spec import TaskSpec, TfdsSource
from headjax.data.text_files import find_files

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
"""The texts' features in TFDS."""


def local_glue(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """GLUE's own files in one of the layouts of `headjax.data.glue`, or tables and TFRecords of the task's fields."""
    name = spec.name.partition("_")[0]
    try:
        table = Glue(name=name, path=str(paths[0])).table()
    except DataError:
        return local_rows(spec, paths)
    if {*spec.form.wanted} <= {*header(find_files(table.path)[0])}:
        return local_rows(spec, paths)
    return {split: RowSource.of(rows) for split, rows in table.rows(table.read()).items()}


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
    """What a field's column is called in GLUE's own files."""
    names = dict.fromkeys(getattr(layout, field) for layout in GLUE[name].layouts)
    return tuple(name for name in names if not name.isdecimal())


TASKS = (*(_spec(name) for name in GLUE), _spec("mnli", mismatched=True))
