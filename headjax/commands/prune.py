"""`headjax prune`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headjax.commands.command import Command, Result
from headjax.commands.comparison import comparison_table, evaluate_pair
from headjax.commands.examples import NOTHING_READ, Examples, add_examples_arguments, open_model_and_examples_if_any
from headjax.commands.fine_tuning import add_fine_tuning_arguments, fine_tune, fine_tuning_of
from headjax.commands.prune_goal import Goal, drop_of, is_gradual, ordered
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.heads.ordering import Order
    from headjax.models.model import Model


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
        help="order: a score, ablation, fisher_blocks, hard_concrete, subset, or random (default %(default)s)",
    )  # fmt: skip
    add_examples_arguments(parser, required=False)
    parser.add_argument("--stacks", default="", metavar="STACKS", help="only heads of these: encoder,decoder,cross")
    parser.add_argument(
        "--minimum", type=int, default=0, metavar="N", help="heads every layer keeps (default %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=1,
        metavar="N",
        help="score and remove in N rounds, heads scored anew in each (default %(default)s)",
    )
    parser.add_argument("--normalize", action="store_true", help="divide scores by the l2 norm of their layer's")
    parser.add_argument(
        "--rescale", action="store_true", help="scale kept heads so that layers compute as before, by least squares"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random choices (default %(default)s)")
    add_fine_tuning_arguments(parser)


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.commands.prune_goal import goal_of, measured_speed_up
    from headjax.heads.head_id import all_heads

    _check(options)
    model, examples = open_model_and_examples_if_any(options)
    goal = goal_of(model, examples, options, progress)
    pruned, removed = _remove(model, examples, goal, options, progress)
    metrics = evaluate_pair(model, pruned, None if examples is None else examples.evaluation, options, progress)
    found = goal.found
    if options.speed_up is not None and examples is not None:
        found = {**found, "speed_up": measured_speed_up(model, pruned, examples.evaluation, options)}
    described = NOTHING_READ if examples is None else examples.described(**_read(examples, options))
    pruned.save(options.out)
    data = {
        "kept": [str(head) for head in all_heads(pruned.config)],
        "removed": [str(head) for head in removed],
        "parameters": pruned.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        **found,
        **described.data,
        "model": str(options.out),
    }
    where = " on the selection examples" if options.max_drop is not None else ""
    notes = [f"{name.replace('_', ' ')}{where}: {value:.4g}" for name, value in found.items()]
    if options.by == "fisher_blocks" and len(removed) > FISHER_SHARE * len(all_heads(model.config)):
        notes.append("fisher_blocks estimates small removals; past half of the heads importance is the safer order")
    return Result(
        data, [comparison_table(model, pruned, metrics, described.notes)], "; ".join([*notes, f"model: {options.out}"])
    )


def _read(examples: Examples, options: argparse.Namespace) -> dict[str, Any]:
    """Return which selection examples were read, as `Examples.described` takes it: named heads alone need none."""
    named = options.remove is not None and "/" in options.remove
    if (not named and options.by != "random") or options.max_drop is not None:
        return {}
    if options.rescale:
        return {"selected": examples.selection.count_full(RESCALED, options.batch_size)}
    return {"selection": options.speed_up is not None}


def _check(options: argparse.Namespace) -> None:
    from headjax.core.serialize import unknown_name
    from headjax.heads.named_orders import ORDERS
    from headjax.heads.ordering import amount_of

    if options.by not in ORDERS:
        raise HeadjaxError(f"--by: {unknown_name('order', options.by, ORDERS)}")
    named = options.remove is not None and "/" in options.remove
    if options.remove is not None and not named:
        amount_of(options.remove)
    needs = {
        f"order heads by {options.by}": not named and options.by != "random",
        "measure --max-drop on": options.max_drop is not None,
        "measure --speed-up on": options.speed_up is not None,
        "rescale heads on": options.rescale,
    }
    for what, needed in needs.items():
        if needed and not options.task:
            raise HeadjaxError(f"--task: needed to {what}")
    if options.speed_up is not None and not options.speed_up >= 1.0:
        raise HeadjaxError(f"--speed-up: must be at least 1, got {options.speed_up:g}")
    if options.minimum < 0:
        raise HeadjaxError(f"--minimum: must not be negative, got {options.minimum}")
    if options.steps < 1:
        raise HeadjaxError(f"--steps: must be at least 1, got {options.steps}")
    fine_tuning_of(options)
    if options.rescale and options.steps > 1 and options.fine_tune:
        raise HeadjaxError("--rescale: fine-tuning between several steps leaves nothing to rescale")


def _remove(
    model: Model, examples: Examples | None, goal: Goal, options: argparse.Namespace, progress: Progress
) -> tuple[Model, Order]:
    """Return the model without the goal's heads, fine-tuned where asked for, and the heads that went."""
    from headjax.heads.pruning import prune
    from headjax.heads.rescaling import fold_gates, rescale

    if examples is not None and is_gradual(options):
        return _remove_gradually(model, examples, goal.number, options, progress)
    removed = goal.removed or ()
    lessons = fine_tuning_of(options)
    if options.rescale and examples is not None:
        fitted = examples.selection.fit(model)
        pruned = prune(fold_gates(model, rescale(fitted, examples.sample(RESCALED), removed)), removed)
    else:
        pruned = prune(model, removed)
    if examples is not None and lessons is not None:
        pruned = fine_tune(pruned, model, examples.evaluation, lessons, options, progress)
    return pruned, removed


def _remove_gradually(
    model: Model, examples: Examples, count: int, options: argparse.Namespace, progress: Progress
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


FISHER_SHARE = 0.5
"""Share of the heads above which the second-order estimate of `fisher_blocks` is not trusted, see docs/heads.md."""

RESCALED = 4
"""Batches that kept heads are scaled by."""


COMMAND = Command("prune", "remove heads for real", arguments, run)
