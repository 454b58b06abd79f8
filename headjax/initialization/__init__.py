"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.initialization.initialization import (
    Admin,
    AdminConstant,
    DeepNorm,
    Initialization,
    ModelSource,
    Setting,
    constant_omega,
)

__all__ = ["Admin", "AdminConstant", "DeepNorm", "Initialization", "ModelSource", "Setting", "constant_omega"]
