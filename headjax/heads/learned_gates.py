"""Learn the heads to keep: gates are drawn from a distribution, and its parameters alone are trained.

There are two distributions: hard-concrete gates with an L0 penalty on the number of open heads (Louizos et al. 2018;
Voita et al. 2019), and subset gates, of which exactly k stay open (Li et al. 2021, Differentiable Subset Pruning).
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked, NotNegative, Positive, Size
from headjax.core.numbers import brief
from headjax.core.progress import Update
from headjax.core.timing import Losses
from headjax.heads.head_id import HeadId
from headjax.heads.loss_checks import checked
from headjax.heads.ordering import Order, by_score
from headjax.heads.program import Applied, Loss, Program, compiled, prepare
from headjax.heads.site import Gates, find_heads, ones, require_stacks, to_values
from headjax.nn.block import Compute


class GateDistribution(Checked, abc.ABC):
    """Base of gate distributions with one learned logit per head, high for heads worth keeping.

    Logits have the shape of gates. Subclasses are frozen dataclasses.
    """

    initial: ClassVar[float]  # logit that every head starts from

    def check(self, total: int) -> None:
        """Raise `HeadjaxError` if a model of `total` heads has too few for the distribution."""

    @abc.abstractmethod
    def sample(self, logits: Gates, key: jax.Array, progress: jax.Array) -> Gates:
        """Return gates for one training step, differentiable in the logits."""

    def penalty(self, logits: Gates) -> jax.Array:
        """Return the penalty that is added to the mean loss per target."""
        return jnp.zeros(())

    @abc.abstractmethod
    def final(self, logits: Gates) -> Gates:
        """Return the gates to use after training, without randomness."""


class LearnedGates(NamedTuple):
    """Result of `learn_gates`.

    Attributes:
        gates: By the path of the site, of its `shape`.
        removed: Heads with gate 0, the most dispensable first.
        logits: Learned logit of each head of the chosen stacks, a score that orders them.
        losses: `[steps]` mean loss per target at each step, penalty not included.
    """

    gates: dict[str, jax.Array]
    removed: Order
    logits: dict[HeadId, float]
    losses: np.ndarray

    def __repr__(self) -> str:
        return brief(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardConcrete(GateDistribution):
    """Gates that are exactly 0 or 1 with finite probability, and differentiable in between.

        s = sigmoid((log u - log(1 - u) + log a) / beta),  u uniform on (0, 1)
        gate = clip(s (high - low) + low, 0, 1)
        penalty = weight * sum over heads of P(gate > 0),  P(gate > 0) = sigmoid(log a - beta log(-low / high))
        final gate = clip(sigmoid(log a) (high - low) + low, 0, 1)

    The weight decides the number of heads that close, not exactly; `Subset` keeps an exact number.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> headjax.learn_gates(model, batches, headjax.HardConcrete(weight=0.01), steps=2, learning_rate=0.1).removed
        ()

    Attributes:
        weight: Nats that one open head adds to the mean loss per target.
    """

    weight: NotNegative
    initial: ClassVar[float] = 2.0  # log a, which opens a gate with probability 0.94
    temperature: ClassVar[float] = 0.33  # beta
    low: ClassVar[float] = -0.1
    high: ClassVar[float] = 1.1

    def sample(self, logits: Gates, key: jax.Array, progress: jax.Array) -> Gates:
        gates = {}
        for i, (path, array) in enumerate(sorted(logits.items())):
            u = jax.random.uniform(jax.random.fold_in(key, i), array.shape, minval=1e-6, maxval=1.0 - 1e-6)
            gates[path] = self._stretch(jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + array) / self.temperature))
        return gates

    def penalty(self, logits: Gates) -> jax.Array:
        shift = self.temperature * math.log(-self.low / self.high)
        return self.weight * jnp.stack([jax.nn.sigmoid(array - shift).sum() for array in logits.values()]).sum()

    def final(self, logits: Gates) -> Gates:
        return {path: self._stretch(jax.nn.sigmoid(array)) for path, array in logits.items()}

    def _stretch(self, s: jax.Array) -> jax.Array:
        return jnp.clip(s * (self.high - self.low) + self.low, 0.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subset(GateDistribution):
    """Relaxed sample of k heads out of all, which hardens as the temperature falls.

        r = w + Gumbel noise;  k times: p = softmax(r / tau), gate += p, r += log(1 - p)

        >>> headjax.Subset(count=24).end < headjax.Subset(count=24).start
        True

    The gates of a sample always sum to k. tau falls geometrically over the training. The final gates are 1 for the k
    heads with the largest w and 0 for all others.

    Attributes:
        count: Number k of heads to keep.
        start, end: Temperature tau at the beginning and at the end; the paper's falls from 1000 to 1e-8 in 25,000
            steps.
    """

    count: Size
    initial: ClassVar[float] = 0.0
    start: Positive = 1000.0
    end: Positive = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.start >= self.end, "end", f"must be at most {self.start}, got {self.end}")

    def check(self, total: int) -> None:
        if self.count > total:
            raise HeadjaxError(f"count: {self.count} heads to keep, the model has {total}")

    def sample(self, logits: Gates, key: jax.Array, progress: jax.Array) -> Gates:
        flat, restore = ravel_pytree(logits)
        temperature = self.start * (self.end / self.start) ** progress
        noisy = flat + jax.random.gumbel(key, flat.shape)
        return restore(relaxed_top_k(noisy, self.count, temperature))

    def final(self, logits: Gates) -> Gates:
        flat, restore = ravel_pytree(logits)
        kept = jnp.argsort(-flat, stable=True)[: self.count]
        return restore(jnp.zeros_like(flat).at[kept].set(1.0))


def relaxed_top_k(r: jax.Array, count: int, temperature: jax.Array | float) -> jax.Array:
    """Return weights in [0, 1] of sum `count`, at low temperature the indicator of the largest entries."""
    # A lower bound on 1 - p lets an entry that is taken whole drop far below the others without becoming -inf, whose
    # difference with itself is not a number.
    smallest = 1e-30

    def take(r: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        p = jax.nn.softmax(r / temperature)
        return r + jnp.log(jnp.maximum(1.0 - p, smallest)), p

    _, samples = jax.lax.scan(take, r, None, length=count)
    return samples.sum(axis=0)


def learn_gates(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
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

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> found = headjax.learn_gates(model, batches, headjax.Subset(count=24), steps=2, learning_rate=0.1)
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
    batches = list(batches)
    if not batches:
        raise DataError("batches: there is no example to learn gates on")
    program, params = prepare(model, loss, compute)
    chosen = require_stacks(program.sites, stacks)
    learned = tuple(site for site in program.sites if site.places[0][0] in chosen)
    distribution.check(len(find_heads(learned)))
    # Of no weak type, as those that a step returns are: else the step would be compiled three times.
    logits = {site.path: jnp.full(site.shape, distribution.initial, jnp.float32) for site in learned}
    optimizer, key = optax.adam(learning_rate).init(logits), jax.random.key(seed)
    losses, arrays = Losses("learned gates", steps), checked(program, params, itertools.cycle(batches), strict)
    for step, batch in zip(range(steps), arrays, strict=False):
        state, drawn = (params, batch, logits, optimizer), jax.random.fold_in(key, step)
        fraction = jnp.float32(step / max(steps - 1, 1))
        logits, optimizer, value = _step(program, distribution, *state, drawn, fraction, learning_rate)
        losses.add(value)
        if progress is not None:
            progress(len(losses.fetched), losses.latest())
    gates = distribution.final(logits)
    values, opened = (to_values(learned, arrays) for arrays in (logits, gates))
    removed = tuple(head for head in by_score(values) if opened[head] == 0.0)
    return LearnedGates(ones(program.sites) | gates, removed, values, losses.fetch())


@compiled("distribution")
def _step(
    program: Program,
    distribution: GateDistribution,
    params: Any,
    batch: Any,
    logits: Gates,
    optimizer: Any,
    key: jax.Array,
    progress: jax.Array,
    learning_rate: float,
) -> tuple[Gates, Any, jax.Array]:
    def penalized(logits: Gates) -> tuple[jax.Array, jax.Array]:
        gates = ones(program.sites) | distribution.sample(logits, key, progress)
        total, targets = program.losses(params, gates, batch)
        loss = total.sum() / jnp.maximum(targets.sum(), 1.0)
        return loss + distribution.penalty(logits), loss

    gradient, loss = jax.grad(penalized, has_aux=True)(logits)
    updates, optimizer = optax.adam(learning_rate).update(gradient, optimizer)
    return {path: array + updates[path] for path, array in logits.items()}, optimizer, loss
