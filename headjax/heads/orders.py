"""Orders of removal by the names that the command line and the report use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flax import nnx

from headjax.core.errors import HeadjaxError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Size, unknown_name
from headjax.core.progress import Update
from headjax.heads.ablation import ablate
from headjax.heads.head_id import Values
from headjax.heads.learned_gates import GateDistribution, HardConcrete, Subset, learn_gates
from headjax.heads.ordering import (
    Order,
    by_ablation,
    by_groups,
    by_score,
    flat,
    key_value_groups,
    random_order,
    removals,
)
from headjax.heads.program import Applied, Loss, shown_in, sites_of
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.heads.scoring import GRADIENT_SCORES, SCORES, score_heads
from headjax.heads.site import find_heads, require_stacks

OTHER_ORDERS: Mapping[str, str] = {
    "ablation": "cost of removing each head alone: the oracle of Michel et al. 2019, section 4",
    "reconstruction": "error left once the kept heads are refitted, by its effect on the output: no labels; ZipLM",
    "hard_concrete": "learned gates under an L0 penalty: Voita et al. 2019",
    "subset": "learned gates that keep exactly the number asked for: Li et al. 2021",
    "random": "no order at all",
}
"""Orders other than the scores of `SCORES`, with their descriptions."""

ORDERS: Mapping[str, str] = {**SCORES, **OTHER_ORDERS}
"""All orders by name, with their descriptions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderConfig(Checked):
    """Order of removal.

    Attributes:
        by: Name in `ORDERS`.
        seed: Seed of random orders and of the samples of learned gates.
        gate_steps: Number of training steps of learned gates.
        gate_rate: Learning rate of learned gates.
        gate_weight: Nats that an open gate costs under `hard_concrete`.
        stacks: Head stacks to remove heads from; empty is all.
        whole_groups: Whether all query heads of a KV head go together, by the sum of their scores, or by
            the cost of removing them together (`ablation`, `reconstruction`).
    """

    by: str = "importance_layer"
    seed: Count = 0
    gate_steps: Size = 200
    gate_rate: Positive = 0.05
    gate_weight: NotNegative = 0.01
    stacks: tuple[str, ...] = ()
    whole_groups: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.by in ORDERS, "by", unknown_name("order", self.by, ORDERS))


def order_heads(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    by: str | OrderConfig = "importance_layer",
    *,
    count: int = 0,
    loss: Loss | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Order:
    """Return all heads in the order of their removal, the most dispensable first.

    A head of layers that share their parameters follows itself, layer after layer.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> order = headjax.order_heads(model, batches, "importance_layer")
        >>> len(order), str(order[0])
        (32, 'decoder/1/6')

    Args:
        model, batches, loss, strict: As for `score_heads`. The order `reconstruction` reads no labels where there is no
            loss and the model offers the walk, see `headjax.reconstruction_order`.
        by: Name of an order (`headjax.heads.orders.ORDERS`): a score, `ablation`, `hard_concrete`, `subset`, ...
            Or an `OrderConfig`, which also says the head stacks, and whether KV groups go whole.
        count: Number of heads to remove, for the orders that choose them together (`subset`).
        progress: Called with the number of batches or steps done.

    Raises:
        DataError: There are no batches.
        HeadjaxError: There is no such order, the model has none by this name, or as for `score_heads`.
    """
    config, sites = OrderConfig(by=by) if isinstance(by, str) else by, sites_of(model)
    stacks = require_stacks(sites, config.stacks)
    heads = tuple(head for head in find_heads(sites) if head.stack in stacks)
    options: dict[str, Any] = {"loss": loss, "strict": strict, "progress": progress}
    if config.by == "random":
        order = random_order(heads, config.seed)
    elif config.by == "ablation" and config.whole_groups:
        groups = {group[0]: group for group in key_value_groups(sites, stacks)}
        found = by_ablation(ablate(model, batches, "group", heads=list(groups), **options))
        order = flat(groups[head] for head in found)
    elif config.by == "ablation":
        order = by_ablation(ablate(model, batches, heads=heads, **options))
    elif config.by == "reconstruction":
        if not isinstance(model, nnx.Module):
            raise HeadjaxError("by: reconstruction: needs an nnx.Module, in a copy of which W_O is refitted")
        chosen: dict[str, Any] = {"stacks": stacks, "whole_groups": config.whole_groups}
        order = reconstruction_order(model, batches, **chosen, **options)
    else:
        given = SCORES if len(shown_in(model, sites)) == len(sites) else GRADIENT_SCORES
        values = _values(model, batches, config, stacks, max(len(heads) - count, 1), given, options)
        order = by_groups(sites, values) if config.whole_groups else by_score(values)
    return flat(removals(sites, order, whole_groups=config.whole_groups))


def _values(
    model: Any,
    batches: Iterable[Any],
    config: OrderConfig,
    stacks: Sequence[str],
    kept: int,
    given: Collection[str],
    options: Mapping[str, Any],
) -> Values:
    """Return the values of heads by which an order goes: scores, or logits of learned gates."""
    if config.by in LEARNED:
        settings: dict[str, Any] = {"steps": config.gate_steps, "learning_rate": config.gate_rate, "seed": config.seed}
        settings |= {"stacks": stacks, **options}
        return learn_gates(model, batches, LEARNED[config.by](config, kept), **settings).logits
    _require_score(config.by, given)
    scores = score_heads(model, batches, **options)
    _require_score(config.by, scores.values)
    return {head: value for head, value in scores.score(config.by).items() if head.stack in stacks}


def _require_score(by: str, given: Collection[str]) -> None:
    """Raise `HeadjaxError` for an order by a score that a model does not give."""
    if by not in given:
        scores = [name for name in SCORES if name in given]
        raise HeadjaxError(f"by: {by}: not of such a model, which has {', '.join([*scores, *OTHER_ORDERS])}")


def units(config: OrderConfig, batches: int) -> tuple[int, str]:
    """Return the last count of `order_heads`'s progress on this many batches, and the unit."""
    return (config.gate_steps, "step") if config.by in LEARNED else (max(batches, 1), "batch")


LEARNED: Mapping[str, Callable[[OrderConfig, int], GateDistribution]] = {
    "hard_concrete": lambda config, kept: HardConcrete(weight=config.gate_weight),
    "subset": lambda config, kept: Subset(count=kept),
}
"""Orders that choose all heads together: distributions of gates, made from the options and the number to keep."""
