"""DeepNorm, an initialisation in closed form."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax

from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.initialization.initialization import Initialization, require_post_norm, scale_weights
from headjax.models.config import ModelConfig


class Scales(NamedTuple):
    """Factors of DeepNorm in one stack."""

    alpha: float  # of the shortcut
    beta: float  # of values, outputs and feed-forward weights as they are drawn


def deep_norm_scales(config: ModelConfig) -> dict[str, Scales]:
    """Return the factors by stack, for N encoder layers and M decoder layers (Wang et al. 2022, table 1).

    A stack alone has alpha = (2 N)^(1/4), beta = (8 N)^(-1/4). In an encoder-decoder the encoder has
    alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16), the decoder alpha = (3 M)^(1/4), beta = (12 M)^(-1/4).
    """
    depths = {name: len(stack.layers) for name, stack in config.stacks().items()}
    if len(depths) == 1:
        return {name: Scales((2 * depth) ** 0.25, (8 * depth) ** -0.25) for name, depth in depths.items()}
    encoder, decoder = depths["encoder"], depths["decoder"]
    product = float(encoder) ** 4 * decoder
    return {
        "encoder": Scales(0.81 * product ** (1 / 16), 0.87 * product ** (-1 / 16)),
        "decoder": Scales((3 * decoder) ** 0.25, (12 * decoder) ** -0.25),
    }


@kind("deep_norm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepNorm(Initialization):
    """DeepNorm (Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", section 3).

    Post-norm layers become LN(alpha x + f(x)). Values, outputs and feed-forward weights are drawn as the model says
    (`xavier` in the paper) and multiplied by beta; see `deep_norm_scales`.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "DeepNorm is an initialisation")
        alphas: dict[str, Any] = {
            config.STACKS[name]["alpha"]: scales.alpha for name, scales in deep_norm_scales(config).items()
        }
        return dataclasses.replace(config, residual="constant_post_norm", **alphas)

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        scales = deep_norm_scales(config)

        def factor(name: str, path: str) -> float:
            """Return beta for values, outputs and feed-forward weights, which scale the output of their sub-layer."""
            adds = path.startswith("feed_forward/") or f"/{path}".endswith(("/value", "/output/kernel"))
            return scales[name].beta if adds else 1.0

        return scale_weights(config, config.initialize(key), factor)
