"""The recipe of vision Transformers."""

from __future__ import annotations

import dataclasses

from headjax.attention.formulation import Attention
from headjax.core.fields import Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.feed_forward import FeedForward
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.patches import Patches
from headjax.models.recipes.base import Recipe, equal_stack
from headjax.models.residual import PreNorm, Residual
from headjax.models.tasks import NoTask, TaskOutput
from headjax.models.vision import VisionModel


@kind("vit")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Vit(Recipe):
    """ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021), which differ in training and in `patches`.

    Attributes:
        attention: formulation of every layer.
        feed_forward: feed-forward sub-layer of every layer.
        patches: how images become vectors.
        width: size of the residual stream.
        num_layers: number of layers.
        residual: how sub-layers join the stream; `pre_norm` adds a final norm.
        task: the task output.
        dropout: rate on sub-layer outputs.
        attention_dropout: rate on attention probabilities.
        stochastic_depth: how often the last layer's sub-layers are skipped, see `Layer`.
        attention_by_layer: formulations that differ from layer to layer, instead of `attention` for all.
        initializer: of weights.
    """

    attention: Attention
    feed_forward: FeedForward
    patches: Patches = Patches()
    width: Size = 768
    num_layers: Size = 12
    residual: Residual = PreNorm(LayerNorm(1e-6))
    task: TaskOutput = NoTask()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    attention_by_layer: tuple[Attention, ...] = ()
    initializer: Initializer = TruncatedNormal(0.02)

    def build(self) -> VisionModel:
        layer = Layer(
            attention=self.attention,
            feed_forward=self.feed_forward,
            residual=self.residual,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            stochastic_depth=self.stochastic_depth,
        )
        return VisionModel(
            width=self.width,
            patches=self.patches,
            encoder=equal_stack(layer, self.num_layers, self.attention_by_layer),
            output=self.task,
            initializer=self.initializer,
        )
