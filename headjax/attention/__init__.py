"""Attention formulations: frozen configs (`Attention`) and their Flax modules, which all compute in `attend`."""

from headjax.attention.attend import Call, attend
from headjax.attention.collaborative import Collaborative, CollaborativeAttention, Concatenate
from headjax.attention.compressed import Compressed, CompressedAttention
from headjax.attention.formulation import Attention, KeyValues
from headjax.attention.gated import Gated, GatedAttention
from headjax.attention.latent import Latent, LatentAttention
from headjax.attention.module import AttentionCache, AttentionModule, NoHeads, NoHeadsAttention
from headjax.attention.multi_head import Grouped, GroupedAttention, MultiHead, MultiHeadAttention
from headjax.attention.operands import Attended, Dropout, Mask
from headjax.attention.projections import HeadOutput
from headjax.attention.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryHalves, RotaryInterleaved, YarnScaling

__all__ = [
    "Attended",
    "Attention",
    "AttentionCache",
    "AttentionModule",
    "Call",
    "Collaborative",
    "CollaborativeAttention",
    "Compressed",
    "CompressedAttention",
    "Concatenate",
    "Dropout",
    "Gated",
    "GatedAttention",
    "Grouped",
    "GroupedAttention",
    "HeadOutput",
    "KeyValues",
    "Latent",
    "LatentAttention",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "MultiHead",
    "MultiHeadAttention",
    "NoHeads",
    "NoHeadsAttention",
    "Rotary",
    "RotaryHalves",
    "RotaryInterleaved",
    "YarnScaling",
    "attend",
]
