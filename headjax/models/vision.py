"""Vision Transformers (ViT and DeiT): images as sequences of patches, the model and its recipe."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.operands import Dropout
from headjax.attention.projections import into_heads
from headjax.core.errors import DataError, require
from headjax.core.fields import Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.modules import Spec
from headjax.core.norms import LayerNorm
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal, Zeros, weight
from headjax.models.compute import StackCall
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.inputs import batch_array
from headjax.models.outputs import IGNORED, Pooler
from headjax.models.ranges import Range
from headjax.models.recipe import Recipe, equal_stack
from headjax.models.residuals import PreNorm, Residual
from headjax.models.stack import Stack
from headjax.models.sublayers import FeedForward, fold
from headjax.models.tasks import DistilledClassification, Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.task_output import task_answer


@kind("patches")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Patches(Spec):
    """dropout([class token, distillation token, patch_1 W + b, patch_2 W + b, ...] + positions).

    The image is cut into squares, row by row (Dosovitskiy et al. 2021, equation 1). The distillation token (Touvron et
    al. 2021) is optional.

    Attributes:
        image_size: height and width of an image, in pixels.
        patch_size: height and width of a patch, in pixels.
        channels: values per pixel.
        distillation_token: whether there is a distillation token.
        dropout: rate on the result.
    """

    image_size: Size = 224
    patch_size: Size = 16
    channels: Size = 3
    distillation_token: bool = False
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.image_size % self.patch_size == 0,
            "patch_size",
            f"{self.patch_size} does not divide the image_size {self.image_size}",
        )

    @property
    def count(self) -> int:
        """Number of patches."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def length(self) -> int:
        """Number of vectors: the patches and the tokens before them."""
        return self.count + 1 + self.distillation_token

    def module(self, width: int) -> PatchEmbeddings:
        """Return the module."""
        return PatchEmbeddings(self, width)

    def cut(self, images: jax.Array) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, patches, channels * patch_size^2]`."""
        expected = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise DataError(
                f"pixel_values: expected [batch, {', '.join(map(str, expected))}], got {list(images.shape)}"
            )
        batch, side = images.shape[0], self.image_size // self.patch_size
        grid = images.reshape(batch, self.channels, side, self.patch_size, side, self.patch_size)
        return grid.transpose(0, 2, 4, 1, 3, 5).reshape(batch, self.count, -1)

    def flops(self, width: int) -> int:
        """Floating-point operations for one image."""
        return 2 * self.count * self.channels * self.patch_size**2 * width


class PatchEmbeddings(nnx.Module):
    """The module of `Patches`."""

    def __init__(self, config: Patches, width: int) -> None:
        square = (config.channels, config.patch_size, config.patch_size)
        self.config = config
        self.kernel = weight((*square, width), (None, None, None, "embed"), inputs=(0, 1, 2))
        self.bias = weight((width,), ("embed",), Zeros(), decay=False)
        self.class_token = weight((width,), ("embed",))
        self.position = weight((config.length, width), (None, "embed"))
        self.distillation_token = weight((width,), ("embed",)) if config.distillation_token else None

    def __call__(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, length, width]`."""
        width = self.kernel.shape[-1]
        kernel = self.kernel.reshape(-1, width)  # [channels * patch_size^2, width]
        patches = into_heads(self.config.cut(images).astype(kernel.dtype), kernel, self.bias)  # [batch, patches, width]
        tokens = [token[...] for token in (self.class_token, self.distillation_token) if token is not None]
        first = jnp.broadcast_to(jnp.stack(tokens)[None], (images.shape[0], len(tokens), width))
        x = jnp.concatenate([first, patches], axis=1) + self.position[None]  # [batch, length, width]
        return Dropout(self.config.dropout, key)(x)


NO_TOKENS = Vocabulary(0, 0)


@kind("vision")
@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionModel(ModelConfig):
    """stack(patches(image)), whose class token is turned into the task's logits (Dosovitskiy et al. 2021).

    Batches hold `pixel_values [batch, channels, height, width]` and the task's labels.

        >>> from headjax.attention import Kind, MultiHeadAttention
        >>> from headjax.models import Vit
        >>> from headjax.models.sublayers import Dense
        >>> recipe = Vit(attention=Kind(MultiHeadAttention, num_heads=12, head_dim=64), feed_forward=Dense(3072))
        >>> headjax.summarize(recipe.build(), length=0).parameters  # as many as ViT-B/16 without its output
        85798656

    Attributes:
        patches: how images become vectors.
        encoder: the layers, without cross-attention.
        pooler: makes `pooled` of the class token; None takes the token itself.
        output: the task.
    """

    patches: Patches
    encoder: Stack
    pooler: Pooler | None = None
    output: TaskOutput = NoTask()

    def validate(self) -> None:
        require(
            not self.encoder.crossed, "encoder", "cross_attention needs an encoder to attend to; this is the encoder"
        )
        require(not self.output.needs_tokens, "output", "it is about tokens of a text, and the model reads images")
        distilled = self.patches.distillation_token or not isinstance(self.output, DistilledClassification)
        require(distilled, "patches.distillation_token", "the distilled output reads it, so there must be one")

    def parts(self) -> dict[str, nnx.Module]:
        pooler = {} if self.pooler is None else {"pooler": self.pooler.module(self.width)}
        return {
            "patches": self.patches.module(self.width),
            "encoder": self.encoder.module(self.width, self.width),
            **pooler,
            "output": self.output.module(self.width, NO_TOKENS),
        }

    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder}

    def enter(self, model: Any, stack: str, batch: Batch, options: Options) -> jax.Array:
        x: jax.Array = model.patches(batch_array(batch, "pixel_values"), fold(options.key, 0))
        return x

    def call(self, stack: str, batch: Batch, options: Options, memory: jax.Array | None) -> StackCall:
        return options.call(stack)._replace(query_mask=self.counted(batch), key=fold(options.key, 1))

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, options: Options) -> Output:
        pooled = hidden[:, 0] if self.pooler is None else model.pooler(hidden, fold(options.key, 2))
        return task_answer(model.output, Features(hidden, pooled, None), options)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self.output.loss(output, batch)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        size, channels = self.patches.image_size, self.patches.channels
        images = jax.ShapeDtypeStruct((batch_size, channels, size, size), jnp.float32)
        return {"pixel_values": images} | self.output.example_labels(batch_size, self.patches.length)

    def counted(self, batch: Batch) -> jax.Array | None:
        """Return `[batch, 1]` bool, False at the rows that fill up a batch: their label says so, an image may not."""
        if "labels" not in batch:
            return None
        labels = jnp.asarray(batch["labels"])
        filling = jnp.isnan(labels) if jnp.issubdtype(labels.dtype, jnp.floating) else labels == IGNORED
        return ~filling.reshape(labels.shape[0], -1).all(axis=1, keepdims=True)

    def count_tokens(self, batch: Batch) -> jax.Array:
        """The patches and tokens of all images."""
        return jnp.asarray(batch_array(batch, "pixel_values").shape[0] * self.patches.length)

    def ranges(self) -> dict[str, Range]:
        return self.output.ranges(NO_TOKENS)

    def for_evaluation(self) -> VisionModel:
        return dataclasses.replace(self, output=self.output.for_evaluation())

    def attention_lengths(self, head_stack: str, length: int) -> tuple[int, int]:
        return self.patches.length, self.patches.length

    def flops(self, length: int) -> int:
        """Floating-point operations of one forward of one image, whose length is the model's own."""
        length = self.patches.length
        total = self.patches.flops(self.width) + self.encoder.flops(self.width, length)
        if self.pooler is not None:
            total += self.pooler.flops(self.width)
        return total + self.output.flops(self.width, NO_TOKENS, length)


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

    attention: Kind
    feed_forward: FeedForward
    patches: Patches = Patches()
    width: Size = 768
    num_layers: Listed = 12
    residual: Residual = PreNorm(LayerNorm(1e-6))
    task: TaskOutput = NoTask()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    attention_by_layer: tuple[Kind, ...] = ()
    initializer: Initializer = TruncatedNormal(0.02)

    def build(self) -> VisionModel:
        return VisionModel(
            width=self.width,
            patches=self.patches,
            encoder=equal_stack(self),
            output=self.task,
            initializer=self.initializer,
        )
