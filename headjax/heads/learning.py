"""Learned gates for any model: one compiled step serves all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import DataError
from headjax.core.progress import Update
from headjax.heads.learned_gates import GateDistribution, LearnedGates, closed, descend
from headjax.heads.missed import checked
from headjax.heads.program import Applied, Loss, Program, prepare
from headjax.heads.site import Gates, find_heads, ones, to_values
from headjax.nn.compute import Compute


def learn_gates(
    model: nnx.Module | Applied,
    batches: Sequence[Any],
    distribution: GateDistribution,
    *,
    steps: int,
    learning_rate: float,
    loss: Loss | None = None,
    seed: int = 0,
    stacks: Collection[str] | None = None,
    compute: Compute | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> LearnedGates:
    """Train the logits of a gate distribution with Adam; the model's parameters stay as they are.

    Every step draws one set of gates for its batch and descends the mean loss plus the distribution's penalty.

        >>> from headjax.heads.learned_gates import Subset
        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> found = headjax.learn_gates(model, batches, Subset(count=24), steps=2, learning_rate=0.1)
        >>> len(found.removed)
        8

    Args:
        model, batches, loss, compute, strict: As for `score_heads`.
        distribution: `HardConcrete` or `Subset` of `headjax.heads.learned_gates`.
        steps: Number of steps.
        learning_rate: Learning rate of Adam.
        seed: Seed of the samples.
        stacks: Head stacks whose gates are learned, while those of others stay 1; None is all.
        progress: Called after every step with the number of steps done and the latest loss.

    Raises:
        DataError: There are no batches.
        HeadjaxError: The loss is not finite, more heads are to be kept than there are, or as for `score_heads`.
    """
    if not batches:
        raise DataError("batches: there is no example to learn gates on")
    program, state = prepare(model, loss, compute)
    learned = tuple(site for site in program.sites if stacks is None or site.places[0][0] in stacks)
    distribution.check(len(find_heads(learned)))
    logits = {site.path: jnp.full(site.shape, distribution.initial) for site in learned}
    arrays = checked(program, state, itertools.cycle(batches), strict)
    logits, losses = descend(
        _MeanLoss(program), distribution, logits, state, arrays, steps, learning_rate, seed, progress
    )
    gates = distribution.final(logits)
    values, opened = (to_values(learned, found) for found in (logits, gates))
    return LearnedGates(ones(program.sites) | gates, closed(values, opened), values, losses)


@dataclasses.dataclass(frozen=True)
class _MeanLoss:
    """Mean loss of the targets."""

    program: Program

    def __call__(self, state: Any, batch: Any, gates: Gates) -> jax.Array:
        total, targets = self.program.losses(state, ones(self.program.sites) | gates, batch)
        return total.sum() / jnp.maximum(targets.sum(), 1.0)
