"""LayerScale: pre-norm sub-layers that add little at first."""

from __future__ import annotations

import dataclasses

from headjax.core.fields import Positive
from headjax.core.serialize import kind
from headjax.initialization.base import Initialization
from headjax.initialization.layers import require_residual, with_residuals
from headjax.models.config import ModelConfig
from headjax.models.layer import PreNorm, ScaledPreNorm


def layer_scale(depth: int) -> float:
    """What lambda starts as in a stack of this many layers: 0.1 up to 18, 1e-5 up to 24, 1e-6 beyond."""
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


@kind("layer_scale")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerScale(Initialization):
    """LayerScale (Touvron et al. 2021, "Going Deeper with Image Transformers", section 2).

    Pre-norm layers become x + lambda * f(LN(x)) with a learned vector lambda.

    Attributes:
        initial: what every entry of lambda starts as; None is the paper's choice by depth, see `layer_scale`.
    """

    initial: Positive | None = None

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_residual(config, PreNorm, "LayerScale is a change of pre_norm layers")
        depths = {name: len(stack.layers) for name, stack in config.stacks().items()}
        return with_residuals(
            config, lambda name, old: ScaledPreNorm(old.norm, self.initial or layer_scale(depths[name]))
        )
