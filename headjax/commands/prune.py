"""`headjax prune`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headjax.commands.command import Command, Result, add_task_arguments, open_model_and_task
from headjax.commands.comparison import comparison_table, evaluate_pair
from headjax.errors import HeadjaxError
from headjax.report.progress import Progress
from headjax.serialize import unknown_name

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.base import Model

OTHER_ORDERS = ("random", "ablation")
"""What `--by` takes besides the names of scores."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model directory")
    parser.add_argument("out", metavar="OUT", help="where the pruned model goes")
    parser.add_argument(
        "--remove", required=True, metavar="WHAT", help="40%%, a number of heads, or heads: encoder/3/7,..."
    )
    parser.add_argument(
        "--by", default="importance", metavar="SCORE", help="a score, ablation, or random (%(default)s)"
    )
    add_task_arguments(parser, required=False)
    parser.add_argument("--stacks", default="", metavar="STACKS", help="only heads of these: encoder,decoder,cross")
    parser.add_argument("--minimum", type=int, default=0, metavar="N", help="heads every layer keeps (%(default)s)")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="score anew this many times (%(default)s)")
    parser.add_argument("--normalize", action="store_true", help="divide scores by the l2 norm of their layer's")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random order (%(default)s)")


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.pruning import prune
    from headjax.heads.selection import select
    from headjax.models.directory import load

    _check(options)
    model, task = open_model_and_task(options) if options.task else (load(options.model), None)
    named = "/" in options.remove
    order = None if named else _order(model, task, options, progress)
    removed = select(model.config, options.remove, order)
    pruned = prune(model, removed)
    metrics = evaluate_pair(model, pruned, task, options, progress)
    pruned.save(options.out)
    data = {
        "kept": [str(head) for head in all_heads(pruned.config)],
        "removed": [str(head) for head in removed],
        "parameters": pruned.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        "model": str(options.out),
    }
    return Result(data, [comparison_table(model, pruned, metrics)], f"model: {options.out}")


def _check(options: argparse.Namespace) -> None:
    from headjax.heads.scores import SCORES

    known = (*SCORES, *OTHER_ORDERS)
    if options.by not in known:
        raise HeadjaxError(f"--by: {unknown_name('score', options.by, known)}")
    if not options.task and "/" not in options.remove and options.by != "random":
        raise HeadjaxError(f"--task: needed to order heads by {options.by}")
    if options.minimum < 0:
        raise HeadjaxError(f"--minimum: must not be negative, got {options.minimum}")
    if options.steps < 1:
        raise HeadjaxError(f"--steps: must be at least 1, got {options.steps}")


def _order(model: Model, task: Task | None, options: argparse.Namespace, progress: Progress) -> Order:
    """All heads that may go, in the order of their removal."""
    from headjax.heads.ordering import in_stacks, iterative, keep_minimum, random_order
    from headjax.heads.selection import requested_count
    from headjax.heads.steps import fraction_steps

    if options.by == "random":
        order = random_order(model.config, options.seed)
    elif options.steps == 1:
        order = _scored(model, task, options, progress, None)
    else:
        count = requested_count(model.config, options.remove)
        counts = fraction_steps(count, [step / options.steps for step in range(1, options.steps + 1)])

        def rescore(gates: Any) -> dict[Any, float]:
            ranked = _scored(model, task, options, progress, gates)
            return {head: float(place) for place, head in enumerate(ranked)}

        order = iterative(model.config, counts, rescore, options.minimum)
    if options.stacks:
        order = in_stacks(model.config, order, options.stacks.split(","))
    return keep_minimum(model.config, order, options.minimum)


def _scored(model: Model, task: Task | None, options: argparse.Namespace, progress: Progress, gates: Any) -> Order:
    from headjax.heads.ablation import ablate
    from headjax.heads.normalization import normalize_layers
    from headjax.heads.ordering import by_ablation, by_scores
    from headjax.heads.scores import score_heads

    if task is None:
        raise HeadjaxError(f"--task: needed to order heads by {options.by}")
    model = task.fit(model)
    batches = task.batches(options.batch_size, limit=options.limit)
    total = task.count_batches(options.batch_size, limit=options.limit)
    with progress(f"ordering by {options.by}", total, "batch") as bar:
        if options.by == "ablation":
            return by_ablation(ablate(model, batches, gates=gates, progress=bar))
        scores = score_heads(model, batches, gates=gates, progress=bar)
    return by_scores(scores, options.by, normalize_layers if options.normalize else dict)


COMMAND = Command("prune", "remove heads for real", arguments, run)
