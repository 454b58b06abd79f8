"""Text and images in, batches out: corpora, tables, tokenizers and Grain readers."""

from headjax.data.glue import Glue
from headjax.data.image_files import ImageFiles
from headjax.data.images import Mnist
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.language import LanguageConfig
from headjax.data.parallel_text import ParallelText
from headjax.data.prepared.data import PreparedData
from headjax.data.pretraining_text import PretrainingText
from headjax.data.question_answering import QuestionAnswering
from headjax.data.rehearsal import Rehearsal
from headjax.data.task import DataConfig, Source, TaskData
from headjax.tokenizers.tokenizer import Tokenizer

__all__ = [
    "DataConfig",
    "Glue",
    "ImageFiles",
    "LanguageConfig",
    "Mnist",
    "ParallelText",
    "PreparedData",
    "PretrainingText",
    "QuestionAnswering",
    "Rehearsal",
    "Source",
    "TaskData",
    "TextClassification",
    "TextRegression",
    "TextSimilarity",
    "Tokenizer",
]
