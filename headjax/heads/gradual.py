"""Removing heads step by step, with training in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.heads.ordering import Order
from headjax.heads.pruning import prune
from headjax.models.model import Model


class Gradual(NamedTuple):
    """A model pruned step by step.

    Attributes:
        model: what is left.
        removed: the heads that went, in the order in which they did.
    """

    model: Model
    removed: Order


def prune_gradually(
    model: Model, counts: Sequence[int], order_of: Callable[[Model, int], Order], tune: Callable[[Model], Model]
) -> Gradual:
    """Removes heads for real, tunes what is left, orders the remaining heads anew, and so on.

    Args:
        model: the whole model.
        counts: numbers of heads that are gone after each step (`headjax.heads.steps`), rising.
        order_of: from a model and how many heads go next to those that may go, in the order of their removal.
        tune: trains a pruned model (`headjax.training.distillation`).

    Raises:
        HeadjaxError: counts that do not rise, or fewer heads may go than asked for.
    """
    if sorted(counts) != list(counts):
        raise HeadjaxError(f"counts: must rise, got {list(counts)}")
    removed: Order = ()
    for count in counts:
        wanted = count - len(removed)
        if not wanted:
            continue
        step = order_of(model, wanted)[:wanted]
        if len(step) < wanted:
            raise HeadjaxError(f"remove: {count} heads, only {len(removed) + len(step)} may be removed")
        model, removed = tune(prune(model, step)), removed + step
    return Gradual(model, removed)
