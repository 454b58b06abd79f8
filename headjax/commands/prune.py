"""`headjax prune`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from headjax.commands.examples import NOTHING_READ, TASK, Examples, open_model_and_examples_if_any
from headjax.commands.options import OverwriteOptions, Result, argument, option, require_new
from headjax.commands.repair import Repaired, RepairOptions, calibration_batches, check_repair, reconstructed
from headjax.commands.surgery import comparison_table, evaluate_pair, fine_tune, fine_tuning_of
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Bound, Count, Size
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.config import Batch
    from headjax.models.model import Model


FISHER_SHARE = 0.5
"""Share of the heads above which the second-order estimate of `fisher_blocks` is not trusted, see docs/heads.md."""

RESCALED = 4
"""Batches that kept heads are scaled by."""


class Drop(NamedTuple):
    """The largest loss of a metric: in its own unit, or as a share of its value with all heads."""

    amount: float
    relative: bool


def drop_of(text: str) -> Drop:
    """Return the drop that `0.01` or `5%` means.

    Raises:
        ValueError: the text is no number of at least 0.
    """
    try:
        amount = float(text.removesuffix("%"))
    except ValueError:
        amount = -1.0
    if not 0.0 <= amount < float("inf"):
        raise ValueError(f"expected a number such as 0.01, or 5%, got {text!r}")
    return Drop(amount / 100.0, True) if text.endswith("%") else Drop(amount, False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(RepairOptions, OverwriteOptions):
    """Options of `headjax prune`."""

    out: str = argument("OUT", "folder of the pruned model", also=("--out",))
    remove: str | None = option(None, "40%, a number of heads, or heads: encoder/3/7,...", "WHAT", one_of="goal")
    max_drop: Drop | None = option(
        None,
        "as many heads as cost at most this much of the metric: 0.01, or 5% of it",
        "D",
        read=drop_of,
        one_of="goal",
    )
    speed_up: Annotated[float, Bound("must be at least 1", lambda value: value >= 1.0)] | None = option(
        None, "as few heads as make a forward X times as fast, by measurement", "X", one_of="goal"
    )
    by: str = option(
        "importance",
        "order: a score, reconstruction (no labels), ablation, fisher_blocks, hard_concrete, subset, or random",
        "ORDER",
    )
    task: str = option("", TASK, "TASK")
    stacks: tuple[str, ...] = option((), "only heads of these: encoder,decoder,cross", "STACKS")
    minimum: Count = option(0, "heads every layer keeps")
    steps: Size = option(1, "score and remove in N rounds, heads scored anew in each")
    normalize: bool = option(False, "divide scores by the l2 norm of their layer's")
    rescale: bool = option(False, "scale kept heads so that layers compute as before, by least squares")

    @property
    def names_heads(self) -> bool:
        """Whether the heads to remove are named one by one."""
        return self.remove is not None and "/" in self.remove


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


def run(options: Options, progress: Progress) -> Result:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads

    _check(options)
    require_new(options.out, options)
    model, examples = open_model_and_examples_if_any(options)
    goal = goal_of(model, examples, options, progress)
    repaired, removed = _remove(model, examples, goal, options, progress)
    pruned = repaired.model
    metrics = evaluate_pair(model, pruned, None if examples is None else examples.evaluation, options, progress)
    found = goal.found
    if options.speed_up is not None and examples is not None:
        found = {**found, "speed_up": measured_speed_up(model, pruned, examples.evaluation, options)}
    training = options.fine_tune > 0
    described = NOTHING_READ if examples is None else examples.described(**_read(examples, options), training=training)
    pruned.save(options.out)
    data = {
        "kept": [str(head) for head in all_heads(pruned.config)],
        "removed": [str(head) for head in removed],
        "parameters": pruned.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        **found,
        **repaired.data,
        **described.data,
        "model": str(options.out),
    }
    where = " on the selection examples" if options.max_drop is not None else ""
    notes = [f"{name.replace('_', ' ')}{where}: {value:.4g}" for name, value in found.items()]
    if options.by == "fisher_blocks" and len(removed) > FISHER_SHARE * len(all_heads(model.config)):
        notes.append("fisher_blocks estimates small removals; past half of the heads importance is the safer order")
    return Result(
        data,
        [comparison_table(model, pruned, metrics, described.notes), *repaired.tables],
        "; ".join([*notes, f"model: {options.out}"]),
    )


def _read(examples: Examples, options: Options) -> dict[str, Any]:
    """Return which selection examples were read, as `Examples.described` takes it: named heads alone need none."""
    if options.max_drop is not None:
        return {}
    if options.by == "reconstruction" and not options.names_heads:
        return {"selected": min(options.calibrate, len(examples.selection.data.train))}
    if not options.names_heads and options.by != "random":
        return {}
    if options.rescale:
        return {"selected": examples.selection.count_full(RESCALED, options.batch_size)}
    return {"selection": options.speed_up is not None}


def _check(options: Options) -> None:
    from headjax.core.serialize import unknown_name
    from headjax.heads.named_orders import ORDERS
    from headjax.heads.ordering import amount_of

    if options.by not in ORDERS:
        raise HeadjaxError(f"--by: {unknown_name('order', options.by, ORDERS)}")
    if options.remove is not None and not options.names_heads:
        amount_of(options.remove)
    needs = {
        f"order heads by {options.by}": not options.names_heads and options.by != "random",
        "measure --max-drop on": options.max_drop is not None,
        "measure --speed-up on": options.speed_up is not None,
        "rescale heads on": options.rescale,
        "reconstruct layers on": options.reconstruct,
    }
    for what, needed in needs.items():
        if needed and not options.task:
            raise HeadjaxError(f"--task: needed to {what}")
    fine_tuning_of(options)
    if options.rescale and options.steps > 1 and options.fine_tune:
        raise HeadjaxError("--rescale: fine-tuning between several steps leaves nothing to rescale")
    if options.reconstruct and options.steps > 1 and options.fine_tune:
        raise HeadjaxError("--reconstruct: fine-tuning between several steps leaves nothing to reconstruct")
    if options.reconstruct and options.rescale:
        raise HeadjaxError("--rescale: --reconstruct solves more of the same layers; leave one of them out")
    check_repair(options)


def _remove(
    model: Model, examples: Examples | None, goal: Goal, options: Options, progress: Progress
) -> tuple[Repaired, Order]:
    """Return the model without the goal's heads, repaired and fine-tuned where asked for, and the heads that went."""
    from headjax.heads.pruning import prune
    from headjax.heads.rescaling import fold_gates, rescale

    if examples is not None and is_gradual(options):
        left, gone = _remove_gradually(model, examples, goal.number, options, progress)
        return Repaired(left), gone
    removed = goal.removed or ()
    lessons = fine_tuning_of(options)
    repaired = Repaired(model)
    if options.reconstruct and examples is not None:
        repaired = reconstructed(model, examples, removed, options, progress)
        pruned = repaired.model
    elif options.rescale and examples is not None:
        fitted = examples.selection.fit(model)
        batches = examples.selection.first_batches(RESCALED, options.batch_size)
        pruned = prune(fold_gates(model, rescale(fitted, batches, removed)), removed)
    else:
        pruned = prune(model, removed)
    if examples is not None and lessons is not None:
        pruned = fine_tune(pruned, model, examples.evaluation, lessons, options, progress)
    return repaired._replace(model=pruned), removed


def _remove_gradually(
    model: Model, examples: Examples, count: int, options: Options, progress: Progress
) -> tuple[Model, Order]:
    """Return the model without `count` heads, trained and ordered anew after every step, and the heads that went."""
    from headjax.heads.pruning import fraction_steps, prune_gradually

    lessons = fine_tuning_of(options)
    counts = fraction_steps(count, [step / options.steps for step in range(1, options.steps + 1)])

    def order(left: Model, wanted: int) -> Order:
        return ordered(left, examples, options, wanted, progress, steps=1)

    def tune(left: Model) -> Model:
        return left if lessons is None else fine_tune(left, model, examples.evaluation, lessons, options, progress)

    found = prune_gradually(model, counts, order, tune)
    return found.model, found.removed


def goal_of(model: Model, examples: Examples | None, options: Options, progress: Progress) -> Goal:
    """Return the heads that the options ask to remove.

    Raises:
        HeadjaxError: heads that do not exist, or more heads than may be removed.
    """
    from headjax.heads.head_id import all_heads, require_stack
    from headjax.heads.named_orders import AT_ONCE
    from headjax.heads.ordering import explicit_heads, keep_minimum, requested_count, select

    stacks = options.stacks or None
    for stack in options.stacks:
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
        return _within(model, examples, order, options, options.max_drop, progress)
    return _fast_enough(model, examples.selection, order, options, options.speed_up or 1.0)


def ordered(
    model: Model,
    examples: Examples | None,
    options: Options,
    count: int,
    progress: Progress,
    *,
    steps: int,
) -> Order:
    """Return the heads that may go, in the order of their removal, scored anew `steps` times on the way to `count`."""
    from headjax.heads.named_orders import OrderConfig, order_heads
    from headjax.heads.ordering import iterative, keep_minimum
    from headjax.heads.pruning import fraction_steps

    config = OrderConfig(by=options.by, normalize=options.normalize, seed=options.seed, stacks=options.stacks)
    fitted = model if examples is None else examples.selection.fit(model)
    if examples is None or options.by == "random":
        batches = []
    elif options.by == "reconstruction":
        batches = calibration_batches(examples, options)
    else:
        batches = examples.selection_batches()

    def once(gates: Any = None) -> Order:
        with progress(f"ordering by {options.by}", max(len(batches), 1), "batch") as bar:
            return order_heads(fitted, batches, config, gates=gates, progress=bar)(count)

    if steps == 1 or options.by == "random":
        order = once()
    else:
        counts = fraction_steps(count, [step / steps for step in range(1, steps + 1)])

        def rescore(gates: Any) -> dict[Any, float]:
            return {head: float(place) for place, head in enumerate(once(gates))}

        order = iterative(model.config, counts, rescore, options.minimum, options.stacks or None)
    return keep_minimum(model.config, order, options.minimum)


def is_gradual(options: Options) -> bool:
    """Return whether the model is trained between the steps, so that each step orders the heads anew."""
    return options.steps > 1 and options.fine_tune > 0 and not options.names_heads


def measured_speed_up(whole: Model, pruned: Model, task: Task, options: Options) -> float:
    """Return how many times as fast the pruned model is, measured on the task's first batch."""
    from headjax.heads.latency import time_forward

    timings = time_forward({"whole": whole, "pruned": pruned}, _inputs(task, options))
    return timings["whole"].median / timings["pruned"].median


def _within(model: Model, examples: Examples, order: Order, options: Options, drop: Drop, progress: Progress) -> Goal:
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

        within = most_within(order, evaluate, drop.amount * (abs(evaluate(())) if drop.relative else 1.0))
    return Goal(
        len(within.heads), within.heads, {"gated_metric": sign * within.value, "baseline": sign * within.baseline}
    )


def _fast_enough(model: Model, task: Task, order: Order, options: Options, speed_up: float) -> Goal:
    from headjax.heads.latency import heads_for_speed_up, measure_latency

    table = measure_latency(model, _inputs(task, options))
    removed = heads_for_speed_up(model.config, order, table, speed_up)
    predicted = table.seconds(model.config) / table.seconds(model.config, removed)
    return Goal(len(removed), removed, {"predicted_speed_up": predicted})


def _inputs(task: Task, options: Options) -> Batch:
    """Return the task's first batch."""
    return next(islice(task.batches(options.batch_size, limit=options.limit), 1))
