"""Putting head scores on a common scale."""

from __future__ import annotations

import itertools
import math

from headjax.heads.gates import Values
from headjax.heads.head_id import HeadId


def normalize_layers(values: Values) -> dict[HeadId, float]:
    """Layer-wise l2 normalisation (Molchanov et al. 2017): I_h / (sqrt(sum over the layer's heads of I^2) + 1e-20).

    Michel et al. normalise importance so before they compare heads of different layers. The layers of each head stack
    are normalised on their own.
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
    """(v - min) / (max - min) over all heads; all 0 where the values are equal."""
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    span = high - low
    return {head: (value - low) / span if span > 0.0 else 0.0 for head, value in values.items()}


def hies(importance: Values, entropy: Values, alpha: float = 0.5) -> dict[HeadId, float]:
    """Head importance-entropy score (arXiv 2510.13832): alpha * I^ + (1 - alpha) * (1 - E^).

    I^ and E^ are importance and entropy, each min-max normalised over all heads. The authors choose alpha per task on
    held-out data.

    Args:
        importance: importance of every head.
        entropy: mean attention entropy over log(number of keys) of the same heads.
        alpha: weight of the importance, from 0 to 1.
    """
    scaled, spread = min_max(importance), min_max(entropy)
    return {head: alpha * scaled[head] + (1.0 - alpha) * (1.0 - spread[head]) for head in importance}
