"""Which heads should share: partitions into groups of equal size that lower a cost."""

from __future__ import annotations

import itertools

import numpy as np

Partition = tuple[tuple[int, ...], ...]
"""Head positions, group by group."""


def consecutive(num_heads: int, groups: int) -> Partition:
    """Neighbouring heads: 0, 1 | 2, 3 | ..."""
    size = num_heads // groups
    return tuple(tuple(range(start, start + size)) for start in range(0, num_heads, size))


def best_partition(distances: np.ndarray, groups: int, *, seed: int = 0, restarts: int = 8) -> Partition:
    """Groups of equal size with a low sum of distances between members.

    From the consecutive partition and from random ones, the exchange of two heads that lowers the sum most is made
    until none does. Each result cannot be improved by one exchange; the best of all starts is returned, its groups in
    the order of their first heads.

    Args:
        distances: `[heads, heads]`, symmetric.
        groups: number of groups, a divisor of heads.
        seed: of the random starts.
        restarts: number of random starts.
    """
    heads = distances.shape[0]
    generator = np.random.default_rng(seed)
    starts = [np.arange(heads)] + [generator.permutation(heads) for _ in range(restarts)]
    labels = np.arange(heads) * groups // heads
    improved = [_exchange(distances, labels[np.argsort(order)]) for order in starts]
    best = min(improved, key=lambda found: _cost(distances, found))
    parts = [tuple(int(head) for head in np.flatnonzero(best == group)) for group in range(groups)]
    return tuple(sorted(parts))


def _exchange(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    labels = labels.copy()
    while True:
        gains = {
            pair: _gain(distances, labels, *pair)
            for pair in itertools.combinations(range(len(labels)), 2)
            if labels[pair[0]] != labels[pair[1]]
        }
        if not gains:
            return labels
        pair, gain = max(gains.items(), key=lambda item: item[1])
        if gain <= 1e-9 * max(float(np.abs(distances).max()), 1e-30):
            return labels
        i, j = pair
        labels[i], labels[j] = labels[j], labels[i]


def _gain(distances: np.ndarray, labels: np.ndarray, i: int, j: int) -> float:
    """By how much the sum falls when heads i and j change places."""
    of_i, of_j = labels == labels[i], labels == labels[j]
    now = distances[i, of_i].sum() + distances[j, of_j].sum()
    then = distances[i, of_j].sum() + distances[j, of_i].sum()
    # Counted above: i with itself and i with j, which exchanging leaves as far apart as they were.
    return float(now - then + 2.0 * distances[i, j] - distances[i, i] - distances[j, j])


def _cost(distances: np.ndarray, labels: np.ndarray) -> float:
    return float(distances[labels[:, None] == labels[None, :]].sum())
