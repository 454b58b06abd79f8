"""Orders in which to remove heads, the most dispensable first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads import gates as head_gates
from headjax.heads.ablation import Ablation
from headjax.heads.gates import Values
from headjax.heads.head_id import HeadId, all_heads, require_stack
from headjax.heads.scores import SCORES, Scores
from headjax.models.config import ModelConfig

Order = tuple[HeadId, ...]
"""Heads in the order of their removal."""

Rescore = Callable[[dict[str, jax.Array]], Values]
"""From gates (removed heads at 0) to a score of every head, low for dispensable ones."""


def by_score(values: Values, low_first: bool = True) -> Order:
    """One-shot order: heads by score, ties by name.

    Args:
        values: a score of every head.
        low_first: whether heads with low scores go first (importance) or those with high ones (entropy), see
            `headjax.heads.scores.SCORES`.
    """
    sign = 1.0 if low_first else -1.0
    return tuple(sorted(values, key=lambda head: (sign * values[head], head)))


def by_scores(scores: Scores, name: str, transform: Callable[[Values], Values] = dict) -> Order:
    """One-shot order by a score of `score_heads`, in the direction that `SCORES` gives for it.

    Args:
        scores: the scores.
        name: which of them.
        transform: of its values, such as `normalize_layers`; by default none.

    Raises:
        HeadjaxError: there is no score of this name.
    """
    return by_score(transform(scores.score(name)), SCORES[name].low_first)


def by_ablation(ablation: Ablation, metric: str = "loss") -> Order:
    """Oracle order: the heads whose removal alone costs least go first (Michel et al. 2019, section 4).

    Args:
        ablation: removal of each head alone.
        metric: `loss`, or a metric of which more is better.

    Raises:
        HeadjaxError: there is no such metric, or the ablation is not of mode `each`.
    """
    if ablation.mode != "each":
        raise HeadjaxError(f"mode: an order needs the ablation of each head alone, got {ablation.mode!r}")
    return by_score(ablation.effects(metric), low_first=metric == "loss")


def random_order(config: ModelConfig, seed: int, stacks: Iterable[str] | None = None) -> Order:
    """A random order of all heads (of these head stacks)."""
    heads = all_heads(config, stacks)
    return tuple(heads[i] for i in np.random.default_rng(seed).permutation(len(heads)))


def iterative(
    config: ModelConfig,
    counts: Sequence[int],
    rescore: Rescore,
    minimum: int = 0,
    stacks: Iterable[str] | None = None,
) -> Order:
    """Order with re-scoring: remove, score the remaining heads, remove again.

    Args:
        config: the architecture.
        counts: numbers of removed heads after which to score anew (`headjax.heads.pruning`), rising.
        rescore: called before each step with the gates of the remaining heads.
        minimum: number of heads that every layer keeps.
        stacks: head stacks to remove heads from, at whose heads alone the counts are spent; None is all. The gates of
            the other stacks stay 1.

    Returns:
        The heads removed by the last step; fewer if `minimum` leaves no more to remove.

    Raises:
        HeadjaxError: the counts do not rise, or the model has no such head stack.
    """
    if sorted(counts) != list(counts):
        raise HeadjaxError(f"counts: must rise, got {list(counts)}")
    heads = all_heads(config, stacks)
    order: Order = ()
    for count in counts:
        if count <= len(order):
            continue
        values = rescore(head_gates.without(config, order))
        rest = by_score({head: values[head] for head in heads if head not in set(order)})
        order = keep_minimum(config, order + rest, minimum)[:count]
    return order


def in_stacks(config: ModelConfig, order: Order, stacks: Iterable[str]) -> Order:
    """The heads of these head stacks alone (Michel et al. 2019, figure 4).

    Raises:
        HeadjaxError: the model has no such head stack.
    """
    chosen = set(stacks)
    for stack in chosen:
        require_stack(config, stack)
    return tuple(head for head in order if head.stack in chosen)


def keep_minimum(config: ModelConfig, order: Order, minimum: int) -> Order:
    """The order without the removals that would leave a layer fewer than `minimum` heads."""
    left = Counter((head.stack, head.layer) for head in all_heads(config))
    kept = []
    for head in order:
        if left[head.stack, head.layer] > minimum:
            left[head.stack, head.layer] -= 1
            kept.append(head)
    return tuple(kept)
