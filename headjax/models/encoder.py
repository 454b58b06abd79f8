"""The encoder: BERT, DistilBERT, ALBERT, RoBERTa and whatever else reads a sequence in both directions."""

from __future__ import annotations

import dataclasses

import jax

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.base import Batch, Loss, ModelConfig, Options, Output
from headjax.models.dropout import fold
from headjax.models.embeddings import Embeddings
from headjax.models.inputs import abstract_integers
from headjax.models.pooler import Pooler
from headjax.models.ranges import Range
from headjax.models.reading import read
from headjax.models.stack import Stack
from headjax.models.tasks import Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.answer import answer


@kind("encoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderModel(ModelConfig):
    """stack(embeddings(x)), pooled and turned into the task's logits.

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `token_type_ids`,
    `position_ids` (counted from 0, whatever the offset), `segment_ids` of packed examples, and the task's labels.

    Attributes:
        embeddings: token embeddings, positions and segments.
        encoder: the layers, without cross-attention.
        pooler: makes `pooled` of the first token, or None.
        output: the task.
    """

    embeddings: Embeddings
    encoder: Stack
    pooler: Pooler | None = None
    output: TaskOutput = NoTask()

    def validate(self) -> None:
        crossed = self.encoder.layers[0].cross_attention is not None
        require(not crossed, "encoder", "cross_attention needs an encoder to attend to; this is the encoder")
        pooled = self.pooler is not None or not self.output.needs_pooler
        require(pooled, "pooler", "the output reads the pooled vector, so the model needs a pooler")

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens and the size of their embeddings."""
        return Vocabulary(self.embeddings.vocab_size, self.embeddings.token_size(self.width))

    def tensors(self) -> Tensors:
        tensors: Tensors = {
            "embeddings": self.embeddings.tensors(self.width),
            "encoder": self.encoder.tensors(self.width, self.width),
        }
        if self.pooler is not None:
            tensors["pooler"] = self.pooler.tensors(self.width)
        return tensors | {"output": self.output.tensors(self.width, self.vocabulary)}

    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder}

    def apply(self, params: Params, batch: Batch, options: Options) -> Output:
        params = options.compute.cast(params)
        segments = batch.get("token_type_ids")
        reading = read("encoder", self.encoder, self.embeddings, params, batch, options, segments=segments)
        hidden = reading.hidden
        pooled = None if self.pooler is None else self.pooler(params["pooler"], hidden, fold(options.key, 2))
        features = Features(hidden, pooled, params["embeddings"]["token"])
        return answer(self.output, params["output"], features, reading.reports, options)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self.output.loss(output, batch)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.embeddings.segments else [])]
        return abstract_integers((batch_size, length), *names) | self.output.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        return self.embeddings.ranges() | self.output.ranges(self.vocabulary)

    def for_evaluation(self) -> EncoderModel:
        return dataclasses.replace(self, output=self.output.for_evaluation())

    def flops(self, length: int) -> int:
        total = self.embeddings.flops(self.width, length) + self.encoder.flops(self.width, length)
        if self.pooler is not None:
            total += self.pooler.flops(self.width)
        return total + self.output.flops(self.width, self.vocabulary, length)
