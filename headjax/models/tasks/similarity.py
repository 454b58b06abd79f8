"""Sentence embeddings compared by their cosine."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.base import Batch, Loss, Output
from headjax.models.inputs import abstract_integers, batch_array
from headjax.models.tasks.base import Features, Logits, TaskOutput, Vocabulary

EPSILON = 1e-9
"""Keeps the length of an embedding from being 0."""


@kind("sentence_similarity")
@dataclasses.dataclass(frozen=True)
class SentenceSimilarity(TaskOutput):
    """cos(e_1, e_2) of two sentences, e_s = mean of the hidden states of sentence s (Reimers and Gurevych 2019).

    A row holds both sentences of a pair, which `segment_ids` (1, 2, 0 at padding) keep from seeing each other. The loss
    is the squared difference from `labels [batch]`, similarities up to 1; a `nan` carries no loss. There are no
    parameters.
    """

    needs_tokens: ClassVar[bool] = True

    def tensors(self, width: int, vocabulary: Vocabulary) -> Tensors:
        return {}

    def __call__(self, params: Params, features: Features, key: jax.Array | None) -> Logits:
        return Logits(None)

    def loss(self, output: Output, batch: Batch) -> Loss:
        labels = batch_array(batch, "labels").astype(jnp.float32)
        if labels.ndim != 1:
            raise DataError(f"labels: expected one number a pair [batch], got {list(labels.shape)}")
        counted = ~jnp.isnan(labels)
        squares = jnp.square(cosines(output, batch) - jnp.where(counted, labels, 0.0))
        return Loss(jnp.where(counted, squares, 0.0), counted.astype(jnp.float32))

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return 2 * length * width

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        similarities = {"labels": jax.ShapeDtypeStruct((batch_size,), jnp.float32)}
        return abstract_integers((batch_size, length), "segment_ids") | similarities


def sentence_embeddings(output: Output, batch: Batch) -> jax.Array:
    """`[batch, 2, width]` float32: the mean of each sentence's hidden states; 0 for a sentence without tokens."""
    segments = batch_array(batch, "segment_ids")
    members = (segments[:, None, :] == jnp.array([1, 2], segments.dtype)[None, :, None]).astype(jnp.float32)
    sums = jnp.einsum("bst,btd->bsd", members, output.hidden.astype(jnp.float32))
    return sums / jnp.maximum(members.sum(axis=2, keepdims=True), 1.0)


def cosines(output: Output, batch: Batch) -> jax.Array:
    """`[batch]` cosines of the two sentences of every row."""
    embeddings = sentence_embeddings(output, batch)
    squares = jnp.square(embeddings).sum(axis=2, keepdims=True)
    # The norm's gradient at 0 (padding rows) is infinite, that of the clipped square is not.
    unit = embeddings * jax.lax.rsqrt(jnp.maximum(squares, EPSILON**2))
    return (unit[:, 0] * unit[:, 1]).sum(axis=1)
