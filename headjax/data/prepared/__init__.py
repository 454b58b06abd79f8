"""Tasks prepared once: tokenised shards on disk, what wrote them and what reads them."""

from headjax.data.prepared.data import PreparedData
from headjax.data.prepared.form import Encoded, Form, Split
from headjax.data.prepared.images import ImageForm
from headjax.data.prepared.labelled import LabelledForm
from headjax.data.prepared.language import LanguageForm
from headjax.data.prepared.manifest import Manifest, is_prepared, read_manifest
from headjax.data.prepared.pretraining import PretrainingForm
from headjax.data.prepared.questions import QuestionForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.prepared.translation import TranslationForm

__all__ = [
    "Encoded",
    "Form",
    "ImageForm",
    "LabelledForm",
    "LanguageForm",
    "Manifest",
    "PreparedData",
    "PretrainingForm",
    "QuestionForm",
    "RowSource",
    "Split",
    "TaskRow",
    "TranslationForm",
    "is_prepared",
    "read_manifest",
]
