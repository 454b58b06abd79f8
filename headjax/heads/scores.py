"""Compute every head score in one pass over the data, and bring scores to a common scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.short import brief
from headjax.heads.head_id import HeadId, Values

GRADIENT_SCORES: Mapping[str, str] = {
    "importance": "mean over examples of |dL/dxi_h|: Michel et al. 2019, equation 2",
    "importance_layer": "importance over the l2 norm of its layer's: so Michel et al. compare heads of all layers",
    "importance_token": "mean over tokens of |dL/dxi_(h,t)|: Michel et al.'s published code (absolute value per token)",
    "fisher": "sum over examples of (dL/dxi_h)^2, the empirical Fisher diagonal: Kwon et al. 2022",
}
"""Definitions of the scores that need a backward pass, by name."""

SCORES: Mapping[str, str] = {
    **GRADIENT_SCORES,
    "hies": "0.5 min-max importance + 0.5 (1 - min-max normalized_entropy): arXiv 2510.13832",
}
"""Definitions of the scores that order heads, the least first."""

DESCRIPTIONS: Mapping[str, str] = {
    **SCORES,
    "entropy": "mean attention entropy, nats",
    "normalized_entropy": "mean attention entropy over log(number of visible keys)",
    "distance": "mean attention distance, positions",
}
"""Definitions of the scores, and of what describes a head's attention without saying whether the model needs it."""


_SUMMED = ("importance", "importance_token", "fisher")
"""Scores that are sums over examples; others are made of them."""

NO_TARGET = "there is no example with a target to score heads on"


class Scores(NamedTuple):
    """Scores of all heads.

    Attributes:
        values: By name in `DESCRIPTIONS`, one number per head.
        loss: Mean loss per target, nats.
        examples: Number of examples that had a target.
        seconds: Wall-clock time of the pass, compilation included.
    """

    values: dict[str, dict[HeadId, float]]
    loss: float
    examples: int
    seconds: float

    def __repr__(self) -> str:
        return brief(self)

    def score(self, name: str) -> dict[HeadId, float]:
        """Return the values of one score."""
        if name not in self.values:
            raise HeadjaxError(f"score: {unknown_name('score', name, self.values)}")
        return self.values[name]


ByPlace = Mapping[str, Any]
"""Arrays of the shape of gates, by head stack, or by the path of a layer."""


def require_finite(sums: Mapping[str, ByPlace], to_values: Callable[[ByPlace], Values], batch: int) -> None:
    """Raise a `HeadjaxError` that names the head if the sum of a score over a batch is not finite."""
    for name, arrays in sums.items():
        if all(np.isfinite(array).all() for array in arrays.values()):
            continue
        for head, value in to_values(arrays).items():
            if not np.isfinite(value):
                raise HeadjaxError(f"score: {name} of head {head} is {value} in batch {batch}, counted from 0")


def means(
    sums: Mapping[str, ByPlace],
    examples: float,
    queries: ByPlace,
    to_values: Callable[[ByPlace], dict[HeadId, float]],
) -> dict[str, dict[HeadId, float]]:
    """Return the scores of their sums over all examples, and those that are made of others."""
    divisors = {"importance": examples, "fisher": 1.0}
    values = {}
    for name, arrays in sums.items():
        # A source of padding alone has no query, and its sums are 0.
        scaled = {s: array / divisors.get(name, np.maximum(queries[s], 1.0)) for s, array in arrays.items()}
        values[name] = to_values(scaled)
    values["importance_layer"] = normalize_layers(values["importance"])
    if "normalized_entropy" in values:
        values["hies"] = hies(values["importance"], values["normalized_entropy"])
    return {name: values[name] for name in DESCRIPTIONS if name in values}


def normalize_layers(values: Values) -> dict[HeadId, float]:
    """Return I_h / (sqrt(sum over the layer's heads of I^2) + 1e-20), by layer and head stack (Molchanov et al. 2017).

    Michel et al. normalise importance in this way before they compare heads of different layers.
    """

    def layer(head: HeadId) -> tuple[str, int]:
        return head.stack, head.layer

    normalized = {}
    for _, group in itertools.groupby(sorted(values, key=layer), key=layer):
        heads = list(group)
        norm = math.sqrt(sum(values[head] ** 2 for head in heads))
        normalized.update({head: values[head] / (norm + 1e-20) for head in heads})
    return {head: normalized[head] for head in values}


def min_max(values: Values) -> dict[HeadId, float]:
    """Return (v - min) / (max - min) over all heads; all 0 where the values are equal."""
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    span = high - low
    return {head: (value - low) / span if span > 0.0 else 0.0 for head, value in values.items()}


def hies(importance: Values, entropy: Values, alpha: float = 0.5) -> dict[HeadId, float]:
    """Return the head importance-entropy score (arXiv 2510.13832): alpha * I^ + (1 - alpha) * (1 - E^).

    I^ and E^ are importance and entropy, each min-max normalised over all heads. The authors choose alpha per task on
    held-out data.
    """
    scaled, spread = min_max(importance), min_max(entropy)
    return {head: alpha * scaled[head] + (1.0 - alpha) * (1.0 - spread[head]) for head in importance}
