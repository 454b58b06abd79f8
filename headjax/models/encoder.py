"""The encoder: BERT, DistilBERT, RoBERTa, MPNet, ELECTRA, ALBERT, ModernBERT, CLIP's texts."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.ranges import Range
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.config import Batch, Output
from headjax.models.inputs import TokenConfig, abstract_integers, batch_array
from headjax.models.tasks import Features, NoTask, TaskOutput, Vocabulary
from headjax.nn.embeddings import RelativeBuckets
from headjax.nn.feed_forward import ActivationName, fold
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.operands import Mask
from headjax.nn.outputs import Pooler, PoolerInputs
from headjax.nn.passes import Pass
from headjax.nn.stack import TransformerStack

LARGEST = 2
"""The `end_token` that stands for the largest id."""


@kind("encoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TokenConfig):
    """stack(embeddings(x)), pooled and turned into the task's logits. The numbers not asked for are BERT-base's.

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `token_type_ids`,
    `position_ids` (counted from 0 at any offset), `segment_ids` of packed examples, and the task's labels.

        >>> from headjax.models import EncoderConfig
        >>> headjax.summarize(EncoderConfig.bert_base(), length=64).parameters
        109482240
        >>> headjax.summarize(EncoderConfig.albert_base(), length=64).parameters
        11683584

    Attributes:
        segments: number of segment embeddings, 0 for none.
        embedding_size: size of the embeddings, mapped to the width (ALBERT); None is the width, without a map.
        position_bias: relative positions in the self-attention (MPNet), or None.
        causal: whether tokens see those before them alone (CLIP).
        window: self-attention of a layer sees only keys at a distance below this (sliding window); None is any.
        shared_layers: whether all layers are one layer, applied again and again (ALBERT).
        attention_norm: whether a norm stands before a layer's self-attention; the first layer of ModernBERT has none.
        end_token: `pooled` is the hidden state of the first token of this id (CLIP), where 2 stands for the largest id
            of a text, as in CLIP's first configs; None pools otherwise.
        pooler: activation of the map that makes `pooled` of the first token, or None for no such map.
        pooler_reads: `first` token, the `mean` of all, or each of the `tokens`, for tasks about tokens.
        pooler_bias, pooler_norm: whether the map has a bias, and the normalisation behind it (ModernBERT), or None.
        pooler_dropout: rate on what it reads.
        task: the task output.
    """

    STACKS = {"encoder": ""}  # noqa: RUF012

    width: Size = 768
    num_layers: Listed = 12
    vocab_size: Size = 30522
    max_length: Size | None = 512
    segments: Count = 2
    embedding_size: Size | None = None
    embedding_norm: bool = True
    norm: Norm = LayerNorm(1e-12)
    position_bias: RelativeBuckets | None = None
    causal: bool = False
    window: tuple[Size | None, ...] = ()
    attention_norm: tuple[bool, ...] = ()
    shared_layers: bool = False
    end_token: Count | None = None
    pooler: ActivationName | None = "tanh"
    pooler_reads: PoolerInputs = "first"
    pooler_bias: bool = True
    pooler_norm: Norm | None = None
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
        super().validate()
        pooled = self.pools or not self.task.needs_pooler
        require(pooled, "pooler", "the task reads the pooled vector, so the model needs a pooler")
        require(self.pooler is None or self.end_token is None, "end_token", "is for models without a pooler")
        equal = not self.shared_layers or len(set(self.stacks()["encoder"].layers)) == 1
        require(equal, "shared_layers", "layers that are one layer must be equal")
        before = all(self.attention_norm) or self.residual == "pre_norm"
        require(before, "attention_norm", f"the residual {self.residual} cannot be without it")

    @property
    def pools(self) -> bool:
        """Whether there is a pooled vector."""
        return self.pooler is not None or self.end_token is not None

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens and the size of their embeddings."""
        return Vocabulary(self.vocab_size, self.embedding_size or self.width)

    def parts(self) -> dict[str, nnx.Module]:
        how: dict[str, Any] = {"reads": self.pooler_reads, "norm": self.pooler_norm, "bias": self.pooler_bias}
        pooler = {} if self.pooler is None else {"pooler": Pooler(self.width, self.pooler, self.pooler_dropout, **how)}
        return {
            "embeddings": self.embeddings(self.vocab_size, segments=self.segments, size=self.embedding_size),
            "encoder": TransformerStack(self.stacks()["encoder"]),
            **pooler,
            "output": self.task.module(self.width, self.vocabulary),
        }

    def reading(self, stack: str, batch: Batch, call: Pass, memory: jax.Array | None) -> Pass:
        call = super().reading(stack, batch, call, memory)
        if self.causal:
            call = call._replace(mask=dataclasses.replace(call.mask or Mask(), causal=True))
        return call if self.position_bias is None else call._replace(positions=None)  # distances count padding

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, call: Pass) -> Output:
        read, pooled = hidden, None
        if self.pooler is not None:
            pooled = model.pooler(hidden, fold(call.key, 2), self.counted(batch))  # [batch, width]
        if self.end_token is not None:
            pooled = hidden[jnp.arange(len(hidden)), self.ends(batch_array(batch, "input_ids"))]
        if pooled is not None and pooled.ndim == 3:  # of every token
            read, pooled = pooled, pooled[:, 0]
        features = Features(read, pooled, model.embeddings.token, batch)
        output: Output = model.output(features, fold(call.key, 3))
        return output._replace(hidden=hidden)

    def ends(self, tokens: jax.Array) -> jax.Array:
        """Return where each text of tokens `[batch, length]` ends, `[batch]`."""
        return jnp.argmax(tokens if self.end_token == LARGEST else tokens == self.end_token, axis=1)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.segments else [])]
        return abstract_integers((batch_size, length), *names) | self.task.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        found = {"input_ids": Range(self.vocab_size, "tokens")}
        if self.segments:
            found["token_type_ids"] = Range(self.segments, "segments")
        return found | {"position_ids": self.position_table.range} | self.task.ranges(self.vocabulary)

    def flops(self, length: int) -> int:
        mapped = 0 if self.embedding_size is None else 2 * length * self.embedding_size * self.width
        pooled = 0 if self.pooler is None else 2 * self.width**2 * (length if self.pooler_reads == "tokens" else 1)
        layers = self.stacks()["encoder"].flops(length)
        return mapped + layers + pooled + self.task.flops(self.width, self.vocabulary, length)
