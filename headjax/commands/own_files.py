"""Options of `headjax finetune` about the user's files; no file is read here."""

from __future__ import annotations

import dataclasses
from typing import Literal

from headjax.commands.options import CommandOptions, option
from headjax.core.fields import Size

LabelTask = Literal["classification", "pairs", "multi_label", "regression", "similarity"]
"""Tasks whose files are tables with a label; `pairs` is a classification of pairs of texts."""

OwnTask = Literal[LabelTask, "retrieval", "tokens", "questions", "translation", "text", "images"]
"""Tasks that a model can be fine-tuned for on one's own files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFiles(CommandOptions):
    """Options that name the files to train on."""

    train: str = option(help="table, SQuAD's JSON, text or folder of images to train on", metavar="FILE", reads="task")
    validation: str = option(
        "", "file to evaluate on (default: some of the training file is held out)", "FILE", reads="task"
    )
    task: OwnTask | None = option(None, "what to train for (default: by the file's columns and the model)")
    columns: tuple[str, ...] = option(
        (), "columns of a table: TEXT,LABEL or TEXT,SECOND,LABEL or SOURCE,TARGET (default: by name)", "NAMES"
    )
    length: Size | None = option(
        None, "cut texts to N tokens (default: the model's positions, at most 512; questions 384, translations 128)"
    )
