"""Text in, batches out: corpora, tokenizers and Grain readers."""

from headjax.data.language import LanguageConfig
from headjax.data.task import DataConfig, Source, TaskData
from headjax.data.tokenizers import Tokenizer

__all__ = ["DataConfig", "LanguageConfig", "Source", "TaskData", "Tokenizer"]
