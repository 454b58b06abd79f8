"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.initialization.initialization import (
    Admin,
    AdminConstant,
    DeepNorm,
    Initialization,
    Setting,
    constant_omega,
)
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
