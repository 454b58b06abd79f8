"""Learning which heads to keep: gates drawn from a distribution whose parameters alone are trained."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from headjax.core.errors import DataError
from headjax.core.fields import Checked
from headjax.core.losses import Losses
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import Order, by_score
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model

Logits = dict[str, jax.Array]
"""What is learned: `[layers, max_heads]` by head stack, high for heads worth keeping; -inf where there is none."""


class GateDistribution(Checked, abc.ABC):
    """A distribution of gates with one learned logit per head. Subclasses are frozen dataclasses."""

    initial: float
    """The logit every head starts from."""

    def check(self, total: int) -> None:
        """Raises `HeadjaxError` if the distribution asks for what a model of `total` heads cannot give."""

    @abc.abstractmethod
    def sample(self, logits: Logits, key: jax.Array, progress: jax.Array) -> Logits:
        """Gates for one training step, differentiable in the logits.

        Args:
            logits: the learned logits.
            key: a PRNG key.
            progress: fraction of the training done, from 0 to 1, for what anneals.
        """

    @abc.abstractmethod
    def penalty(self, logits: Logits) -> jax.Array:
        """What is added to the mean loss per target."""

    @abc.abstractmethod
    def final(self, logits: Logits) -> Logits:
        """The gates to use after training, without randomness."""


class LearnedGates(NamedTuple):
    """Learned gates.

    Attributes:
        gates: `[layers, max_heads]` by head stack; where they are neither 0 nor 1, `fold_gates` makes them part of the
            model.
        removed: heads with gate 0, the most dispensable first.
        logits: what was learned of each head of the chosen stacks; as a score it orders them.
        losses: `[steps]` mean loss per target at each step, penalty not included.
    """

    gates: dict[str, jax.Array]
    removed: Order
    logits: dict[HeadId, float]
    losses: np.ndarray


def learn_gates(
    model: Model,
    batches: Sequence[Batch],
    distribution: GateDistribution,
    *,
    steps: int,
    learning_rate: float,
    seed: int = 0,
    stacks: Collection[str] | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> LearnedGates:
    """Trains the logits of a gate distribution with Adam; the model's parameters stay as they are.

    Every step draws one set of gates for its batch and descends the mean loss per target plus the penalty. Batches are
    used in turn, again and again. Dropout and label smoothing are off.

    Args:
        model: a trained model.
        batches: examples with labels.
        distribution: `HardConcrete` or `Subset`.
        steps: number of steps.
        learning_rate: of Adam.
        seed: of the samples.
        stacks: head stacks whose gates are learned; None is all. The gates of the other stacks stay 1.
        compute: how to compute.
        progress: called after every step with the number of steps done and the latest loss that the host knows, see
            `headjax.core.losses`.

    Raises:
        DataError: there are no batches.
        HeadjaxError: the loss is not finite, more heads are to be kept than there are, or the model has no such head
            stack.
    """
    if not batches:
        raise DataError("batches: there is no example to learn gates on")
    config = model.config.for_evaluation()
    heads = all_heads(config, stacks)
    distribution.check(len(heads))
    present = head_gates.from_values(config, dict.fromkeys(heads, 1.0), fill=0.0)
    learned = {head.stack for head in heads}
    logits = {
        stack: jnp.where(present[stack] > 0, distribution.initial, -jnp.inf) for stack in present if stack in learned
    }
    state = _State(logits, optax.adam(learning_rate).init(logits))
    key, losses = jax.random.key(seed), Losses("learned gates", steps)
    for step, batch in zip(range(steps), itertools.cycle(batches), strict=False):
        arrays = device_batch(config, batch)
        fraction = jnp.float32(step / max(steps - 1, 1))
        drawn = jax.random.fold_in(key, step)
        state, loss = _step(config, distribution, compute, model.params, arrays, state, drawn, fraction, learning_rate)
        losses.add(loss)
        if progress is not None:
            progress(step + 1, losses.latest())
    everywhere = head_gates.ones(config)
    gates = everywhere | distribution.final(state.logits)
    values, opened = (head_gates.to_values(config, everywhere | arrays) for arrays in (state.logits, gates))
    values = {head: values[head] for head in heads}
    removed = tuple(head for head in by_score(values) if opened[head] == 0.0)
    return LearnedGates(gates, removed, values, losses.fetch())


class _State(NamedTuple):
    logits: Logits
    optimizer: Any


@functools.partial(jax.jit, static_argnames=("config", "distribution", "compute"))
def _step(
    config: ModelConfig,
    distribution: GateDistribution,
    compute: Compute,
    params: Params,
    batch: Mapping[str, Any],
    state: _State,
    key: jax.Array,
    progress: jax.Array,
    learning_rate: float,
) -> tuple[_State, jax.Array]:
    def objective(logits: Logits) -> tuple[jax.Array, jax.Array]:
        gates = head_gates.ones(config) | distribution.sample(logits, key, progress)
        loss = config.loss(config.apply(params, batch, Options(gates=gates, compute=compute)), batch).mean()
        return loss + distribution.penalty(logits), loss

    gradient, loss = jax.grad(objective, has_aux=True)(state.logits)
    # Columns without a head have no finite logit; what leaks into their gradient must not reach the others' moments.
    gradient = {stack: jnp.where(jnp.isfinite(state.logits[stack]), array, 0.0) for stack, array in gradient.items()}
    updates, optimizer = optax.adam(learning_rate).update(gradient, state.optimizer)
    logits = {stack: array + updates[stack] for stack, array in state.logits.items()}
    return _State(logits, optimizer), loss
