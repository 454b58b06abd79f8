"""Initialisations that make deep models train, each a step that a training config names."""

from headjax.heads.deepen import Deep  # a config names `deep` among the recipes, so every run has to know it
from headjax.initialization.admin import Admin, AdminConstant, constant_omega
from headjax.initialization.deep_norm import DeepNorm
from headjax.initialization.initialization import Initialization, Setting, architecture

__all__ = [
    "Admin",
    "AdminConstant",
    "Deep",
    "DeepNorm",
    "Initialization",
    "Setting",
    "architecture",
    "constant_omega",
]
