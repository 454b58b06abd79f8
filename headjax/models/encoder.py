"""The encoder: BERT, DistilBERT, RoBERTa, MPNet, ELECTRA and ALBERT."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
from flax import nnx

from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.ranges import Range
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.inputs import abstract_integers, embedded, reading
from headjax.models.tasks import Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.task_output import task_answer
from headjax.nn.embeddings import PositionKind, Positions, RelativeBuckets, TokenEmbeddings
from headjax.nn.feed_forward import ActivationName, fold
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.outputs import Pooler
from headjax.nn.passes import Pass
from headjax.nn.stack import TransformerStack


@kind("encoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """stack(embeddings(x)), pooled and turned into the task's logits. The numbers not asked for are BERT-base's.

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `token_type_ids`,
    `position_ids` (counted from 0 at any offset), `segment_ids` of packed examples, and the task's labels.

        >>> from headjax.models import EncoderConfig
        >>> headjax.summarize(EncoderConfig.bert_base(), length=64).parameters
        109482240
        >>> headjax.summarize(EncoderConfig.albert_base(), length=64).parameters
        11683584

    Attributes:
        vocab_size: number of tokens.
        positions: how positions enter, see `headjax.nn.embeddings.Positions`.
        max_length: longest sequence, in tokens.
        position_offset: added to every learned position (RoBERTa counts from 2).
        segments: number of segment embeddings, 0 for none.
        embedding_size: size of the embeddings, mapped to the width (ALBERT); None is the width, without a map.
        embedding_norm: whether the embeddings are normalised, by `norm`.
        position_bias: relative positions in the self-attention (MPNet), or None.
        window: self-attention of a layer sees only keys at a distance below this (sliding window); None is any.
        shared_layers: whether all layers are one layer, applied again and again (ALBERT).
        pooler: activation of the map that makes `pooled` of the first token, or None for no such map.
        pooler_dropout: rate on the first token before it.
        task: the task output.
    """

    STACKS = {"encoder": ""}  # noqa: RUF012

    width: Size = 768
    num_layers: Listed = 12
    vocab_size: Size = 30522
    positions: PositionKind = "learned"
    max_length: Size | None = 512
    position_offset: Count = 0
    segments: Count = 2
    embedding_size: Size | None = None
    embedding_norm: bool = True
    norm: Norm = LayerNorm(1e-12)
    position_bias: RelativeBuckets | None = None
    window: tuple[Size | None, ...] = ()
    shared_layers: bool = False
    pooler: ActivationName | None = "tanh"
    pooler_dropout: Rate = 0.0
    task: TaskOutput = NoTask()
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    initializer: Initializer = TruncatedNormal(0.02)

    @classmethod
    def bert_base(cls, **changes: Any) -> Self:
        """Return BERT-base, uncased (Devlin et al. 2019), with these changes."""
        layer: dict[str, Any] = {"attention": Kind(MultiHeadAttention, num_heads=12, head_dim=64), "hidden": 3072}
        return cls(**layer | changes)

    @classmethod
    def bert_large(cls, **changes: Any) -> Self:
        """Return BERT-large, uncased (Devlin et al. 2019), with these changes."""
        sizes: dict[str, Any] = {"width": 1024, "num_layers": 24, "hidden": 4096}
        return cls(**sizes | {"attention": Kind(MultiHeadAttention, num_heads=16, head_dim=64)} | changes)

    @classmethod
    def albert_base(cls, **changes: Any) -> Self:
        """Return ALBERT-base (Lan et al. 2020): one layer used 12 times, smaller embeddings, no dropout."""
        albert: dict[str, Any] = {"shared_layers": True, "embedding_size": 128, "vocab_size": 30000}
        return cls.bert_base(**albert | {"dropout": 0.0, "attention_dropout": 0.0} | changes)

    def validate(self) -> None:
        self.position_table.validate()
        pooled = self.pooler is not None or not self.task.needs_pooler
        require(pooled, "pooler", "the task reads the pooled vector, so the model needs a pooler")
        equal = not self.shared_layers or len(set(zip(self.attention, self.hidden, self.window, strict=True))) == 1
        require(equal, "shared_layers", "layers that are one layer must be equal")

    @property
    def position_table(self) -> Positions:
        """The positions of the embeddings."""
        return Positions(self.positions, self.max_length, self.position_offset)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens and the size of their embeddings."""
        return Vocabulary(self.vocab_size, self.embedding_size or self.width)

    def parts(self) -> dict[str, nnx.Module]:
        embeddings = TokenEmbeddings(
            self.vocab_size,
            self.width,
            self.position_table,
            segments=self.segments,
            size=self.embedding_size,
            norm=self.norm if self.embedding_norm else None,
            dropout=self.embeddings_rate,
        )
        pooler = {} if self.pooler is None else {"pooler": Pooler(self.width, self.pooler, self.pooler_dropout)}
        return {
            "embeddings": embeddings,
            "encoder": TransformerStack(self.stacks()["encoder"]),
            **pooler,
            "output": self.task.module(self.width, self.vocabulary),
        }

    def enter(self, model: Any, stack: str, batch: Batch, call: Pass) -> jax.Array:
        return embedded(model.embeddings, batch, call, segments=batch.get("token_type_ids"))

    def reading(self, stack: str, batch: Batch, call: Pass, memory: jax.Array | None) -> Pass:
        call = reading(self.position_table, batch, call)
        if self.position_bias is None:
            return call
        return call._replace(attention=call.attention._replace(positions=None))  # distances count padding

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, call: Pass) -> Output:
        pooled = None if self.pooler is None else model.pooler(hidden, fold(call.key, 2))  # [batch, width]
        return task_answer(model.output, Features(hidden, pooled, model.embeddings.token, batch), call)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self.task.loss(output, batch)

    def answers(self) -> str:
        return self.task.answers()

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.segments else [])]
        return abstract_integers((batch_size, length), *names) | self.task.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        found = {"input_ids": Range(self.vocab_size, "tokens")}
        if self.segments:
            found["token_type_ids"] = Range(self.segments, "segments")
        return found | self.position_table.ranges("position_ids") | self.task.ranges(self.vocabulary)

    def for_evaluation(self) -> EncoderConfig:
        return dataclasses.replace(self, task=self.task.for_evaluation())

    def flops(self, length: int) -> int:
        mapped = 0 if self.embedding_size is None else 2 * length * self.embedding_size * self.width
        pooled = 0 if self.pooler is None else 2 * self.width**2
        layers = self.stacks()["encoder"].flops(length)
        return mapped + layers + pooled + self.task.flops(self.width, self.vocabulary, length)
