"""T-Fixup: no normalisation and no warm-up, but smaller embeddings, values, outputs and feed-forward weights."""

from __future__ import annotations

import dataclasses

import jax

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, flatten, map_tensors
from headjax.initialization.base import Initialization
from headjax.initialization.deep_norm import adds_to_stream
from headjax.initialization.layers import (
    require_own_layers,
    scale_weights,
    with_residuals,
    without_final_norms,
)
from headjax.models.config import ModelConfig
from headjax.models.layer import NoNorm


@kind("t_fixup")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TFixup(Initialization):
    """T-Fixup (Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization", section 3.2).

    Residual connections become x + f(x), final norms go. Of N layers a stack, weights are drawn as the model says
    (`xavier` in the paper) and then

    * token embeddings are multiplied by (9 N)^(-1/4), N that of the decoder where there is one;
    * values, outputs and feed-forward weights by (9 N)^(-1/4) in stacks with cross-attention, by 0.67 N^(-1/4) in
      others.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_own_layers(config, "T-Fixup is an initialisation of layers with weights of their own")
        bare = without_final_norms(with_residuals(config, lambda *_: NoNorm()))
        for path in flatten(bare.tensors()):
            inside = path.split("/", 1)[0] != "output" and any("norm" in part for part in path.split("/"))
            require(not inside, path, "is a normalisation, and T-Fixup trains without any")
        return bare

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        depths = {name: len(stack.layers) for name, stack in config.stacks().items()}
        crossed = {name: stack.layers[0].cross_attention is not None for name, stack in config.stacks().items()}

        def factor(name: str, _: int, path: str) -> float:
            if not adds_to_stream(path):
                return 1.0
            return (9 * depths[name]) ** -0.25 if crossed[name] else 0.67 * depths[name] ** -0.25

        params = scale_weights(config, config.initialize(key), factor)
        given = flatten(params)
        embedding = (9 * list(depths.values())[-1]) ** -0.25

        def scale(path: str, _: Tensor) -> jax.Array:
            return given[path] * embedding if path.endswith("embeddings/token") else given[path]

        return map_tensors(scale, config.tensors())
