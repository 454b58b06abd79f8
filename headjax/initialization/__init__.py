"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.initialization.admin import Admin, AdminConstant, constant_omega
from headjax.initialization.deep_norm import DeepNorm
from headjax.initialization.initialization import Initialization, Setting
from headjax.initialization.source import ModelSource

__all__ = [
    "Admin",
    "AdminConstant",
    "DeepNorm",
    "Initialization",
    "ModelSource",
    "Setting",
    "constant_omega",
]
