"""Orders of removal by the names that the command line and the report use."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Size
from headjax.core.progress import Update
from headjax.core.serialize import unknown_name
from headjax.heads.groups import by_groups, key_value_groups, removals
from headjax.heads.head_id import all_heads
from headjax.heads.learned_gates import GateDistribution, HardConcrete, Subset
from headjax.heads.ordering import Order, by_ablation, by_score, flat, in_stacks, random_order
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.heads.scores import SCORES
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.sites.ablation import ablate
from headjax.sites.learning import learn_gates
from headjax.sites.scoring import score_heads

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
    model: Model,
    batches: Sequence[Batch],
    config: OrderConfig,
    *,
    progress: Update | None = None,
) -> Callable[[int], Order]:
    """Return a function from a number of heads to remove to all heads of the chosen stacks in the order of removal.

    Learned gates choose this many heads together and put them first; the other orders do not depend on the number.
    A head of layers that share their parameters follows itself, layer after layer (`headjax.heads.groups.removals`).
    """
    together = functools.partial(removals, model.config, whole_groups=config.whole_groups)
    if config.by in LEARNED:
        return lambda count: flat(together(_by_learned_gates(model, batches, config, count, progress)))
    order = _fixed_order(model, batches, config, progress)
    order = flat(together(in_stacks(model.config, order, config.stacks) if config.stacks else order))
    return lambda count: order


def units(config: OrderConfig, batches: int) -> tuple[int, str]:
    """Return the last count of `order_heads`'s progress on this many batches, and the unit."""
    return (config.gate_steps, "step") if config.by in LEARNED else (max(batches, 1), "batch")


LEARNED: Mapping[str, Callable[[OrderConfig, int], GateDistribution]] = {
    "hard_concrete": lambda config, kept: HardConcrete(weight=config.gate_weight),
    "subset": lambda config, kept: Subset(count=kept),
}
"""Orders that choose all heads together: distributions of gates, made from the options and the number to keep."""


def _fixed_order(model: Model, batches: Sequence[Batch], config: OrderConfig, progress: Update | None) -> Order:
    stacks = config.stacks or None
    if config.by == "random":
        return random_order(all_heads(model.config, stacks), config.seed)
    if config.by == "ablation":
        heads: Order = all_heads(model.config, stacks)
        if not config.whole_groups:
            return by_ablation(ablate(model, batches, heads=heads, progress=progress))
        groups = {group[0]: group for group in key_value_groups(model.config, stacks)}
        found = by_ablation(ablate(model, batches, "group", heads=list(groups), progress=progress))
        return flat(groups[head] for head in found)
    if config.by == "reconstruction":
        chosen: dict[str, Any] = {"stacks": stacks, "whole_groups": config.whole_groups}
        return reconstruction_order(model, batches, **chosen, progress=progress)
    values = score_heads(model, batches, progress=progress).score(config.by)
    return by_groups(model.config, values) if config.whole_groups else by_score(values)


def _by_learned_gates(
    model: Model, batches: Sequence[Batch], config: OrderConfig, count: int, progress: Update | None
) -> Order:
    stacks = config.stacks or None
    kept = max(len(all_heads(model.config, stacks)) - count, 1)
    options: dict[str, Any] = {"steps": config.gate_steps, "learning_rate": config.gate_rate, "seed": config.seed}
    options["stacks"] = stacks
    learned = learn_gates(model, batches, LEARNED[config.by](config, kept), **options, progress=progress).logits
    return by_groups(model.config, learned) if config.whole_groups else by_score(learned)
