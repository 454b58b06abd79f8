"""Attention formulations: Flax modules, which all compute in `attend`; a config holds a `Kind` of them.

>>> headjax.nn.RotaryHalves().base
10000.0
"""

from headjax.core.fields import Listed, Size
from headjax.core.kind import Kind
from headjax.core.tensors import Normal, Ones, weight
from headjax.nn.attend import AttentionOptions, attend
from headjax.nn.collaborative import CollaborativeAttention, Concatenate
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.latent import CompressedAttention, LatentAttention
from headjax.nn.module import AttentionCache, AttentionModule, Ids, NoHeadsAttention, formulation
from headjax.nn.multi_head import GroupedAttention, MultiHeadAttention
from headjax.nn.norms import LayerNorm, RMSNorm
from headjax.nn.operands import Attended, Dropout, KeyValues, Mask
from headjax.nn.projections import HeadOutput
from headjax.nn.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryHalves, RotaryInterleaved, YarnScaling

__all__ = [
    "Attended",
    "AttentionCache",
    "AttentionModule",
    "AttentionOptions",
    "CollaborativeAttention",
    "CompressedAttention",
    "Concatenate",
    "Dropout",
    "GroupedAttention",
    "HeadOutput",
    "Ids",
    "KeyValues",
    "Kind",
    "LatentAttention",
    "LayerNorm",
    "LinearScaling",
    "Listed",
    "Llama3Scaling",
    "Mask",
    "MultiHeadAttention",
    "NoHeadsAttention",
    "Normal",
    "Ones",
    "RMSNorm",
    "RelativeBuckets",
    "Rotary",
    "RotaryHalves",
    "RotaryInterleaved",
    "Size",
    "YarnScaling",
    "attend",
    "formulation",
    "weight",
]
