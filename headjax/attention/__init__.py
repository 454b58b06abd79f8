"""Attention formulations: one file each, all of them `Attention`s, all of them ending in the one `attend`."""

from headjax.attention.attend import Attended, Dropout, attend
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.collaborative import Collaborative
from headjax.attention.mask import Mask
from headjax.attention.multi_head import MultiHead
from headjax.attention.no_heads import NoHeads

__all__ = [
    "Attended",
    "Attention",
    "Call",
    "Collaborative",
    "Dropout",
    "Mask",
    "Memory",
    "MultiHead",
    "NoHeads",
    "attend",
]
