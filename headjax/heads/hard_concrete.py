"""Hard-concrete gates: an L0 penalty on the number of open heads (Louizos et al. 2018; Voita et al. 2019)."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import NotNegative, Positive
from headjax.heads.learned_gates import GateDistribution, Logits


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardConcrete(GateDistribution):
    """Gates that are exactly 0 or 1 with finite probability, and differentiable in between.

        s = sigmoid((log u - log(1 - u) + log a) / beta),  u uniform on (0, 1)
        gate = clip(s (high - low) + low, 0, 1)
        penalty = weight * sum over heads of P(gate > 0),  P(gate > 0) = sigmoid(log a - beta log(-low / high))
        final gate = clip(sigmoid(log a) (high - low) + low, 0, 1)

    How many heads close follows from the weight; there is no exact number. Use `Subset` for one.

    Attributes:
        weight: nats that one open head costs, beside the mean loss per target.
        initial: log a to start from; 2 opens a gate with probability 0.94.
        temperature: beta.
        low, high: the stretched interval.
    """

    weight: NotNegative
    initial: float = 2.0
    temperature: Positive = 0.33
    low: float = -0.1
    high: float = 1.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low < 0.0, "low", f"must be below 0, got {self.low}")
        require(self.high > 1.0, "high", f"must be above 1, got {self.high}")

    def sample(self, logits: Logits, key: jax.Array, progress: jax.Array) -> Logits:
        gates = {}
        for i, (stack, array) in enumerate(sorted(logits.items())):
            u = jax.random.uniform(jax.random.fold_in(key, i), array.shape, minval=1e-6, maxval=1.0 - 1e-6)
            gates[stack] = self._stretch(jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + array) / self.temperature))
        return gates

    def penalty(self, logits: Logits) -> jax.Array:
        return self.weight * jnp.stack([array.sum() for array in self.open_probability(logits).values()]).sum()

    def open_probability(self, logits: Logits) -> Logits:
        """P(gate > 0) of every head."""
        shift = self.temperature * math.log(-self.low / self.high)
        return {stack: jax.nn.sigmoid(array - shift) for stack, array in logits.items()}

    def final(self, logits: Logits) -> Logits:
        return {stack: self._stretch(jax.nn.sigmoid(array)) for stack, array in logits.items()}

    def _stretch(self, s: jax.Array) -> jax.Array:
        return jnp.clip(s * (self.high - self.low) + self.low, 0.0, 1.0)
