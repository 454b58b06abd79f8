"""Names of the tasks that a model can be fine-tuned for on one's own files."""

from __future__ import annotations

from typing import Literal

OwnTask = Literal[
    "classification",
    "pairs",
    "multi_label",
    "regression",
    "similarity",
    "retrieval",
    "tokens",
    "questions",
    "translation",
    "text",
]
"""Tasks of `headjax finetune`; `pairs` is a classification of pairs of texts."""
