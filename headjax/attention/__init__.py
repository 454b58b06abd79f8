"""Attention formulations: frozen configs (`Attention`) that all compute their softmax in `attend`."""

from headjax.attention.attend import Call, attend
from headjax.attention.collaborative import Collaborative, Concatenate, Tucker
from headjax.attention.compressed import Compressed
from headjax.attention.explain import explain
from headjax.attention.formulation import Attention, KeyValues, NoHeads
from headjax.attention.gated import Gated
from headjax.attention.latent import Latent
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.operands import Attended, Dropout, Mask
from headjax.attention.rotary import LinearScaling, Llama3Scaling, Rotary, RotaryHalves, RotaryInterleaved, YarnScaling
from headjax.attention.shared_rotary import SharedRotary
from headjax.attention.talking import Talking

__all__ = [
    "Attended",
    "Attention",
    "Call",
    "Collaborative",
    "Compressed",
    "Concatenate",
    "Dropout",
    "Gated",
    "Grouped",
    "Latent",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "KeyValues",
    "MultiHead",
    "NoHeads",
    "Rotary",
    "RotaryHalves",
    "RotaryInterleaved",
    "SharedRotary",
    "Talking",
    "Tucker",
    "YarnScaling",
    "attend",
    "explain",
]
