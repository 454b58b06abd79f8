"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.initialization.admin import Admin
from headjax.initialization.admin_constant import AdminConstant, constant_omega
from headjax.initialization.architecture import architecture
from headjax.initialization.base import Initialization, Setting
from headjax.initialization.deep_norm import DeepNorm
from headjax.initialization.ds_init import DSInit
from headjax.initialization.layer_scale import LayerScale
from headjax.initialization.re_zero import ReZero
from headjax.initialization.t_fixup import TFixup

__all__ = [
    "Admin",
    "AdminConstant",
    "DSInit",
    "DeepNorm",
    "Initialization",
    "LayerScale",
    "ReZero",
    "Setting",
    "TFixup",
    "architecture",
    "constant_omega",
]
