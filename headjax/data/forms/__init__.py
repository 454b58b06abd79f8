"""Forms, which encode the rows of each kind of task as examples. A task is encoded here and nowhere else."""

from headjax.data.forms.form import Encoded, Form, SequenceForm
from headjax.data.forms.images import ImageForm
from headjax.data.forms.labelled import LabelledForm, MultiLabelForm, RetrievalForm, SimilarityForm, TagForm, TextsForm
from headjax.data.forms.language import LanguageForm, TranslationForm, WikitextForm
from headjax.data.forms.pretraining import PretrainingForm
from headjax.data.forms.questions import QuestionForm

__all__ = [
    "Encoded", "Form", "ImageForm", "LabelledForm", "LanguageForm", "MultiLabelForm", "PretrainingForm", "QuestionForm",
    "RetrievalForm", "SequenceForm", "SimilarityForm", "TagForm", "TextsForm", "TranslationForm", "WikitextForm",
]  # fmt: skip
