"""The families of Hugging Face models that can be read and written."""

from __future__ import annotations

from headjax.hub.families.albert import AlbertFamily
from headjax.hub.families.bart import BartFamily, MarianFamily
from headjax.hub.families.bert import BertFamily
from headjax.hub.families.distilbert import DistilBertFamily
from headjax.hub.families.gpt2 import Gpt2Family
from headjax.hub.families.llama import LlamaFamily, MistralFamily, Qwen2Family, Qwen3Family
from headjax.hub.families.roberta import RobertaFamily
from headjax.hub.families.t5 import T5Family
from headjax.hub.families.vit import DeitFamily, VitFamily
from headjax.hub.family import Family

FAMILIES: tuple[Family, ...] = (
    BertFamily("bert", "Bert"),
    DistilBertFamily("distilbert", "DistilBert"),
    RobertaFamily("roberta", "Roberta"),
    RobertaFamily("xlm-roberta", "XLMRoberta"),
    RobertaFamily("camembert", "Camembert"),
    AlbertFamily("albert", "Albert"),
    Gpt2Family("gpt2", "GPT2"),
    LlamaFamily("llama", "Llama"),
    MistralFamily("mistral", "Mistral"),
    Qwen2Family("qwen2", "Qwen2"),
    Qwen3Family("qwen3", "Qwen3"),
    BartFamily("bart", "Bart"),
    MarianFamily("marian", "Marian"),
    T5Family("t5", "T5"),
    T5Family("mt5", "MT5", scales=False),
    VitFamily("vit", "ViT"),
    DeitFamily("deit", "DeiT"),
)
"""All of them; of two that can express a model, the first is taken unless another is asked for."""
