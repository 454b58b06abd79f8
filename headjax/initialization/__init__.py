"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.heads.deepen import Deep  # a config names `deep` among the recipes, so every run has to know it
from headjax.initialization.admin import Admin, AdminConstant, constant_omega
from headjax.initialization.initialization import Initialization, Setting, architecture
from headjax.initialization.schemes import DeepNorm, DSInit, LayerScale, ReZero, TFixup

__all__ = [
    "Admin",
    "AdminConstant",
    "DSInit",
    "Deep",
    "DeepNorm",
    "Initialization",
    "LayerScale",
    "ReZero",
    "Setting",
    "TFixup",
    "architecture",
    "constant_omega",
]
