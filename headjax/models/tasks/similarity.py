"""Sentence vectors: hidden states pooled, mapped and normalised, and the similarity of the two of a pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Size, unknown_name
from headjax.core.serialize import kind
from headjax.models.config import Batch, Loss, Output
from headjax.models.inputs import abstract_integers, batch_array, counted_at
from headjax.models.tasks.task_output import Features, TaskOutput, Vocabulary
from headjax.nn.projections import ACTIVATIONS, ActivationName, Linear

EPSILON = 1e-12
"""Smallest length by which a vector is divided."""

Pooling = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


@kind("dense")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(Checked):
    """phi(e W + b) of a sentence vector e.

    Attributes:
        size: of the result.
        activation: phi, None for the identity.
        bias: whether there is b.
    """

    size: Size
    activation: ActivationName | None = "tanh"
    bias: bool = True


@kind("sentence_similarity")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSimilarity(TaskOutput):
    """Sentence vectors as sentence-transformers makes them (Reimers and Gurevych 2019), and the similarity of two.

    With h_t the hidden states of a sentence's n tokens, t = 1 ... n, the poolings are `mean`, sum_t h_t / n;
    `mean_sqrt_len_tokens`, sum_t h_t / sqrt(n); `weightedmean`, sum_t t h_t / sum_t t; `max`, max_t h_t; `cls`, h_1;
    `lasttoken`, h_n. Several are concatenated. `dense` maps follow, and the division by the length where `normalize`;
    of the result the first `truncate_dim` numbers are kept (Kusupati et al. 2022).

    `embeddings [batch, sentences, size]` are those of both sentences of a pair, which `segment_ids` (1, 2, 0 at
    padding) keep from seeing each other, or else of the whole row; 0 before `dense` for a sentence without tokens. A
    token whose `pooling_mask` is 0, as that of a prompt, is not pooled. `logits [batch]` are the pairs' similarities.
    The loss is the squared difference of the cosine from `labels [batch]`, up to 1, whatever `similarity` is; a `nan`
    carries none.

    Attributes:
        pooling: the poolings.
        dense: maps of the pooled vector.
        normalize: whether the vectors have length 1.
        similarity: `cosine`, `dot`, or the negative distance `euclidean` or `manhattan`.
        prompts: texts by name, one of which stands before a sentence.
        default_prompt_name: the name of the usual one; empty for none.
        include_prompt: whether the tokens of prompts are pooled.
        max_seq_length: greatest number of tokens of a sentence; None is the model's.
        truncate_dim: size of the vectors, cut after the rest; None keeps all numbers.
    """

    needs_tokens: ClassVar[bool] = True

    pooling: tuple[Pooling, ...] = ("mean",)
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    similarity: Similarity = "cosine"
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    default_prompt_name: str = ""
    include_prompt: bool = True
    max_seq_length: Size | None = None
    truncate_dim: Size | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.pooling), "pooling", "name at least one")
        self.prompt(self.default_prompt_name, "default_prompt_name")

    def prompt(self, name: str, field: str = "prompt") -> str:
        """Return the prompt of a name; of none the empty text."""
        known = {"": "", **self.prompts}
        require(name in known, field, unknown_name("prompt", name, self.prompts))
        return known[name]

    def pair_prompts(self, *, retrieval: bool) -> tuple[str, str]:
        """Return the prompts of both sentences of a pair: the usual one, or those of queries and of documents."""
        if not retrieval:
            usual = self.prompt(self.default_prompt_name)
            return usual, usual
        documents = (self.prompts.get(name, "") for name in ("document", "passage", "corpus"))
        return self.prompts.get("query", ""), next(filter(None, documents), "")

    def sizes(self, width: int) -> list[int]:
        """Return the size of the vectors after pooling and after each map."""
        return [width * len(self.pooling), *(dense.size for dense in self.dense)]

    def module(self, width: int, vocabulary: Vocabulary) -> SentenceVectors:
        return SentenceVectors(self, width)

    def loss(self, output: Output, batch: Batch) -> Loss:
        labels = batch_array(batch, "labels").astype(jnp.float32)
        if labels.ndim != 1:
            raise DataError(f"labels: expected one number a pair [batch], got {list(labels.shape)}")
        present = ~jnp.isnan(labels)
        vectors = output.require_embeddings()
        cosines = similarity("cosine", vectors[:, 0], vectors[:, 1])
        squares = jnp.square(cosines - jnp.where(present, labels, 0.0))
        return Loss(jnp.where(present, squares, 0.0), present.astype(jnp.float32))

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        similarities = {"labels": jax.ShapeDtypeStruct((batch_size,), jnp.float32)}
        return abstract_integers((batch_size, length), "segment_ids") | similarities


class SentenceVectors(nnx.Module):
    """The module of `SentenceSimilarity`; its maps are `dense_0`, `dense_1`, ..."""

    def __init__(self, config: SentenceSimilarity, width: int) -> None:
        self.config = config
        for number, (dense, size) in enumerate(zip(config.dense, config.sizes(width), strict=False)):
            setattr(self, f"dense_{number}", Linear(size, dense.size, dense, bias=dense.bias))

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        hidden = features.hidden.astype(jnp.float32)
        members = sentences(features.batch, hidden)  # [batch, sentences, length]
        pooled = [pool(mode, hidden, members, features.batch.get("pooling_mask")) for mode in self.config.pooling]
        vectors = jnp.concatenate(pooled, axis=-1)
        for number, dense in enumerate(self.config.dense):
            vectors = getattr(self, f"dense_{number}").logits(vectors)
            vectors = vectors if dense.activation is None else ACTIVATIONS[dense.activation](vectors)
        vectors = unit(vectors) if self.config.normalize else vectors  # [batch, sentences, size]
        vectors = vectors[..., : self.config.truncate_dim]
        alike = similarity(self.config.similarity, vectors[:, 0], vectors[:, 1]) if vectors.shape[1] == 2 else None
        return features.output(alike, embeddings=vectors)


def sentences(batch: Batch, hidden: jax.Array) -> jax.Array:
    """`[batch, sentences, length]`, 1.0 at the tokens of each sentence, 0.0 elsewhere."""
    segments = batch.get("segment_ids")
    if segments is None:
        return counted_at(batch.get("attention_mask"), hidden.shape[:2])[:, None]
    return (jnp.asarray(segments)[:, None, :] == jnp.array([1, 2])[None, :, None]).astype(jnp.float32)


def pool(mode: Pooling, hidden: jax.Array, members: jax.Array, mask: jax.Array | None) -> jax.Array:
    """`[batch, sentences, width]` of hidden states `[batch, length, width]`; see `SentenceSimilarity`."""
    valid_tokens = members if mask is None else members * mask[:, None]
    if mode == "max":
        inside = valid_tokens[..., None] > 0  # [batch, sentences, length, 1]
        most = jnp.where(inside, hidden[:, None], -jnp.inf).max(axis=2)
        return jnp.where(inside.any(axis=2), most, 0.0)
    number = jnp.cumsum(valid_tokens, axis=2)
    weights = valid_tokens
    if mode == "cls":
        weights = valid_tokens * (number == 1)
    elif mode == "lasttoken":
        weights = valid_tokens * (number == number[..., -1:])
    elif mode == "weightedmean":
        weights = valid_tokens * jnp.cumsum(members, axis=2)  # an excluded prompt leaves the positions as they are
    total = jnp.maximum(weights.sum(axis=2, keepdims=True), 1.0)
    sums = jnp.einsum("bst,btd->bsd", weights, hidden, precision="highest")
    return sums / (jnp.sqrt(total) if mode == "mean_sqrt_len_tokens" else total)


def similarity(name: Similarity, first: jax.Array, second: jax.Array) -> jax.Array:
    """Similarities `[...]` of vectors `[..., size]`."""
    if name == "cosine":
        first, second = unit(first), unit(second)
    if name in ("cosine", "dot"):
        return (first * second).sum(axis=-1)
    difference = first - second
    return -jnp.abs(difference).sum(axis=-1) if name == "manhattan" else -length_of(difference)[..., 0]


def unit(vectors: jax.Array) -> jax.Array:
    """Vectors `[..., size]` divided by their lengths."""
    return vectors / length_of(vectors)


def length_of(vectors: jax.Array) -> jax.Array:
    """Lengths `[..., 1]`, at least `EPSILON`: the gradient at 0 (padding rows) is 0, that of the norm is infinite."""
    return jnp.sqrt(jnp.maximum(jnp.square(vectors).sum(axis=-1, keepdims=True), EPSILON**2))
