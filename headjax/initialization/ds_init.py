"""DS-Init: weights that start smaller the deeper their layer."""

from __future__ import annotations

import dataclasses

import jax

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.initialization.base import Initialization
from headjax.initialization.layers import require_own_layers, scale_weights
from headjax.models.config import ModelConfig


@kind("ds_init")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DSInit(Initialization):
    """Depth-scaled initialisation (Zhang, Titov and Sennrich 2019, equation 6).

    The weights of layer l = 1, 2, ... are drawn as the model says and multiplied by alpha / sqrt(l); with the model's
    initialiser `xavier` that is the paper's uniform distribution.

    Attributes:
        alpha: the paper's hyper-parameter, within (0, 1].
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0.0 < self.alpha <= 1.0, "alpha", f"must be within (0, 1], got {self.alpha}")

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_own_layers(config, "DS-Init scales each by its depth")
        return config

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        return scale_weights(config, config.initialize(key), lambda _, layer, path: self.alpha * (layer + 1) ** -0.5)
