"""BERT-shaped models for the benchmarks."""

from __future__ import annotations

from headjax.attention.multi_head import MultiHead
from headjax.models.config import ModelConfig
from headjax.models.encoder import Bert
from headjax.models.outputs import Pooler
from headjax.models.sublayers import Dense
from headjax.models.tasks import MaskedLanguageModel, TaskOutput


def bert(
    num_heads: int,
    num_layers: int,
    *,
    width: int = 768,
    hidden: int = 3072,
    task: TaskOutput = MaskedLanguageModel(),
    dropout: float = 0.0,
) -> ModelConfig:
    """BERT with heads of 64.

    Args:
        num_heads: heads a layer.
        num_layers: layers.
        width: size of the residual stream.
        hidden: inner feed-forward size.
        task: its output.
        dropout: rate everywhere; benchmarks against other libraries leave it at 0, since generators differ.
    """
    return Bert(
        width=width,
        num_layers=num_layers,
        attention=MultiHead(num_heads=num_heads, head_dim=64),
        feed_forward=Dense(hidden),
        pooler=Pooler() if task.needs_pooler else None,
        task=task,
        dropout=dropout,
        attention_dropout=dropout,
    ).build()
