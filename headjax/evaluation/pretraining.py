"""Accuracy of BERT's two pre-training tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from headjax.evaluation.measures import Kind, Measure, Outcome, Outcomes, misfit
from headjax.models.config import Batch, ModelConfig, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import Pretraining


@dataclasses.dataclass(frozen=True)
class MaskedAndNext(Measure):
    """How many masked tokens, and how many next-sentence labels, are predicted.

    Outcomes: `masked_right`, of the example's `targets`, and `next_right`, 1 or 0.
    """

    headline: str = "masked_accuracy"

    def fit(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(getattr(config, "output", None), Pretraining):
            raise misfit(config, "a pretraining, masked tokens and the next sentence")
        return config

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"masked_right": masked_right, "next_right": next_right}

    @property
    def kind(self) -> Kind:
        return "corpus"

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        return {
            "masked_accuracy": float(outcomes["masked_right"].sum() / outcomes["targets"].sum()),
            "next_sentence_accuracy": float(outcomes["next_right"].mean()),
        }


def masked_right(output: Output, batch: Batch) -> jax.Array:
    """`[batch]` masked tokens whose right token has the largest logit."""
    right = jnp.argmax(output.require_logits(), axis=-1) == batch_array(batch, "labels")  # -100 is no token
    return right.sum(axis=1).astype(jnp.float32)


def next_right(output: Output, batch: Batch) -> jax.Array:
    """`[batch]` 1 where the next-sentence label has the larger logit."""
    logits = output.require_logits("seq_relationship_logits")
    return (jnp.argmax(logits, axis=-1) == batch_array(batch, "next_sentence_label")).astype(jnp.float32)
