"""Orders in which to remove heads, the most dispensable first, and the number of heads that a request removes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import jax
import numpy as np

from headjax.core.errors import HeadjaxError, require
from headjax.core.fields import Amount, read_amount, unknown_name
from headjax.heads.ablation import Ablation
from headjax.heads.head_id import HeadId, Values, all_heads, position
from headjax.heads.scores import SCORES, Scores
from headjax.models.config import ModelConfig

Order = tuple[HeadId, ...]
"""Heads in the order of their removal."""

Steps = tuple[Order, ...]
"""Removals one after another, each of heads that go together."""

Rescore = Callable[[dict[str, jax.Array]], Values]
"""Function of gates (removed heads at 0) that returns a score of every head, low for dispensable ones."""


def by_score(values: Values, low_first: bool = True) -> Order:
    """Return the one-shot order: heads by score, ties by name."""
    sign = 1.0 if low_first else -1.0
    return tuple(sorted(values, key=lambda head: (sign * values[head], head)))


def by_scores(scores: Scores, name: str) -> Order:
    """Return the one-shot order by a score of `score_heads` that says what a model needs, the least first."""
    if name not in SCORES:
        raise HeadjaxError(f"score: {unknown_name('score', name, SCORES)}")
    return by_score(scores.score(name))


def by_ablation(ablation: Ablation, metric: str = "loss") -> Order:
    """Return the oracle order: heads whose removal alone costs least go first (Michel et al. 2019, section 4)."""
    if ablation.mode == "all-but-one":
        raise HeadjaxError(f"mode: an order needs the ablation of each head alone, got {ablation.mode!r}")
    return by_score(ablation.effects(metric), low_first=metric == "loss")


def random_order(heads: Order, seed: int) -> Order:
    """Return the heads in a random order."""
    return tuple(heads[i] for i in np.random.default_rng(seed).permutation(len(heads)))


def flat(steps: Iterable[Order]) -> Order:
    """Return the heads of all removals, one after another."""
    return tuple(head for step in steps for head in step)


def ends(steps: Steps) -> tuple[int, ...]:
    """Return the numbers of heads that are gone before the first removal and after each one."""
    return tuple(accumulate(map(len, steps), initial=0))


def counted(number: float) -> int:
    """Return a number of heads rounded down, but for the binary fractions of a percentage such as 28.7 % of 1000."""
    return int(round(number, 9))


def shared(share: float, total: int) -> int:
    """Return the number of heads that a share of all means."""
    require(0.0 <= share <= 1.0, "share", f"must be between 0 and 1, got {share}")
    return counted(share * total)


def fitting(steps: Iterable[Order], count: int) -> tuple[Order, Steps]:
    """Return the heads of the removals that fit into `count`, one after another, and the removals that do not."""
    taken, left = list[HeadId](), list[Order]()
    for step in steps:
        if len(step) <= count - len(taken):
            taken.extend(step)
        else:
            left.append(step)
    return tuple(taken), tuple(left)


def fewer(went: int, count: int, left: Steps, none: str) -> str:
    """Return why fewer heads go than asked for: the least of the removals that are left, or `none` without one."""
    why = none
    if left:
        least = min(left, key=len)
        layers = dict.fromkeys(str(head).rpartition("/")[0] for head in least)
        cause = "layers stay equal" if len(layers) > 1 else "KV groups stay whole or equal"
        why = f"the least that could still go is {len(least)} heads, since {cause} ({next(iter(layers))})"
    return f"{went} heads go, not {count}: {why}"


def say_fewer(went: int, count: int, left: Steps, none: str) -> None:
    """Warn where fewer heads go than a share of all asks for."""
    if went < count:
        warnings.warn(f"share: {fewer(went, count, left, none)}", stacklevel=6)


def explicit_heads(config: ModelConfig, request: str) -> Order | None:
    """Return the heads that a request names one by one, separated by commas; None for a number or a percentage."""
    if "/" not in request:
        return None
    heads = tuple(HeadId.parse(text.strip()) for text in request.split(","))
    for head in heads:
        position(config, head)
    return heads


def requested_count(config: ModelConfig, request: str, stacks: Sequence[str] = ()) -> int:
    """Return the number of heads that `12` or `40%` means; a percentage is of all heads, rounded down."""
    total = len(all_heads(config, stacks or None))
    count = counted(amount_of(request).of(total))
    if count > total:
        where = f" in {', '.join(stacks)}" if stacks else ""
        raise HeadjaxError(f"remove: {request} asks for {count} heads, the model has {total}{where}")
    return count


def amount_of(request: str) -> Amount:
    """Return the amount that `12` or `40%` means."""
    try:
        return read_amount(request, "12, or 40%", lambda amount: amount.relative or amount.number.is_integer())
    except ValueError:
        raise HeadjaxError(
            f"remove: {request!r} is no number of heads, percentage or list of heads such as encoder/3/7"
        ) from None
