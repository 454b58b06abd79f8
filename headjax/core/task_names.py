"""Names of the tasks that a model can be fine-tuned for on one's own files."""

from __future__ import annotations

from typing import Literal

LabelTask = Literal["classification", "pairs", "multi_label", "regression", "similarity"]
"""Tasks whose files are tables with a label; `pairs` is a classification of pairs of texts."""

OwnTask = Literal[LabelTask, "retrieval", "tokens", "questions", "translation", "text"]
"""Tasks of `headjax finetune`."""
