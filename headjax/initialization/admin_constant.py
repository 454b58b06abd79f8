"""Admin's closed form: one weight for all shortcuts of a stack, from its depth alone."""

from __future__ import annotations

import dataclasses
import math

import jax

from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.initialization.admin import NEEDS_OWN_LAYERS, NEEDS_POST_NORM
from headjax.initialization.base import Initialization
from headjax.initialization.layers import (
    num_sub_layers,
    require_own_layers,
    require_residual,
    set_shortcuts,
    with_residuals,
)
from headjax.models.config import ModelConfig
from headjax.models.layer import PostNorm, ScaledPostNorm


def constant_omega(sub_layers: int) -> float:
    """sqrt((n + 1) / ln(n + 1) - 1) for a stack of n sub-layers: changes of its output grow as ln n."""
    return math.sqrt((sub_layers + 1) / math.log(sub_layers + 1) - 1.0)


@kind("admin_constant")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdminConstant(Initialization):
    """Admin without profiling, as the package admin-torch by its authors has it: see `constant_omega`.

    Post-norm layers become LN(omega * x + f(x)); omega starts as that number everywhere and is learned.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_own_layers(config, NEEDS_OWN_LAYERS)
        require_residual(config, PostNorm, NEEDS_POST_NORM)
        return with_residuals(config, lambda _, residual: ScaledPostNorm(residual.norm))

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        counts = {name: num_sub_layers(stack) for name, stack in config.stacks().items()}
        omega = {name: [constant_omega(count)] * count for name, count in counts.items()}
        return set_shortcuts(config, config.initialize(key), omega)
