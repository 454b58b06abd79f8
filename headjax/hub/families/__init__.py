"""The families of Hugging Face models that can be read and written."""

from __future__ import annotations

from headjax.hub.families.bert import ALBERT, BERT, CAMEMBERT, DISTILBERT, ELECTRA, MPNET, ROBERTA, XLM_ROBERTA
from headjax.hub.families.encoder_decoder import BART, MARIAN, MT5, T5
from headjax.hub.families.gpt import GPT2, GPT_NEOX
from headjax.hub.families.llama import GEMMA2, GEMMA3_TEXT, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, SMOLLM3
from headjax.hub.families.modernbert import MODERNBERT, NOMIC_BERT
from headjax.hub.families.remote import CODE, REMOTE
from headjax.hub.families.vit import CLIP_TEXT, CLIP_VISION, DEIT, DINOV2, VIT
from headjax.hub.family import Family

__all__ = ["CODE", "FAMILIES", "REMOTE"]

_ENCODERS = (BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, MPNET, ELECTRA, ALBERT, MODERNBERT, NOMIC_BERT)
_DECODERS = (GPT2, GPT_NEOX, LLAMA, MISTRAL, QWEN3, SMOLLM3, PHI3, GEMMA2, GEMMA3_TEXT)
_IMAGES = (VIT, DEIT, DINOV2, CLIP_TEXT, CLIP_VISION)
# The class of Qwen2 splits texts in its own way, whatever tokenizer.json says, so it comes last.
FAMILIES: tuple[Family, ...] = (*_ENCODERS, *_DECODERS, QWEN2, BART, MARIAN, T5, MT5, *_IMAGES)
"""All families. Where two can express a model, the first is taken unless another is asked for."""
