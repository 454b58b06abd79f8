"""Goals of a removal: options that say how much goes, and the heads that go for them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from headjax.commands.examples import TASK, Examples
from headjax.commands.options import option
from headjax.commands.repair import RepairOptions, calibration_batches
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Amount, Bound, Count, Listed, read_amount
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order, Steps
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model

LENGTH = 128
"""Tokens of an example whose operations `--flops` counts, where neither a task nor `--length` says."""


drop_of = functools.partial(read_amount, such_as="0.01, or 5%")
"""Read the largest loss of a metric: in its own unit, or as a share of its value with all heads."""


def budget_of(text: str) -> Amount:
    """Return the largest size of a model that `60%`, `20000000` or `1.5e9` means.

    Raises:
        ValueError: the text is neither a positive number nor a percentage above 0 and up to 100.
    """
    return read_amount(
        text, "2e7, or 60%", lambda amount: amount.number > 0.0 and not (amount.relative and amount.number > 1.0)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalOptions(RepairOptions):
    """Options of commands that remove heads: how many, and which first."""

    remove: str | None = option(None, "40%, a number of heads, or heads: encoder/3/7,...", "WHAT", one_of="goal")
    max_drop: Amount | None = option(
        None,
        "as many heads as cost at most this much of the metric: 0.01, or 5% of it",
        "D",
        read=drop_of,
        one_of="goal",
    )
    speed_up: Annotated[float, Bound("must be at least 1", lambda value: value >= 1.0)] | None = option(
        None, "as few heads as make a forward X times as fast, by measurement", "X", one_of="goal"
    )
    parameters: Amount | None = option(
        None, "as few heads as leave this many parameters: 60%, or 2e7", "N", read=budget_of, one_of="goal"
    )
    flops: Amount | None = option(
        None,
        "as few heads as leave this many operations of an example: 60%, or 1e9",
        "N",
        read=budget_of,
        one_of="goal",
    )
    by: str = option(
        "importance",
        "order: reconstruction (no labels; best with --reconstruct), reconstruction_labels, a score, importance_raw, "
        "ablation, fisher_blocks, hard_concrete, subset, or random",
        "ORDER",
    )
    task: str = option("", TASK, "TASK", reads=True)
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS")
    minimum: Count = option(0, "heads every layer keeps")
    steps: Listed = option(1, "score and remove in N rounds, heads scored anew in each")
    normalize: bool = option(False, "divide scores by the l2 norm of their layer's")
    whole_groups: bool = option(False, "remove all query heads of a key and value head together")
    uniform: bool = option(
        False,
        "leave every layer as many query heads in as many groups: one of each group in turn, or with --whole-groups "
        "(or where the number allows nothing else) whole groups",
    )

    @property
    def names_heads(self) -> bool:
        """Whether the heads to remove are named one by one."""
        return self.remove is not None and "/" in self.remove


OptionsT = TypeVar("OptionsT", bound=GoalOptions)


class Goal(NamedTuple):
    """The heads to remove.

    Attributes:
        number: how many heads to remove.
        removed: the heads; None where training between the steps decides which.
        found: other findings on the way, for the command's result.
    """

    number: int
    removed: Order | None
    found: Mapping[str, float]


def goal_of(model: Model, examples: Examples | None, options: GoalOptions, progress: Progress) -> Goal:
    """Return the heads that the options ask to remove.

    Raises:
        HeadjaxError: heads that do not exist, or more heads than may be removed.
    """
    from headjax.heads.named_orders import AT_ONCE
    from headjax.heads.ordering import ends, explicit_heads, flat, requested_count

    removable = _removable(model.config, options)
    even = len(set(map(len, removable))) <= 1
    if not even and options.steps > 1:
        raise HeadjaxError("--steps: groups of different sizes go in one round")
    if options.remove is not None:
        named = explicit_heads(model.config, options.remove)
        if named is not None:
            return Goal(len(named), named, {})
        # A number that cannot be met is found before anything is scored, unless groups differ in size.
        count = _count(model.config, removable, options) if even else requested_count(model.config, options.remove)
        if is_gradual(options):
            return Goal(count, None, {})
        steps = ordered(model, examples, options, count, progress, steps=options.steps)
        count = _count(model.config, steps, options)
        return Goal(count, flat(steps)[:count], {})
    if options.by in AT_ONCE:
        raise HeadjaxError(f"--by: {options.by} chooses a given number of heads; ask for one with --remove")
    total = ends(removable)[-1]
    if options.parameters is not None or options.flops is not None:
        steps = ordered(model, examples, options, total, progress, steps=options.steps)
        return _affordable(model, examples, steps, options)
    if examples is None:
        raise HeadjaxError("--task: needed to measure on")
    steps = ordered(model, examples, options, total, progress, steps=options.steps)
    if options.max_drop is not None:
        return _within(model, examples, steps, options, options.max_drop, progress)
    return _fast_enough(model, examples.selection, steps, options, options.speed_up or 1.0)


def ordered(
    model: Model,
    examples: Examples | None,
    options: GoalOptions,
    count: int,
    progress: Progress,
    *,
    steps: int,
) -> Steps:
    """Return the removals that may be made, in their order, heads scored anew `steps` times on the way to `count`."""
    from headjax.heads.named_orders import RECONSTRUCTION, OrderConfig, order_heads, units
    from headjax.heads.ordering import iterative_steps, steps_within_minimum
    from headjax.heads.pruning import fraction_steps

    config = OrderConfig(
        by=options.by,
        normalize=options.normalize,
        seed=options.seed,
        stacks=options.stacks,
        whole_groups=options.whole_groups,
    )
    fitted = model if examples is None else examples.selection.fit(model)
    if examples is None or options.by == "random":
        batches = []
    elif options.by in RECONSTRUCTION:
        batches = calibration_batches(examples, options)
    else:
        batches = examples.selection_batches()

    def once(gates: Any = None) -> Order:
        with progress(f"ordering by {options.by}", *units(config, len(batches))) as bar:
            return order_heads(fitted, batches, config, gates=gates, progress=bar)(count)

    arrange = functools.partial(_together, model.config, options)
    if steps == 1 or options.by == "random":
        return steps_within_minimum(model.config, arrange(once()), options.minimum)
    counts = fraction_steps(count, [step / steps for step in range(1, steps + 1)])

    def rescore(gates: Any) -> dict[Any, float]:
        return {head: float(place) for place, head in enumerate(once(gates))}

    return iterative_steps(model.config, counts, rescore, arrange, options.minimum, options.stacks or None)


def _together(config: ModelConfig, options: GoalOptions, order: Order) -> Steps:
    """Return the removals of an order: heads, whole groups, or equal numbers of every layer."""
    from headjax.heads.groups import group_steps, uniform_steps
    from headjax.heads.ordering import single_steps

    if options.uniform:
        return uniform_steps(config, order, whole_groups=options.whole_groups)
    return group_steps(config, order) if options.whole_groups else single_steps(order)


def _removable(config: ModelConfig, options: GoalOptions) -> Steps:
    """Return removals as many and as large as those that an order will give, before there is one."""
    from headjax.heads.head_id import all_heads, require_stack
    from headjax.heads.ordering import steps_within_minimum

    for stack in options.stacks:
        require_stack(config, stack, "--stacks")
    steps = _together(config, options, all_heads(config, options.stacks or None))
    return steps_within_minimum(config, steps, options.minimum)


def settled(config: ModelConfig, options: OptionsT) -> OptionsT:
    """Return the options with `--whole-groups` where the number of heads allows `--uniform` nothing else.

    Raises:
        HeadjaxError: layers differ already, or the number cannot be removed from all of them alike.
    """
    from headjax.heads.ordering import ends, requested_count

    if not options.uniform or options.names_heads:
        return options
    ways = {"as many of each group": options, "whole groups": dataclasses.replace(options, whole_groups=True)}
    possible = {name: ends(_removable(config, way))[1:] for name, way in ways.items()}
    if options.remove is None:
        return options
    count = requested_count(config, options.remove)
    for name, numbers in possible.items():
        if not count or count in numbers:
            return ways[name]
    alike = len(set(possible.values())) == 1
    listed = {name: ", ".join(map(str, numbers)) for name, numbers in possible.items() if numbers}
    shown = [text if alike else f"{text} ({name})" for name, text in listed.items()][: 1 if alike else 2]
    raise HeadjaxError(
        f"--remove: {options.remove} asks for {count} heads; --uniform can remove {' or '.join(shown) or 'none'}"
    )


def _count(config: ModelConfig, steps: Steps, options: GoalOptions) -> int:
    """Return the number of heads that `--remove` asks for, percentages rounded down to whole removals."""
    from headjax.heads.ordering import amount_of, ends, most_of, requested_count

    asked = options.remove or "0"
    count, total = requested_count(config, asked), ends(steps)[-1]
    if count > total:
        raise HeadjaxError(f"remove: {asked} asks for {count} heads, only {total} may be removed")
    whole = most_of(steps, count)
    if whole < count and not amount_of(asked).relative:
        more = min(end for end in ends(steps) if end > count)
        raise HeadjaxError(f"--remove: {count} heads would divide a group; whole groups take {whole} or {more}")
    return whole


def rounds(config: ModelConfig, options: GoalOptions, count: int) -> list[int]:
    """Return the numbers of heads that are gone after each of `--steps` rounds, as whole removals take them."""
    from headjax.heads.ordering import most_of
    from headjax.heads.pruning import fraction_steps

    steps = _removable(config, options)
    counts = fraction_steps(count, [step / options.steps for step in range(1, options.steps + 1)])
    return [most_of(steps, min(each, count)) for each in counts]


def is_gradual(options: GoalOptions) -> bool:
    """Return whether the model is trained between the steps, so that each step orders the heads anew."""
    return options.steps > 1 and options.fine_tune > 0 and not options.names_heads


def _within(
    model: Model, examples: Examples, steps: Steps, options: GoalOptions, drop: Amount, progress: Progress
) -> Goal:
    from headjax.evaluation.task import evaluate_task
    from headjax.heads import gates as head_gates
    from headjax.heads.ordering import ends, flat, most_within

    task = examples.selection
    sign = 1.0 if task.higher_is_better else -1.0
    done = 0
    with progress("searching", len(steps).bit_length() + 1, "evaluation") as bar:

        @functools.cache  # the search begins with the whole model, and so does a relative drop
        def evaluate(removed: Order) -> float:
            nonlocal done
            done += 1
            gates = head_gates.without(model.config, removed)
            found = evaluate_task(
                model, task, gates, examples.selected, batch_size=options.batch_size, buckets=options.buckets
            )
            bar(done, {task.headline: found[task.headline]})
            return sign * found[task.headline]

        within = most_within(flat(steps), evaluate, drop.of(abs(evaluate(()))), ends(steps))
    return Goal(
        len(within.heads), within.heads, {"gated_metric": sign * within.value, "baseline": sign * within.baseline}
    )


def _affordable(model: Model, examples: Examples | None, steps: Steps, options: GoalOptions) -> Goal:
    """Return the fewest heads that bring the model within `--parameters` or `--flops`, units that go counted in."""
    from headjax.heads.budgets import count_parameters, heads_for_budget, without_heads
    from headjax.heads.ordering import ends, flat
    from headjax.heads.units import without_units

    measure: Callable[[ModelConfig], float] = count_parameters
    budget, name = options.parameters, "--parameters"
    if budget is None:
        inputs = {} if examples is None else first_inputs(examples.evaluation, options)
        read = inputs["input_ids"].shape[1] if "input_ids" in inputs else LENGTH
        budget, name = options.flops or Amount(1.0, True), "--flops"
        measure = functools.partial(_operations, length=options.length or read)
    smaller, whole = without_units(model.config, options.units), measure(model.config)
    removed = heads_for_budget(smaller, flat(steps), measure, budget.of(whole), name, ends(steps))
    found = {}
    if options.flops is not None:
        found = {"flops": measure(without_heads(smaller, removed)), "flops_before": whole}
    return Goal(len(removed), removed, found)


def _operations(config: ModelConfig, length: int) -> float:
    return config.flops(length)


def _fast_enough(model: Model, task: Task, steps: Steps, options: GoalOptions, speed_up: float) -> Goal:
    from headjax.heads.latency import heads_for_speed_up, measure_latency
    from headjax.heads.ordering import ends, flat

    table = measure_latency(model, first_inputs(task, options))
    removed = heads_for_speed_up(model.config, flat(steps), table, speed_up, ends(steps))
    predicted = table.seconds(model.config) / table.seconds(model.config, removed)
    return Goal(len(removed), removed, {"predicted_speed_up": predicted})


def first_inputs(task: Task, options: GoalOptions) -> Batch:
    """Return the task's first batch."""
    return next(islice(task.batches(options.batch_size, limit=options.limit), 1))
