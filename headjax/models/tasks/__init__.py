"""Task outputs of encoders: one small class per task, with its logits and its loss.

>>> headjax.tasks.Classification(classes=3).label_smoothing
0.0
"""

from headjax.models.tasks.classification import (
    Classification,
    DistilledClassification,
    MultiLabel,
    Regression,
    TokenClassification,
)
from headjax.models.tasks.similarity import Dense, SentenceSimilarity
from headjax.models.tasks.task_output import Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.text import MaskedLanguageModel, Pretraining, Span

__all__ = [
    "Classification",
    "Dense",
    "DistilledClassification",
    "Features",
    "MaskedLanguageModel",
    "MultiLabel",
    "NoTask",
    "Pretraining",
    "Regression",
    "SentenceSimilarity",
    "Span",
    "TaskOutput",
    "TokenClassification",
    "Vocabulary",
]
