"""`headjax prune`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headjax.commands.command import Command, Result, add_task_arguments, open_model_and_task
from headjax.commands.comparison import comparison_table, evaluate_pair
from headjax.commands.prune_goal import drop_of
from headjax.errors import HeadjaxError
from headjax.report.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.base import Model


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model directory")
    parser.add_argument("out", metavar="OUT", help="where the pruned model goes")
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--remove", metavar="WHAT", help="40%%, a number of heads, or heads: encoder/3/7,...")
    goal.add_argument(
        "--max-drop",
        type=drop_of,
        metavar="D",
        help="as many heads as cost at most this much of the metric: 0.01, or 5%% of it",
    )
    goal.add_argument(
        "--speed-up", type=float, metavar="X", help="as few heads as make a forward X times as fast, by measurement"
    )
    parser.add_argument(
        "--by", default="importance", metavar="ORDER",
        help="a score, ablation, fisher_blocks, hard_concrete, subset, or random (%(default)s)",
    )  # fmt: skip
    add_task_arguments(parser, required=False)
    parser.add_argument("--stacks", default="", metavar="STACKS", help="only heads of these: encoder,decoder,cross")
    parser.add_argument("--minimum", type=int, default=0, metavar="N", help="heads every layer keeps (%(default)s)")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="order anew this many times (%(default)s)")
    parser.add_argument("--normalize", action="store_true", help="divide scores by the l2 norm of their layer's")
    parser.add_argument(
        "--rescale", action="store_true", help="scale kept heads so that layers compute as before, by least squares"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of random choices (%(default)s)")
    parser.add_argument(
        "--fine-tune", type=int, default=0, metavar="N", help="training steps on the task after each removal"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-5, metavar="R", help="of that (%(default)s)")
    parser.add_argument(
        "--distill", type=float, default=1.0, metavar="W", help="weight of the whole model's answers (%(default)s)"
    )
    parser.add_argument(
        "--distill-hidden", type=float, default=0.0, metavar="W", help="weight of its hidden states (%(default)s)"
    )


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.commands.prune_goal import goal_of, measured_speed_up
    from headjax.heads.head_id import all_heads
    from headjax.models.directory import load

    _check(options)
    model, task = open_model_and_task(options) if options.task else (load(options.model), None)
    goal = goal_of(model, task, options, progress)
    pruned, removed = _remove(model, task, goal.removed, options, progress)
    metrics = evaluate_pair(model, pruned, task, options, progress)
    found = goal.found
    if options.speed_up is not None and task is not None:
        found = {**found, "speed_up": measured_speed_up(model, pruned, task, options)}
    pruned.save(options.out)
    data = {
        "kept": [str(head) for head in all_heads(pruned.config)],
        "removed": [str(head) for head in removed],
        "parameters": pruned.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        **found,
        "model": str(options.out),
    }
    notes = [f"{name.replace('_', ' ')}: {value:.4g}" for name, value in found.items()]
    return Result(data, [comparison_table(model, pruned, metrics)], "; ".join([*notes, f"model: {options.out}"]))


def _check(options: argparse.Namespace) -> None:
    from headjax.heads.named_orders import ORDERS
    from headjax.serialize import unknown_name

    if options.by not in ORDERS:
        raise HeadjaxError(f"--by: {unknown_name('order', options.by, ORDERS)}")
    named = options.remove is not None and "/" in options.remove
    needs = {
        f"order heads by {options.by}": not named and options.by != "random",
        "measure --max-drop on": options.max_drop is not None,
        "measure --speed-up on": options.speed_up is not None,
        "rescale heads on": options.rescale,
        "fine-tune on": options.fine_tune > 0,
    }
    for what, needed in needs.items():
        if needed and not options.task:
            raise HeadjaxError(f"--task: needed to {what}")
    for name, least in (("minimum", 0), ("steps", 1), ("fine_tune", 0)):
        if getattr(options, name) < least:
            limit = "must not be negative" if least == 0 else "must be at least 1"
            raise HeadjaxError(f"--{name.replace('_', '-')}: {limit}, got {getattr(options, name)}")
    if options.rescale and options.steps > 1 and options.fine_tune:
        raise HeadjaxError("--rescale: fine-tuning between several steps leaves nothing to rescale")


def _remove(
    model: Model, task: Task | None, removed: Order, options: argparse.Namespace, progress: Progress
) -> tuple[Model, Order]:
    """The model without these heads; fine-tuned in several steps, without as many that are chosen step by step."""
    from headjax.commands.prune_goal import ordered
    from headjax.heads.gradual import prune_gradually
    from headjax.heads.pruning import prune
    from headjax.heads.rescaling import fold_gates, rescale
    from headjax.heads.steps import fraction_steps

    if task is None:
        return prune(model, removed), removed
    if options.rescale:
        batches = list(task.batches(options.batch_size, limit=RESCALED * options.batch_size))
        model = fold_gates(model, rescale(task.fit(model), batches, removed))

    def tune(left: Model) -> Model:
        return _tune(left, model, task, options, progress) if options.fine_tune else left

    if options.steps == 1 or not options.fine_tune:
        return tune(prune(model, removed)), removed
    shares = [step / options.steps for step in range(1, options.steps + 1)]
    counts = fraction_steps(len(removed), shares)
    found = prune_gradually(
        model, counts, lambda left, count: ordered(left, task, options, count, progress, steps=1), tune
    )
    return found.model, found.removed


def _tune(left: Model, teacher: Model, task: Task, options: argparse.Namespace, progress: Progress) -> Model:
    from headjax.training.distillation import Distillation, distill
    from headjax.training.optimizer import AdamW, LinearDecay

    settings = Distillation(
        steps=options.fine_tune,
        optimizer=AdamW(schedule=LinearDecay(peak=options.learning_rate, warmup_steps=options.fine_tune // 10)),
        logits=options.distill,
        hidden=options.distill_hidden,
        seed=options.seed,
    )
    batches = task.train_batches(options.batch_size, seed=options.seed, buckets=options.buckets)
    with progress("fine-tuning", options.fine_tune, "step") as bar:
        tuned = distill(task.fit(left), task.fit(teacher), batches, settings, progress=bar).model
    return left.replace(params=tuned.params, history=tuned.history)


RESCALED = 4
"""Batches that kept heads are scaled by."""


COMMAND = Command("prune", "remove heads for real", arguments, run)
