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
from headjax.models.tasks.task_output import (
    Features,
    MaskedLanguageModel,
    NoTask,
    Pretraining,
    Span,
    TaskOutput,
    Vocabulary,
)

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
