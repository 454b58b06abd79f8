"""Answers as spans of the input (SQuAD)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.core.fields import Rate
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors
from headjax.models.base import Batch, Loss, Output
from headjax.models.dropout import Dropper
from headjax.models.inputs import abstract_integers, batch_array
from headjax.models.linear import linear, linear_tensors
from headjax.models.outputs import IGNORED, cross_entropy
from headjax.models.tasks.base import Features, Logits, TaskOutput, Vocabulary


@kind("span")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(TaskOutput):
    """p(start = t) = softmax_t(h_t w_s + b_s), p(end = t) = softmax_t(h_t w_e + b_e) (Devlin et al. 2019, section 4.2).

    `start_positions` and `end_positions [batch]` are the labels; one outside the sequence carries no loss. `logits` are
    `[batch, length, 2]`, start before end, and also come as `extra_logits["start_logits"]` and `["end_logits"]`.

    Attributes:
        dropout: rate on the hidden states (DistilBERT has one here, BERT none).
    """

    needs_tokens: ClassVar[bool] = True

    dropout: Rate = 0.0

    def tensors(self, width: int, vocabulary: Vocabulary) -> Tensors:
        return linear_tensors(width, 2)

    def __call__(self, params: Params, features: Features, key: jax.Array | None) -> Logits:
        logits = linear(params, Dropper(self.dropout, key)(features.hidden))
        return Logits(logits, {"start_logits": logits[..., 0], "end_logits": logits[..., 1]})

    def loss(self, output: Output, batch: Batch) -> Loss:
        """Both ends are targets, so that the mean is the mean of the two cross-entropies."""
        positions = jnp.stack([batch_array(batch, f"{end}_positions") for end in ("start", "end")], axis=1)
        logits = output.require_logits()
        inside = (positions >= 0) & (positions < logits.shape[1])
        losses, counted = cross_entropy(jnp.swapaxes(logits, 1, 2), jnp.where(inside, positions, IGNORED))
        return Loss(losses.sum(axis=1), counted.sum(axis=1))

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return 2 * length * width * 2

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size,), "start_positions", "end_positions")
