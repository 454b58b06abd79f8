"""headjax: how many attention heads does a Transformer need, how large, and what can they share?

Names are imported on first use, so that `import headjax` stays fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from headjax.version import __version__

_LAZY = {
    "AttentionAdapter": "headjax.heads.replacing",
    "AttentionSite": "headjax.heads.site",
    "Batch": "headjax.models.config",
    "Budget": "headjax.shrinking.shrink",
    "CollaborativeAttention": "headjax.nn.collaborative",
    "CompressedAttention": "headjax.nn.compressed",
    "Compute": "headjax.nn.compute",
    "DecoderConfig": "headjax.models.decoder",
    "EncoderConfig": "headjax.models.encoder",
    "EncoderDecoderConfig": "headjax.models.encoder_decoder",
    "GatedAttention": "headjax.nn.gated",
    "Greedy": "headjax.models.sampling",
    "GroupedAttention": "headjax.nn.multi_head",
    "HeadId": "headjax.heads.head_id",
    "HeadjaxError": "headjax.core.errors",
    "Kind": "headjax.core.kind",
    "LatentAttention": "headjax.nn.latent",
    "MeshConfig": "headjax.mesh.mesh",
    "Model": "headjax.models.model",
    "ModelConfig": "headjax.models.config",
    "MultiHeadAttention": "headjax.nn.multi_head",
    "Sample": "headjax.models.sampling",
    "Task": "headjax.evaluation.task",
    "Tokenizer": "headjax.tokenizers.tokenizer",
    "TrainConfig": "headjax.training.config",
    "VisionConfig": "headjax.models.vision",
    "ablate": "headjax.heads.ablating",
    "all_heads": "headjax.heads.head_id",
    "attention_sites": "headjax.heads.discovery",
    "beam_search": "headjax.models.beam",
    "convert": "headjax.conversion",
    "demo_model": "headjax.hub.demo_model",
    "distill": "headjax.training.distillation",
    "evaluate": "headjax.evaluation.task",
    "evaluate_task": "headjax.evaluation.task",
    "evaluation_batches": "headjax.data.stream",
    "from_huggingface": "headjax.hub.importing",
    "generate": "headjax.models.generation",
    "gated": "headjax.heads.program",
    "learn_gates": "headjax.heads.learning",
    "load": "headjax.models.model",
    "load_config": "headjax.training.config_file",
    "load_task": "headjax.evaluation.specs",
    "map_attention": "headjax.heads.surgery",
    "measure_task": "headjax.evaluation.task",
    "order_heads": "headjax.heads.orders",
    "prune": "headjax.heads.removal",
    "read_tokenizer": "headjax.tokenizers.files",
    "reconstruct": "headjax.heads.reconstruct",
    "reconstruction_order": "headjax.heads.reconstruction_order",
    "register_attention": "headjax.heads.discovery",
    "replace_attention": "headjax.heads.replacing",
    "report_heads": "headjax.head_report.modules",
    "score_heads": "headjax.heads.scoring",
    "shrink": "headjax.shrinking.shrink",
    "split_task": "headjax.evaluation.selection",
    "summarize": "headjax.models.summary",
    "text_batch": "headjax.data.examples",
    "to_huggingface": "headjax.hub.exporting",
    "train": "headjax.training.loop",
    "train_config": "headjax.training.config",
    "translate": "headjax.evaluation.translation",
    "with_task": "headjax.models.new_task",
}

_MODULES = {"plots": "headjax.plots"}
"""Modules with a short public name."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'headjax' has no attribute {name!r}")
    found = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_MODULES])


__all__ = ["__version__", *_LAZY, *_MODULES]  # noqa: PLE0604
