"""Read and write Hugging Face directories (`config.json`, safetensors, tokenizer files) without PyTorch."""

from headjax.hub.exporting import Exported, to_huggingface
from headjax.hub.importing import from_huggingface

__all__ = ["Exported", "from_huggingface", "to_huggingface"]
