"""The encoder: BERT, DistilBERT, RoBERTa, MPNet, ELECTRA, ALBERT, ModernBERT, CLIP's texts."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.config import STACK_FIELDS, Batch, Output
from headjax.models.inputs import TokenConfig, abstract_integers, batch_array, read_tokens
from headjax.models.model import Model
from headjax.models.tasks import Features, NoTask, TaskOutput, Vocabulary
from headjax.nn.block import Compute, State
from headjax.nn.embeddings import Range, RelativeBuckets, TokenEmbeddings
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.operands import Mask, fold
from headjax.nn.projections import ActivationName, Pooler, PoolerInputs
from headjax.nn.stack import Stack

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

    STACKS = {  # noqa: RUF012
        "encoder": STACK_FIELDS
        | {"window": "window", "attention_norm": "attention_norm", "position_bias": "position_bias"}
    }

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
        return self.pooler is not None or self.end_token is not None

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.vocab_size, self.embedding_size or self.width)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.segments else [])]
        return abstract_integers((batch_size, length), *names) | self.task.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        ranges = {"input_ids": Range(self.vocab_size, "tokens")}
        if self.segments:
            ranges["token_type_ids"] = Range(self.segments, "segments")
        return ranges | {"position_ids": self.position_table.range} | self.task.ranges(self.vocabulary)


class Encoder(Model, config=EncoderConfig):
    """logits = output(pooler(encoder(embeddings(tokens)))), see `EncoderConfig`; arguments as of `headjax.Model`.

    >>> attention = headjax.Kind(headjax.MultiHeadAttention, num_heads=2, head_dim=4)
    >>> config = headjax.EncoderConfig(vocab_size=50, width=8, num_layers=1, attention=attention, hidden=16)
    >>> headjax.Encoder(config, rngs=nnx.Rngs(0))({"input_ids": jnp.ones((1, 4), jnp.int32)}).hidden.shape
    (1, 4, 8)
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, *args: Any, **options: Any) -> None:
        self.embeddings = TokenEmbeddings(
            config.vocab_size,
            config.width,
            config.position_table,
            segments=config.segments,
            size=config.embedding_size,
            norm=config.embeddings_norm,
            dropout=config.embeddings_rate,
        )
        self.encoder = Stack(config.stacks()["encoder"])
        if config.pooler is not None:
            how: dict[str, Any] = {"reads": config.pooler_reads, "norm": config.pooler_norm, "bias": config.pooler_bias}
            self.pooler = Pooler(config.width, config.pooler, config.pooler_dropout, **how)
        self.output = config.task.module(config.width, config.vocabulary)
        super().__init__(config, *args, **options)

    def embed(self, batch: Batch, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        model, config, types = compute.cast(self), self.config, batch.get("token_type_ids")
        tokens, present, positions, segments = read_tokens(batch, config.position_table, causal=False)
        x = model.embeddings(tokens, positions=positions, segments=types, key=fold(key, 0))  # [batch, length, width]
        mask = Mask(causal=config.causal, keys=present, query_segments=segments, key_segments=segments)
        stream_positions = positions if config.position_bias is None else None  # distances count padding
        state = State(x, batch=batch, mask=mask, positions=stream_positions, query_mask=present)
        return model.encoder.biased(state)

    def finish(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> Output:
        model, config = compute.cast(self), self.config
        hidden = model.encoder.end(state.x)  # [batch, length, width]
        read, pooled = hidden, None
        if config.pooler is not None:
            pooled = model.pooler(hidden, fold(key, 2), self.valid_tokens(state.batch))  # [batch, width]
        if config.end_token is not None:
            tokens = batch_array(state.batch, "input_ids")
            ends = jnp.argmax(tokens if config.end_token == LARGEST else tokens == config.end_token, axis=1)  # [batch]
            pooled = hidden[jnp.arange(len(hidden)), ends]
        if pooled is not None and pooled.ndim == 3:  # of every token
            read, pooled = pooled, pooled[:, 0]
        output: Output = model.output(Features(read, pooled, model.embeddings.token, state.batch), fold(key, 3))
        return output._replace(hidden=hidden)
