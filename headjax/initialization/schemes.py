"""Initialisations in closed form: DeepNorm, DS-Init, LayerScale, ReZero and T-Fixup."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax

from headjax.core.errors import require
from headjax.core.fields import Positive
from headjax.core.serialize import kind
from headjax.core.tensors import Params, flatten, nested
from headjax.initialization.initialization import (
    Initialization,
    require_own_layers,
    require_residual,
    scale_weights,
    with_residuals,
    without_final_norms,
)
from headjax.models.config import ModelConfig
from headjax.models.residuals import ConstantPostNorm, NoNorm, PostNorm, PreNorm, ScaledNoNorm, ScaledPreNorm


class Scales(NamedTuple):
    """Factors of DeepNorm in one stack.

    Attributes:
        alpha: multiplies the shortcut.
        beta: multiplies values, outputs and feed-forward weights as they are drawn.
    """

    alpha: float
    beta: float


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
        require_own_layers(config, "DeepNorm is an initialisation of layers with weights of their own")
        require_residual(config, PostNorm, "DeepNorm is a change of post_norm layers")
        scales = deep_norm_scales(config)
        return with_residuals(config, lambda name, old: ConstantPostNorm(old.norm, scales[name].alpha))

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        scales = deep_norm_scales(config)

        def factor(name: str, _: int, path: str) -> float:
            return scales[name].beta if adds_to_stream(path) else 1.0

        return scale_weights(config, config.initialize(key), factor)


def adds_to_stream(path: str) -> bool:
    """Return whether a layer's weight scales the output of its sub-layer: values, outputs, feed-forward weights."""
    return path.startswith("feed_forward/") or path.rsplit("/", 1)[-1] in ("value", "output")


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


def layer_scale(depth: int) -> float:
    """Return the first lambda of a stack of `depth` layers: 0.1 up to 18, 1e-5 up to 24, 1e-6 beyond."""
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


@kind("layer_scale")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerScale(Initialization):
    """LayerScale (Touvron et al. 2021, "Going Deeper with Image Transformers", section 2).

    Pre-norm layers become x + lambda * f(LN(x)) with a learned vector lambda.

    Attributes:
        initial: first value of every entry of lambda; None is the paper's choice by depth, see `layer_scale`.
    """

    initial: Positive | None = None

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_residual(config, PreNorm, "LayerScale is a change of pre_norm layers")
        depths = {name: len(stack.layers) for name, stack in config.stacks().items()}
        return with_residuals(
            config, lambda name, old: ScaledPreNorm(old.norm, self.initial or layer_scale(depths[name]))
        )


@kind("re_zero")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReZero(Initialization):
    """ReZero (Bachlechner et al. 2020): residual connections become x + alpha_i f_i(x), alpha_i = 0; final norms go."""

    def configure(self, config: ModelConfig) -> ModelConfig:
        return without_final_norms(with_residuals(config, lambda *_: ScaledNoNorm()))


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

        params = flatten(scale_weights(config, config.initialize(key), factor))
        embedding = (9 * list(depths.values())[-1]) ** -0.25
        tokens = {path: array * embedding for path, array in params.items() if path.endswith("embeddings/token")}
        return nested(params | tokens)
