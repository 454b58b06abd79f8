"""`headjax prune`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import Examples, open_model_and_examples_if_any
from headjax.commands.goals import Goal, Heads, MaxDrop, goal_of, is_gradual, settled
from headjax.commands.options import argument, option
from headjax.commands.orderings import GoalOptions, Ordering
from headjax.commands.repair import Repaired, reconstructed
from headjax.commands.results import ABSENT, NO_EXAMPLES, found
from headjax.commands.surgery import Changed, compared, evaluate_each, fine_tune, fine_tuning_of
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.report import numbers
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.heads.ordering import Order
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(GoalOptions):
    """Options of `headjax prune`."""

    out: str = argument("OUT", "folder of the pruned model", writes="new")
    no_metrics: bool = option(False, "take no metrics before and after: less time and memory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Changed):
    """A pruned model.

    Attributes:
        repairs: tables about the repair.
    """

    kept: Sequence[Any] = found("heads")
    removed: Sequence[Any] = found("heads")
    gated_metric: float = found(
        "with `--max-drop`: of the selection examples",
        form=numbers.significant,
        said="gated metric on the selection examples",
        default=ABSENT,
    )
    baseline: float = found(
        "the same with all heads", form=numbers.significant, said="baseline on the selection examples", default=ABSENT
    )
    heads_per_layer: int = found("with `--uniform`", said="heads per layer", default=ABSENT)
    groups_per_layer: int = found(said="groups per layer", default=ABSENT)
    calibration: Mapping[str, Any] = found(
        "with `--reconstruct`, as the keys that follow: `examples`, `tokens`, ...", default=ABSENT
    )
    layers: Sequence[Any] = found("`name`, `tokens`, `unknowns`, `ridge`, `held_out`, `kept`", default=ABSENT)
    units_removed: Mapping[str, int] = found("by layer", default=ABSENT)
    agreement: Mapping[str, Any] = found(
        "with the original: `measure` (`kl`, `cosine`, `squared_difference`), `before`, `after`, `examples`",
        default=ABSENT,
    )
    warnings: Sequence[str] = found(default=ABSENT)
    repairs: Sequence[Table]

    def tables(self) -> Sequence[Table]:
        return [self.comparison(), *self.repairs]


def run(options: Options, progress: Progress) -> Found:
    """Removes heads for real and writes the smaller model; with a task, also its metrics before and after."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.pruning import prune
    from headjax.models.model import save

    goal = goal_of(options)
    _check(options, goal)
    model, examples = open_model_and_examples_if_any(options)
    folder, options = options.folder, settled(model, options)
    chosen = goal.choose(Ordering(model, examples, options, progress))
    task = None if examples is None or options.no_metrics else examples.evaluation
    read = chosen.read
    if options.reconstruct or options.fine_tune:
        heads = None if is_gradual(options) and not isinstance(goal, Heads) else chosen.heads
        repaired, removed = _remove(model, examples, heads, chosen.number, options, progress)
        metrics = evaluate_each((model, repaired.model), task, options, progress)
    else:  # no two models are needed at once: the arrays of one leave the memory before those of the other come
        removed, before = chosen.heads or (), evaluate_each((model,), task, options, progress)
        model = model.replace(params={})
        repaired = Repaired(prune(folder.model(), removed))
        metrics = [*before, *evaluate_each((repaired.model,), task, options, progress)]
    pruned = repaired.model
    more: dict[str, Any] = dict(chosen.facts)
    if options.uniform:
        layer = next(iter(pruned.config.attentions().values()))[0]
        more |= {"heads_per_layer": layer.num_heads, "groups_per_layer": len(set(layer.groups))}
    described: Mapping[str, Any] = NO_EXAMPLES
    if examples is not None:
        tuned = options.fine_tune > 0
        described = examples.described(
            selection=read is not None, selected=read, evaluation=not options.no_metrics, training=tuned
        )
    save(pruned, options.out, progress)
    return Found(
        kept=all_heads(pruned.config),
        removed=removed,
        model=str(options.out),
        repairs=repaired.tables,
        **compared(model, pruned, metrics, task),
        **more,
        **repaired.data,
        **described,
    )


def _check(options: Options, goal: Goal) -> None:
    """Refuse options that exclude each other, and options that need a task without a task."""
    from headjax.core.serialize import unknown_name
    from headjax.heads.named_orders import ORDERS

    if options.by not in ORDERS:
        raise HeadjaxError(f"--by: {unknown_name('order', options.by, ORDERS)}")
    needs = {
        f"order heads by {options.by}": not isinstance(goal, Heads) and options.by != "random",
        "measure --max-drop on": isinstance(goal, MaxDrop),
        "reconstruct layers on": options.reconstruct,
    }
    for what, needed in needs.items():
        if needed and not options.task:
            raise HeadjaxError(f"--task: needed to {what}")
    fine_tuning_of(options)
    if options.reconstruct and options.steps > 1 and options.fine_tune:
        raise HeadjaxError("--reconstruct: fine-tuning between several steps leaves nothing to reconstruct")


def _remove(
    model: Model,
    examples: Examples | None,
    heads: Order | None,
    number: int,
    options: Options,
    progress: Progress,
) -> tuple[Repaired, Order]:
    """Return the model without these heads, repaired and fine-tuned where asked for, and the heads that went.

    Without heads, `number` of them are chosen in rounds, with training between.
    """
    from headjax.heads.pruning import prune

    if examples is not None and heads is None:
        left, gone = _remove_gradually(model, examples, number, options, progress)
        return Repaired(left), gone
    removed, lessons = heads or (), fine_tuning_of(options)
    repaired = Repaired(model)
    if options.reconstruct and examples is not None:
        repaired = reconstructed(model, examples, removed, options, progress)
        pruned = repaired.model
    else:
        pruned = prune(model, removed)
    if examples is not None and lessons is not None:
        pruned = fine_tune(pruned, model, examples.evaluation, lessons, options, progress)
    return repaired._replace(model=pruned), removed


def _remove_gradually(
    model: Model, examples: Examples, count: int, options: Options, progress: Progress
) -> tuple[Model, Order]:
    """Return the model without `count` heads, trained and ordered again after every round, and the removed heads."""
    from headjax.heads.ordering import flat
    from headjax.heads.pruning import prune_gradually

    lessons = fine_tuning_of(options)
    counts = Ordering(model, examples, options, silent).rounds(count)

    def order(left: Model, wanted: int) -> Order:
        return flat(Ordering(left, examples, options, progress).steps(wanted, rounds=1))

    def tune(left: Model) -> Model:
        return left if lessons is None else fine_tune(left, model, examples.evaluation, lessons, options, progress)

    gradual = prune_gradually(model, counts, order, tune)
    return gradual.model, gradual.removed
