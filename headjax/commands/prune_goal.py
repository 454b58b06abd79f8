"""Which heads `headjax prune` removes: by number, by what they may cost, or by the speed they are to give."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.commands.examples import Examples
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.config import Batch
    from headjax.models.model import Model


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


class Drop(NamedTuple):
    """How much of a metric may be lost: in its own unit, or as a share of what it is with all heads."""

    amount: float
    relative: bool


def drop_of(text: str) -> Drop:
    """`0.01` or `5%`, for argparse."""
    try:
        amount = float(text.removesuffix("%"))
    except ValueError:
        amount = -1.0
    if not 0.0 <= amount < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.01, or 5%, got {text!r}")
    return Drop(amount / 100.0, True) if text.endswith("%") else Drop(amount, False)


def goal_of(model: Model, examples: Examples | None, options: argparse.Namespace, progress: Progress) -> Goal:
    """Return the heads that the arguments ask to remove.

    Raises:
        HeadjaxError: heads that do not exist, or more heads than may be removed.
    """
    from headjax.heads.head_id import all_heads, require_stack
    from headjax.heads.named_orders import AT_ONCE
    from headjax.heads.ordering import explicit_heads, keep_minimum, requested_count, select

    stacks = stacks_of(options)
    for stack in stacks or ():
        require_stack(model.config, stack, "--stacks")
    removable = keep_minimum(model.config, all_heads(model.config, stacks), options.minimum)
    if options.remove is not None:
        named = explicit_heads(model.config, options.remove)
        if named is not None:
            return Goal(len(named), named, {})
        count = requested_count(model.config, options.remove)
        select(model.config, options.remove, removable)  # finds a count that is too large before anything is scored
        if is_gradual(options):
            return Goal(count, None, {})
        order = ordered(model, examples, options, count, progress, steps=options.steps)
        return Goal(count, select(model.config, options.remove, order), {})
    if options.by in AT_ONCE:
        raise HeadjaxError(f"--by: {options.by} chooses a given number of heads; ask for one with --remove")
    if examples is None:
        raise HeadjaxError("--task: needed to measure on")
    order = ordered(model, examples, options, len(removable), progress, steps=options.steps)
    if options.max_drop is not None:
        return _within(model, examples, order, options, progress)
    return _fast_enough(model, examples.selection, order, options)


def ordered(
    model: Model,
    examples: Examples | None,
    options: argparse.Namespace,
    count: int,
    progress: Progress,
    *,
    steps: int,
) -> Order:
    """Return the heads that may go, in the order of their removal, scored anew `steps` times on the way to `count`."""
    from headjax.heads.named_orders import OrderConfig, order_heads
    from headjax.heads.ordering import iterative, keep_minimum
    from headjax.heads.pruning import fraction_steps

    stacks = stacks_of(options)
    config = OrderConfig(by=options.by, normalize=options.normalize, seed=options.seed, stacks=tuple(stacks or ()))
    fitted = model if examples is None else examples.selection.fit(model)
    batches = [] if examples is None or options.by == "random" else examples.selection_batches()

    def once(gates: Any = None) -> Order:
        with progress(f"ordering by {options.by}", max(len(batches), 1), "batch") as bar:
            return order_heads(fitted, batches, config, gates=gates, progress=bar)(count)

    if steps == 1 or options.by == "random":
        order = once()
    else:
        counts = fraction_steps(count, [step / steps for step in range(1, steps + 1)])

        def rescore(gates: Any) -> dict[Any, float]:
            return {head: float(place) for place, head in enumerate(once(gates))}

        order = iterative(model.config, counts, rescore, options.minimum, stacks)
    return keep_minimum(model.config, order, options.minimum)


def stacks_of(options: argparse.Namespace) -> list[str] | None:
    """Return the head stacks that `--stacks` names; None is all."""
    return options.stacks.split(",") if options.stacks else None


def is_gradual(options: argparse.Namespace) -> bool:
    """Return whether the model is trained between the steps, so that each step orders the heads anew."""
    named = options.remove is not None and "/" in options.remove
    return options.steps > 1 and options.fine_tune > 0 and not named


def measured_speed_up(whole: Model, pruned: Model, task: Task, options: argparse.Namespace) -> float:
    """How many times as fast the pruned model really is, on the task's first batch."""
    from headjax.heads.latency import time_forward

    timings = time_forward({"whole": whole, "pruned": pruned}, _inputs(task, options))
    return timings["whole"].median / timings["pruned"].median


def _within(model: Model, examples: Examples, order: Order, options: argparse.Namespace, progress: Progress) -> Goal:
    from headjax.evaluation.task import evaluate_task
    from headjax.heads import gates as head_gates
    from headjax.heads.ordering import most_within

    task = examples.selection
    sign = 1.0 if task.higher_is_better else -1.0
    done = 0
    with progress("searching", len(order).bit_length() + 1, "evaluation") as bar:

        def evaluate(removed: Order) -> float:
            nonlocal done
            done += 1
            gates = head_gates.without(model.config, removed)
            found = evaluate_task(
                model, task, gates, examples.selected, batch_size=options.batch_size, buckets=options.buckets
            )
            bar(done, {task.headline: found[task.headline]})
            return sign * found[task.headline]

        drop: Drop = options.max_drop
        within = most_within(order, evaluate, drop.amount * (abs(evaluate(())) if drop.relative else 1.0))
    return Goal(
        len(within.heads), within.heads, {"gated_metric": sign * within.value, "baseline": sign * within.baseline}
    )


def _fast_enough(model: Model, task: Task, order: Order, options: argparse.Namespace) -> Goal:
    from headjax.heads.latency import heads_for_speed_up, measure_latency

    table = measure_latency(model, _inputs(task, options))
    removed = heads_for_speed_up(model.config, order, table, options.speed_up)
    predicted = table.seconds(model.config) / table.seconds(model.config, removed)
    return Goal(len(removed), removed, {"predicted_speed_up": predicted})


def _inputs(task: Task, options: argparse.Namespace) -> Batch:
    """The task's first batch."""
    return next(islice(task.batches(options.batch_size, limit=options.limit), 1))
