"""The decoder: GPT-2, Llama and their kin, as language models or with another task."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from headjax.core.class_names import IGNORED
from headjax.core.fields import Count, Positive, Size
from headjax.core.kind import Kind
from headjax.core.serialize import kind
from headjax.models.config import STACK_FIELDS, Batch, Loss, Output
from headjax.models.decoding import GenerativeConfig, GenerativeModel, Prompt, empty_cache
from headjax.models.inputs import abstract_integers, on_device, read_tokens
from headjax.models.tasks import Features, TaskOutput, Vocabulary
from headjax.nn.block import Compute, ForwardOptions, State
from headjax.nn.embeddings import Range, TokenEmbeddings
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import ResidualKind
from headjax.nn.operands import Mask, fold
from headjax.nn.projections import Linear, VocabularyLogits, cross_entropy
from headjax.nn.stack import Stack


@kind("decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(GenerativeConfig):
    """A causal language model: p(x_t | x_<t) = softmax(output(stack(embeddings(x))))_(t-1).

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `segment_ids` of packed
    examples, `position_ids` (by default counted from 0 in each example, without padding), and `labels`, which are the
    `input_ids` unshifted (the model shifts), -100 where no loss is wanted; without labels every token that is not
    padding is one. The first token of an example, and one after padding, is never predicted.

    With a `task` the stack is pooled, as the hidden state of each example's last token that is no padding, and turned
    into the task's logits; the batch holds its labels.

        >>> from headjax.models import DecoderConfig
        >>> headjax.summarize(DecoderConfig.gpt2(), length=64).parameters
        124439808

    Attributes:
        scale_embeddings: whether they are multiplied by the root of the width (Gemma).
        tied: whether the logits' weights are the token embeddings (Press and Wolf 2017).
        output_bias: whether the logits have biases.
        softcap: c of the logits c * tanh(logits / c) (Gemma 2); None leaves them.
        attention_softcap: the same of attention's logits, before their mask.
        window: self-attention of a layer sees only keys at a distance below this (sliding window); None is any.
        task: the task output of a model that predicts no tokens; None is the language model.
        padding_token: a token that is never the last one, whatever the `attention_mask` shows (Hugging Face's
            `pad_token_id`); None goes by the mask alone.
    """

    STACKS = {"decoder": STACK_FIELDS | {"window": "window"}}  # noqa: RUF012

    residual: ResidualKind = "pre_norm"
    scale_embeddings: bool = False
    tied: bool = True
    output_bias: bool = False
    softcap: Positive | None = None
    attention_softcap: Positive | None = None
    window: tuple[Size | None, ...] = ()
    task: TaskOutput | None = None
    padding_token: Count | None = None

    @classmethod
    def gpt2(cls, **changes: Any) -> Self:
        """Return GPT-2 of 124 million parameters (Radford et al. 2019), with these changes."""
        sizes: dict[str, Any] = {"vocab_size": 50257, "max_length": 1024, "width": 768, "num_layers": 12}
        layer = {
            "attention": Kind(MultiHeadAttention, num_heads=12, head_dim=64),
            "hidden": 3072,
            "activation": "gelu_tanh",
        }
        return cls(**sizes | layer | {"dropout": 0.1, "attention_dropout": 0.1} | changes)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.vocab_size, self.width)

    def output_description(self) -> str:
        if self.task is not None:
            return self.task.output_description()
        return f", output {'tied' if self.tied else 'untied'}"

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        if self.task is None:
            return abstract_integers((batch_size, length), "input_ids")
        texts = abstract_integers((batch_size, length), "input_ids", "attention_mask")
        return texts | self.task.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        tokens, labels = Range(self.vocab_size, "tokens"), Range(self.vocab_size, "tokens", ignored=IGNORED)
        of_task = {"labels": labels} if self.task is None else self.task.ranges(self.vocabulary)
        return {"input_ids": tokens, **of_task, "position_ids": self.position_table.range}


class Decoder(GenerativeModel, config=DecoderConfig):
    """logits = output(decoder(embeddings(tokens))), see `DecoderConfig`; the arguments are those of `headjax.Model`.

    >>> fresh = headjax.Decoder(headjax.demo_model().config, rngs=nnx.Rngs(0))
    >>> fresh({"input_ids": jnp.ones((1, 4), jnp.int32)}).logits.shape
    (1, 4, 2048)
    """

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, *args: Any, **options: Any) -> None:
        self.embeddings = TokenEmbeddings(
            config.vocab_size,
            config.width,
            config.position_table,
            scaled=config.scale_embeddings,
            norm=config.embeddings_norm,
            dropout=config.embeddings_rate,
        )
        self.decoder = Stack(config.stacks()["decoder"])
        self.output: Any
        if config.task is None:
            logits = {"tied": config.tied, "bias": config.output_bias}
            self.output = VocabularyLogits(config.width, config.vocab_size, **logits, softcap=config.softcap)
        else:
            self.output = config.task.module(config.width, config.vocabulary)
            if isinstance(self.output, Linear) and not config.output_bias:
                self.output.bias = None
        super().__init__(config, *args, **options)

    def embed(self, batch: Batch, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        model = compute.cast(self)
        tokens, present, positions, segments = read_tokens(batch, self.config.position_table, causal=True)
        x = model.embed_tokens(tokens, positions, fold(key, 0))  # [batch, length, width]
        mask = Mask(causal=True, keys=present, query_segments=segments, key_segments=segments)
        return State(x, batch=batch, mask=mask, positions=positions, query_mask=present)

    def finish(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> Output:
        model, config = compute.cast(self), self.config
        hidden = model.decoder.end(state.x)  # [batch, length, width]
        if config.task is None:
            return Output(hidden=hidden, logits=model.logits(hidden))
        tokens, present, *_ = read_tokens(state.batch, config.position_table, causal=True)
        shown = jnp.ones(tokens.shape, bool) if present is None else present
        shown = shown if config.padding_token is None else shown & (tokens != config.padding_token)
        last = jnp.where(shown, jnp.arange(tokens.shape[1]), 0).max(axis=1)  # [batch]
        pooled = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]  # [batch, width]
        output: Output = model.output(Features(hidden, pooled, model.embeddings.token, state.batch), fold(key, 3))
        return output

    def losses(self, output: Output, batch: Batch, *, smoothed: bool = True) -> Loss:
        if self.config.task is not None:
            return super().losses(output, batch, smoothed=smoothed)
        labels = "labels" if "labels" in batch else "input_ids"
        read = {name: on_device(batch[name]) for name in ("attention_mask", "segment_ids") if name in batch}
        return _next_token_losses(output.require_logits(), on_device(batch[labels]), **read)

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.embeddings(tokens, positions=positions, key=key)

    def logits(self, hidden: jax.Array) -> jax.Array:
        logits: jax.Array = self.output(hidden, self.embeddings.token)
        return logits

    def prompt(self, batch: Batch, options: ForwardOptions, new_tokens: int) -> Prompt:
        tokens, present, positions, _ = read_tokens(batch, self.config.position_table, causal=True)
        cache = empty_cache(self.decoder, len(tokens), tokens.shape[1] + new_tokens, options.compute.type)
        present = jnp.ones(tokens.shape, bool) if present is None else present
        return tokens, present, positions, cache


@jax.jit
def _next_token_losses(
    logits: jax.Array,
    labels: jax.Array,
    attention_mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
) -> Loss:
    """Return the losses of each token's successor, as one program also where no other is traced."""
    targets = labels[:, 1:]
    if attention_mask is not None:  # padding predicts nothing either
        present = attention_mask.astype(bool)
        targets = jnp.where(present[:, 1:] & present[:, :-1], targets, IGNORED)
    if segment_ids is not None:  # the first token of a packed example follows another one
        targets = jnp.where(segment_ids[:, 1:] == segment_ids[:, :-1], targets, IGNORED)
    losses, weight = cross_entropy(logits[:, :-1], targets)
    return Loss(losses.sum(axis=1), weight.sum(axis=1))
