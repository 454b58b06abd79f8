"""Attention formulations: one file each, all of them `Attention`s, all of them ending in the one `attend`."""

from headjax.attention.attend import Attended, Dropout, attend
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.collaborative import Collaborative
from headjax.attention.explain import explain
from headjax.attention.gated import Gated
from headjax.attention.grouped import Grouped
from headjax.attention.latent import Latent
from headjax.attention.mask import Mask
from headjax.attention.mixing import Concatenate
from headjax.attention.multi_head import MultiHead
from headjax.attention.no_heads import NoHeads
from headjax.attention.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryHalves, RotaryInterleaved
from headjax.attention.talking import Talking
from headjax.attention.tucker import Tucker

__all__ = [
    "Attended",
    "Attention",
    "Call",
    "Collaborative",
    "Concatenate",
    "Dropout",
    "Gated",
    "Grouped",
    "Latent",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "Memory",
    "MultiHead",
    "NoHeads",
    "Rotary",
    "RotaryHalves",
    "RotaryInterleaved",
    "Talking",
    "Tucker",
    "attend",
    "explain",
]
