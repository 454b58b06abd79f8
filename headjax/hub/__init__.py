"""Hugging Face directories in and out: `config.json`, safetensors and tokenizer files, without PyTorch."""

from headjax.hub.exporting import to_huggingface
from headjax.hub.importing import from_huggingface
from headjax.hub.results import Exported

__all__ = ["Exported", "from_huggingface", "to_huggingface"]
