"""Task outputs of encoders: one small class per task, with its logits and its loss."""

from headjax.models.tasks.base import Features, Logits, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.classification import Classification, Regression, TokenClassification
from headjax.models.tasks.distilled import DistilledClassification
from headjax.models.tasks.masked import MaskedLanguageModel, Pretraining
from headjax.models.tasks.similarity import SentenceSimilarity
from headjax.models.tasks.span import Span

__all__ = [
    "Classification",
    "DistilledClassification",
    "Features",
    "Logits",
    "MaskedLanguageModel",
    "NoTask",
    "Pretraining",
    "Regression",
    "SentenceSimilarity",
    "Span",
    "TaskOutput",
    "TokenClassification",
    "Vocabulary",
]
