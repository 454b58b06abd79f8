"""Vision Transformers: ViT and DeiT."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from headjax.attention.attend import Call
from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.base import Batch, Loss, ModelConfig, Options, Output
from headjax.models.dropout import fold
from headjax.models.inputs import batch_array
from headjax.models.patches import Patches
from headjax.models.pooler import Pooler
from headjax.models.ranges import Range
from headjax.models.stack import Stack, StackCall
from headjax.models.tasks import DistilledClassification, Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.answer import answer

NO_TOKENS = Vocabulary(0, 0)


@kind("vision")
@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionModel(ModelConfig):
    """stack(patches(image)), whose class token is turned into the task's logits (Dosovitskiy et al. 2021).

    Batches hold `pixel_values [batch, channels, height, width]` and the task's labels.

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
        crossed = self.encoder.layers[0].cross_attention is not None
        require(not crossed, "encoder", "cross_attention needs an encoder to attend to; this is the encoder")
        require(not self.output.needs_tokens, "output", "it is about tokens of a text, and the model reads images")
        distilled = self.patches.distillation_token or not isinstance(self.output, DistilledClassification)
        require(distilled, "patches.distillation_token", "the distilled output reads it, so there must be one")

    def tensors(self) -> Tensors:
        tensors: Tensors = {
            "patches": self.patches.tensors(self.width),
            "encoder": self.encoder.tensors(self.width, self.width),
        }
        if self.pooler is not None:
            tensors["pooler"] = self.pooler.tensors(self.width)
        return tensors | {"output": self.output.tensors(self.width, NO_TOKENS)}

    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder}

    def apply(self, params: Params, batch: Batch, options: Options) -> Output:
        images = batch_array(batch, "pixel_values")
        params = options.compute.cast(params)
        x = self.patches(params["patches"], images, fold(options.key, 0))
        call = StackCall(
            attention=Call(gates=options.gates_of("encoder")),
            key=fold(options.key, 1),
            probe=options.probe,
            compute=options.compute,
        )
        hidden, reports = self.encoder(params["encoder"], x, call)
        pooled = hidden[:, 0]
        if self.pooler is not None:
            pooled = self.pooler(params["pooler"], hidden, fold(options.key, 2))
        return answer(self.output, params["output"], Features(hidden, pooled, None), reports, options)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self.output.loss(output, batch)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        size, channels = self.patches.image_size, self.patches.channels
        images = jax.ShapeDtypeStruct((batch_size, channels, size, size), jnp.float32)
        return {"pixel_values": images} | self.output.example_labels(batch_size, self.patches.length)

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
