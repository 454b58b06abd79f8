"""Vision Transformers (ViT, DeiT, DINOv2, CLIP): images as sequences of patches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.fields import Listed, Size
from headjax.core.kind import Kind
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal, bias_weight, weight
from headjax.models.config import STACK_FIELDS, Batch, ModelConfig, Output
from headjax.models.inputs import batch_array
from headjax.models.model import Model
from headjax.models.tasks import DistilledClassification, Features, NoTask, TaskOutput, Vocabulary
from headjax.nn.block import Compute, State
from headjax.nn.embeddings import Range
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import BEFORE, LayerNorm, Norm, ResidualKind
from headjax.nn.operands import Dropout, fold
from headjax.nn.projections import ActivationName, Pooler, into_heads
from headjax.nn.stack import Stack

NO_TOKENS = Vocabulary(0, 0)


@kind("vision")
@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig(ModelConfig):
    """stack(patches(image)), whose class token is turned into the task's logits (Dosovitskiy et al. 2021).

    Batches hold `pixel_values [batch, channels, height, width]` and the task's labels. The numbers not asked for are
    those of ViT-B/16.

        >>> from headjax.models import VisionConfig
        >>> headjax.summarize(VisionConfig.vit_base(), length=0).parameters
        85798656

    Attributes:
        image_size: height and width of an image, in pixels.
        patch_size: height and width of a patch, in pixels.
        channels: values per pixel.
        distillation_token: whether there is a distillation token beside the class token (DeiT; Touvron et al. 2021).
        patch_bias: whether the map of patches has a bias.
        embedding_norm: whether patches and tokens are normalised, by `norm`, before the first layer (CLIP).
        resized: whether images of other sizes are read too, with positions resized to theirs (DINOv2).
        pooler: activation of the map that makes `pooled` of the class token; None takes the token itself.
        pooled_norm: whether `norm` behind the last layer is that of `pooled` alone (CLIP).
        patch_mean: whether `pooled` is the class token and the mean of the patches, side by side (DINOv2's classifier).
        task: the task output.
    """

    STACKS = {"encoder": STACK_FIELDS}  # noqa: RUF012

    width: Size = 768
    num_layers: Listed = 12
    image_size: Size = 224
    patch_size: Size = 16
    channels: Size = 3
    distillation_token: bool = False
    patch_bias: bool = True
    embedding_norm: bool = False
    resized: bool = False
    residual: ResidualKind = "pre_norm"
    norm: Norm = LayerNorm(1e-6)
    pooler: ActivationName | None = None
    pooled_norm: bool = False
    patch_mean: bool = False
    task: TaskOutput = NoTask()
    initializer: Initializer = TruncatedNormal(0.02)

    @classmethod
    def vit_base(cls, **changes: Any) -> Self:
        """Return ViT-B/16 (Dosovitskiy et al. 2021), which DeiT-B is too, with these changes."""
        layer: dict[str, Any] = {"attention": Kind(MultiHeadAttention, num_heads=12, head_dim=64), "hidden": 3072}
        return cls(**layer | changes)

    def validate(self) -> None:
        cut = self.image_size % self.patch_size == 0
        require(cut, "patch_size", f"{self.patch_size} does not divide the image_size {self.image_size}")
        require(not self.task.needs_tokens, "task", "it is about tokens of a text, and the model reads images")
        distilled = self.distillation_token or not isinstance(self.task, DistilledClassification)
        require(distilled, "distillation_token", "the distilled task reads it, so there must be one")
        alone = self.pooler is None and not isinstance(self.task, DistilledClassification)
        require(alone or not self.patch_mean, "patch_mean", "is read without a pooler, by tasks of one classifier")
        last = self.residual in BEFORE and self.pooler is None and not self.patch_mean
        require(last or not self.pooled_norm, "pooled_norm", "is for pre_norm layers and the class token alone")

    @property
    def length(self) -> int:
        """Number of vectors of an image: its patches and the tokens before them."""
        return (self.image_size // self.patch_size) ** 2 + 1 + self.distillation_token

    @property
    def features(self) -> int:
        return 2 * self.width if self.patch_mean else self.width

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        shape = (batch_size, self.channels, self.image_size, self.image_size)
        images = {"pixel_values": jax.ShapeDtypeStruct(shape, jnp.float32)}
        return images | self.task.example_labels(batch_size, self.length)

    def ranges(self) -> dict[str, Range]:
        return self.task.ranges(NO_TOKENS)

    def example_length(self, length: int) -> int:
        return self.length


class Vision(Model, config=VisionConfig):
    """logits = output(encoder(patches(image))[0]), see `VisionConfig`; the arguments are those of `headjax.Model`.

    >>> layer = {"attention": headjax.Kind(headjax.MultiHeadAttention, num_heads=2, head_dim=4), "hidden": 16}
    >>> config = headjax.VisionConfig(image_size=8, patch_size=4, width=8, num_layers=1, **layer)
    >>> headjax.Vision(config, rngs=nnx.Rngs(0))({"pixel_values": jnp.ones((1, 3, 8, 8))}).hidden.shape
    (1, 5, 8)
    """

    config: VisionConfig

    def __init__(self, config: VisionConfig, *args: Any, **options: Any) -> None:
        self.patches = PatchEmbeddings(config)
        self.encoder = Stack(config.stacks()["encoder"])
        if config.pooler is not None:
            self.pooler = Pooler(config.width, config.pooler)
        if config.pooled_norm:
            self.pooled_norm = config.norm.module(config.width)
        self.output = config.task.module(config.features, NO_TOKENS)
        super().__init__(config, *args, **options)

    def embed(self, batch: Batch, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        model, config = compute.cast(self), self.config
        images, side = batch_array(batch, "pixel_values"), config.image_size
        sides = images.shape[2:]
        fits = min(sides, default=0) >= config.patch_size if config.resized else sides == (side, side)
        if images.ndim != 4 or images.shape[1] != config.channels or not fits:
            each = f"at least {config.patch_size}" if config.resized else side
            expected = f"[batch, {config.channels}, {each}, {each}]"
            raise DataError(f"pixel_values: expected {expected}, got {list(images.shape)}")
        x = model.patches(images, fold(key, 0))  # [batch, length, width]
        return State(x, batch=batch, query_mask=self.valid_tokens(batch))

    def finish(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> Output:
        model, config = compute.cast(self), self.config
        hidden = model.encoder.end(state.x)  # [batch, length, width]
        pooled = hidden[:, 0] if config.pooler is None else model.pooler(hidden, fold(key, 2))  # [batch, width]
        pooled = model.pooled_norm(pooled) if config.pooled_norm else pooled
        if config.patch_mean:
            pooled = jnp.concatenate([pooled, hidden[:, 1 + config.distillation_token :].mean(axis=1)], axis=1)
        output: Output = model.output(Features(hidden, pooled, None, state.batch), fold(key, 3))
        return output

    def valid_tokens(self, batch: Batch) -> jax.Array | None:
        """Return `[batch, 1]` bool, False at the rows that fill up a batch: their label says so, an image may not."""
        if "labels" not in batch:
            return None
        labels = jnp.asarray(batch["labels"])
        filling = jnp.isnan(labels) if jnp.issubdtype(labels.dtype, jnp.floating) else labels == IGNORED
        return ~filling.reshape(labels.shape[0], -1).all(axis=1, keepdims=True)

    def count_tokens(self, batch: Batch) -> jax.Array:
        """The patches and tokens of all images."""
        images, _, *sides = batch_array(batch, "pixel_values").shape
        patches = math.prod(side // self.config.patch_size for side in sides)
        return jnp.asarray(images * (patches + 1 + self.config.distillation_token))


class PatchEmbeddings(nnx.Module):
    """dropout(norm([class token, distillation token, patch_1 W + b, ...] + positions)), patches row by row."""

    def __init__(self, config: VisionConfig) -> None:
        width, side = config.width, config.patch_size
        self.dropout = config.embeddings_rate
        square = (config.channels, side, side, width)
        self.kernel = weight(square, (None, None, None, "embed"), inputs=(0, 1, 2))
        self.bias = bias_weight(config.patch_bias, (width,), ("embed",))
        self.class_token = weight((width,), ("embed",))
        self.position = weight((config.length, width), (None, "embed"))
        self.distillation_token = weight((width,), ("embed",)) if config.distillation_token else None
        self.norm = config.norm.module(width) if config.embedding_norm else None

    def __call__(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, length, width]`."""
        width = self.kernel.shape[-1]
        kernel = self.kernel.reshape(-1, width)  # [channels * patch_size^2, width]
        patches = into_heads(self.cut(images).astype(kernel.dtype), kernel, self.bias)  # [batch, patches, width]
        tokens = [token[...] for token in (self.class_token, self.distillation_token) if token is not None]
        first = jnp.broadcast_to(jnp.stack(tokens)[None], (images.shape[0], len(tokens), width))
        x = jnp.concatenate([first, patches], axis=1)  # [batch, length, width]
        x = x + self.positions(len(tokens), *images.shape[2:])[None]
        return Dropout(self.dropout, key)(x if self.norm is None else self.norm(x))

    def positions(self, tokens: int, *sides: int) -> jax.Array:
        """Return the positions `[length, width]` of an image of these sides; those of patches are resized to them."""
        patch, square = self.kernel.shape[-2], math.isqrt(self.position.shape[0] - tokens)
        high, wide = (side // patch for side in sides)
        if (high, wide) == (square, square):
            return self.position[...]
        grid = self.position[tokens:].reshape(square, square, -1)
        resize = [jnp.asarray(bicubic(square, side), grid.dtype) for side in (high, wide)]
        grid = jnp.einsum("hy,wx,yxd->hwd", *resize, grid, precision="highest")
        return jnp.concatenate([self.position[:tokens], grid.reshape(high * wide, -1)])

    def cut(self, images: jax.Array) -> jax.Array:
        """`[batch, channels, height, width]` pixels to `[batch, patches, channels * patch_size^2]`."""
        batch, channels, height, width = images.shape
        patch = self.kernel.shape[-2]
        high, wide = height // patch, width // patch
        grid = images[:, :, : high * patch, : wide * patch].reshape(batch, channels, high, patch, wide, patch)
        return grid.transpose(0, 2, 4, 1, 3, 5).reshape(batch, high * wide, -1)


def bicubic(old: int, new: int) -> np.ndarray:
    """Return the matrix `[new, old]` that resizes a line by cubic convolution (Keys 1981), with PyTorch's a = -3/4."""
    places = (np.arange(new) + 0.5) * old / new - 0.5
    first, a = np.floor(places).astype(int), -0.75
    matrix = np.zeros((new, old))
    for step in (-1, 0, 1, 2):
        distance = np.abs(places - first - step)
        near = ((a + 2.0) * distance - (a + 3.0)) * distance**2 + 1.0
        far = a * (((distance - 5.0) * distance + 8.0) * distance - 4.0)
        kept = np.clip(first + step, 0, old - 1)
        np.add.at(matrix, (np.arange(new), kept), np.where(distance <= 1.0, near, far))
    return matrix
