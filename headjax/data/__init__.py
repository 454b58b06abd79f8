"""Data in four steps: rows (files, TFDS), forms that encode them, records (in memory, in shards), streams (Grain).

>>> headjax.data.TASKS["sst2"].form.classes
('negative', 'positive')
"""

from headjax.data.config import DataConfig
from headjax.data.examples import ExampleSource, TaskData
from headjax.data.registry import TASKS
from headjax.data.spec import TaskSpec
from headjax.tokenizers.tokenizer import Tokenizer

__all__ = ["TASKS", "DataConfig", "ExampleSource", "TaskData", "TaskSpec", "Tokenizer"]
