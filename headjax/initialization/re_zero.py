"""ReZero: sub-layers that add nothing at first."""

from __future__ import annotations

import dataclasses

from headjax.core.serialize import kind
from headjax.initialization.base import Initialization
from headjax.initialization.layers import with_residuals, without_final_norms
from headjax.models.config import ModelConfig
from headjax.models.layer import ScaledNoNorm


@kind("re_zero")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReZero(Initialization):
    """ReZero (Bachlechner et al. 2020): residual connections become x + alpha_i f_i(x), alpha_i = 0; final norms go."""

    def configure(self, config: ModelConfig) -> ModelConfig:
        return without_final_norms(with_residuals(config, lambda *_: ScaledNoNorm()))
