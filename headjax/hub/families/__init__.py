"""The families of Hugging Face models that can be read and written."""

from __future__ import annotations

from headjax.hub.families.bart import BART, MARIAN
from headjax.hub.families.bert import ALBERT, BERT, CAMEMBERT, DISTILBERT, ELECTRA, MPNET, ROBERTA, XLM_ROBERTA
from headjax.hub.families.clip import CLIP_TEXT, CLIP_VISION
from headjax.hub.families.gemma import GEMMA2, GEMMA3_TEXT
from headjax.hub.families.gpt2 import GPT2
from headjax.hub.families.gpt_neox import GPT_NEOX
from headjax.hub.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3
from headjax.hub.families.modernbert import MODERNBERT
from headjax.hub.families.nomic import NOMIC_BERT
from headjax.hub.families.phi3 import PHI3
from headjax.hub.families.remote import CODE, REMOTE
from headjax.hub.families.t5 import MT5, T5
from headjax.hub.families.vit import DEIT, DINOV2, VIT
from headjax.hub.family import Family

__all__ = ["CODE", "FAMILIES", "REMOTE"]

FAMILIES: tuple[Family, ...] = (
    BERT,
    DISTILBERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    MPNET,
    ELECTRA,
    ALBERT,
    MODERNBERT,
    NOMIC_BERT,
    GPT2,
    GPT_NEOX,
    LLAMA,
    MISTRAL,
    QWEN3,
    SMOLLM3,
    PHI3,
    GEMMA2,
    GEMMA3_TEXT,
    QWEN2,  # whose class splits texts in its own way, whatever tokenizer.json says
    BART,
    MARIAN,
    T5,
    MT5,
    VIT,
    DEIT,
    DINOV2,
    CLIP_TEXT,
    CLIP_VISION,
)
"""All families. Where two can express a model, the first is taken unless another is asked for."""
