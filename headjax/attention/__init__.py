"""Attention formulations: Flax modules, which all compute in `attend`; a config holds a `Kind` of them."""

from headjax.attention.attend import Call, attend
from headjax.attention.collaborative import CollaborativeAttention, Concatenate
from headjax.attention.compressed import CompressedAttention
from headjax.attention.gated import GatedAttention
from headjax.attention.latent import LatentAttention
from headjax.attention.module import AttentionCache, AttentionModule, Ids, NoHeadsAttention, formulation
from headjax.attention.multi_head import GroupedAttention, MultiHeadAttention
from headjax.attention.operands import Attended, Dropout, KeyValues, Mask
from headjax.attention.projections import HeadOutput
from headjax.attention.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryHalves, RotaryInterleaved, YarnScaling
from headjax.core.kind import Kind

__all__ = [
    "Attended",
    "AttentionCache",
    "AttentionModule",
    "Call",
    "CollaborativeAttention",
    "CompressedAttention",
    "Concatenate",
    "Dropout",
    "GatedAttention",
    "GroupedAttention",
    "HeadOutput",
    "Ids",
    "KeyValues",
    "Kind",
    "LatentAttention",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "MultiHeadAttention",
    "NoHeadsAttention",
    "Rotary",
    "RotaryHalves",
    "RotaryInterleaved",
    "YarnScaling",
    "attend",
    "formulation",
]
