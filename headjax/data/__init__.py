"""Data in four steps: rows (files, TFDS), forms that encode them, records (in memory, in shards), streams (Grain)."""

from headjax.data.known_data import Glue, ImageFiles, Mnist, Rehearsal
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.prepared import PreparedData
from headjax.data.task import DataConfig, Source, TaskData
from headjax.data.text_data import LanguageConfig, ParallelText, PretrainingText, QuestionAnswering
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
