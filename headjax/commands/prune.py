"""`headjax prune`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import NOTHING_READ, Examples, open_model_and_examples_if_any
from headjax.commands.goals import Goal, GoalOptions, first_inputs, goal_of, is_gradual, ordered, rounds, settled
from headjax.commands.options import Result, argument, option
from headjax.commands.repair import Repaired, reconstructed
from headjax.commands.surgery import Metrics, comparison_table, evaluate_pair, evaluated, fine_tune, fine_tuning_of
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.ordering import Order
    from headjax.models.model import Model


FISHER_SHARE = 0.5
"""Share of the heads above which the second-order estimate of `fisher_blocks` is not trusted, see docs/heads.md."""

RESCALED = 4
"""Batches that kept heads are scaled by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(GoalOptions):
    """Options of `headjax prune`."""

    out: str = argument("OUT", "folder of the pruned model", also=("--out",), writes="new")
    rescale: bool = option(False, "scale kept heads so that layers compute as before, by least squares")
    no_metrics: bool = option(False, "take no metrics before and after: less time and memory")


def run(options: Options, progress: Progress) -> Result:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads
    from headjax.models.model import save

    _check(options)
    model, examples = open_model_and_examples_if_any(options, lazy=True)
    options = settled(model.config, options)
    goal = goal_of(model, examples, options, progress)
    task = None if examples is None or options.no_metrics else examples.evaluation
    if _is_plain(options):
        removed, before = goal.removed or (), evaluated(model, task, options)
        model = model.replace(params={})  # its arrays leave the memory before those of the smaller model come
        repaired = Repaired(_removed_on_disk(options.model, removed, whole=task is not None))
        metrics = Metrics(before, evaluated(repaired.model, task, options), task)
    else:
        repaired, removed = _remove(model, examples, goal, options, progress)
        metrics = evaluate_pair(model, repaired.model, task, options, progress)
    pruned = repaired.model
    found = dict(goal.found)
    if options.uniform:
        layer = next(iter(pruned.config.attentions().values()))[0]
        found |= {"heads_per_layer": layer.num_heads, "groups_per_layer": len(set(layer.groups))}
    if options.speed_up is not None and examples is not None:
        found["speed_up"] = measured_speed_up(model, pruned, examples.evaluation, options)
    training = options.fine_tune > 0
    described = NOTHING_READ
    if examples is not None:
        described = examples.described(**_read(examples, options), evaluation=not options.no_metrics, training=training)
    save(pruned, options.out, progress)
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
    judged = goal.found if options.max_drop is not None else ()
    notes = [
        f"{name.replace('_', ' ')}{' on the selection examples' * (name in judged)}: {value:.4g}"
        for name, value in found.items()
    ]
    if options.by == "fisher_blocks" and len(removed) > FISHER_SHARE * len(all_heads(model.config)):
        notes.append("fisher_blocks estimates small removals; past half of the heads importance is the safer order")
    return Result(
        data,
        [comparison_table(model, pruned, metrics, described.notes), *repaired.tables],
        "; ".join([*notes, f"model: {options.out}"]),
    )


def _read(examples: Examples, options: Options) -> dict[str, Any]:
    """Return which selection examples were read, as `Examples.described` takes it: named heads alone need none."""
    from headjax.heads.named_orders import RECONSTRUCTION

    if options.max_drop is not None:
        return {}
    if options.by in RECONSTRUCTION and not options.names_heads:
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
    for name, chosen in (("--uniform", options.uniform), ("--whole-groups", options.whole_groups)):
        if chosen and options.names_heads:
            raise HeadjaxError(f"{name}: an order chooses the heads, but --remove names them")
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


def _is_plain(options: Options) -> bool:
    """Return whether heads go and nothing else changes, so that no two models are needed at once."""
    return not (options.reconstruct or options.rescale or options.fine_tune or options.speed_up is not None)


def _removed_on_disk(path: str, removed: Order, *, whole: bool) -> Model:
    """Return the model of a directory without these heads, its arrays deferred.

    Args:
        path: the directory.
        removed: the heads.
        whole: whether the arrays are made at once, one after another, for an evaluation.
    """
    from headjax.core.deferred import held
    from headjax.heads.pruning import prune
    from headjax.models.model import load

    pruned = prune(load(path, lazy=True), removed)
    return pruned.replace(params=held(pruned.params)) if whole else pruned


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
    from headjax.heads.ordering import flat
    from headjax.heads.pruning import prune_gradually

    lessons = fine_tuning_of(options)
    counts = rounds(model.config, options, count)

    def order(left: Model, wanted: int) -> Order:
        return flat(ordered(left, examples, options, wanted, progress, steps=1))

    def tune(left: Model) -> Model:
        return left if lessons is None else fine_tune(left, model, examples.evaluation, lessons, options, progress)

    found = prune_gradually(model, counts, order, tune)
    return found.model, found.removed


def measured_speed_up(whole: Model, pruned: Model, task: Task, options: Options) -> float:
    """Return how many times as fast the pruned model is, measured on the task's first batch."""
    from headjax.heads.latency import time_forward

    timings = time_forward({"whole": whole, "pruned": pruned}, first_inputs(task, options))
    return timings["whole"].median / timings["pruned"].median
